#include <accelerate/output/output_plan.h>

#include <gtest/gtest.h>

#include <accelerate/core/error.h>

#include "support/error_text.h"

namespace accelerate {
namespace {

using testing::expect_parts;
using testing::message_of;

const Environment kNoVariables = [](const std::string&) { return std::nullopt; };

// The streams of each rank that go to files, in the numbers of --tee.
std::string files_of(const OutputPlan& plan) {
  std::string files;
  for (const auto& rank : plan.ranks) files += std::to_string((rank.stdout_to_file ? 1 : 0) + (rank.stderr_to_file ? 2 : 0));
  return files;
}

OutputPlan tee(const std::string& value, const std::string& folder = "") {
  return plan_output(value, folder, "default", 0, 3, kNoVariables);
}

TEST(OutputPlan, TeeNamesTheStreamsOfAllRanksOrOfEach) {
  EXPECT_EQ(files_of(tee("0")), "000");
  EXPECT_EQ(files_of(tee("1")), "111");
  EXPECT_EQ(files_of(tee("2")), "222");
  EXPECT_EQ(files_of(tee("3")), "333");
  EXPECT_EQ(files_of(tee("0:3,1:0,2:1")), "301");
  EXPECT_EQ(files_of(tee("1:2")), "020");
  EXPECT_EQ(files_of(tee("2:3,12:1")), "003");  // no such rank here
}

TEST(OutputPlan, OtherValuesOfTeeAreErrorsThatNameIt) {
  for (const char* value : {"", "4", "-1", "03", "x", "0:4", "0:", ":3", "0:3,", "0:3,,1:1", "0:3;1:1", "0:3:1", "a:3", "-1:3"}) {
    expect_parts(message_of<UsageError>([&] { tee(value); }), {"--tee is '" + std::string(value) + "'"});
  }
}

TEST(OutputPlan, AFolderAloneAsksForAllFilesAndForNoPrefix) {
  EXPECT_EQ(files_of(tee("0", "logs")), "333");
  EXPECT_EQ(tee("0", "logs").ranks.at(1).prefix, "");
  EXPECT_EQ(files_of(tee("1:2", "logs")), "020");
}

TEST(OutputPlan, TeedLinesBeginWithRoleAndLocalRank) {
  const OutputPlan plan = plan_output("3", "", "trainer", 4, 2, kNoVariables);
  EXPECT_EQ(plan.ranks.at(0).prefix, "[trainer0]:");
  EXPECT_EQ(plan.ranks.at(1).prefix, "[trainer1]:");
  EXPECT_EQ(plan.ranks.at(1).rank, 5);
}

TEST(OutputPlan, ATemplateChoosesThePrefix) {
  const Environment environment = [](const std::string& name) -> std::optional<std::string> {
    if (name != "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") return std::nullopt;
    return "<${role_name} ${rank}/${local_rank} ${other} ${>";
  };
  EXPECT_EQ(plan_output("3", "", "r", 4, 2, environment).ranks.at(1).line_prefix(), "<r 5/1 ${other} ${>");
}

}  // namespace
}  // namespace accelerate
