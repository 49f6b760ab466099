#include "config/fsdp2_conversion.h"

#include <accelerate/core/error.h>
#include <gtest/gtest.h>

#include <fstream>

#include "config/config_file.h"
#include "support/error_text.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

using nlohmann::json;

json converted_section(const json& section) { return to_fsdp2({{"fsdp_config", section}}, "f").config["fsdp_config"]; }

std::string text_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ProgramResult to_fsdp2_command(std::vector<std::string> words) {
  words.insert(words.begin(), {ACCELERATE_CLI, "to-fsdp2"});
  return run_program(words);
}

TEST(ToFsdp2, KeysBecomeThoseOfVersion2AndOthersStay) {
  const json section = {{"fsdp_sharding_strategy", "SHARD_GRAD_OP"},
                        {"fsdp_backward_prefetch", "BACKWARD_PRE"},
                        {"fsdp_forward_prefetch", false},
                        {"fsdp_sync_module_states", true},
                        {"fsdp_use_orig_params", true},
                        {"fsdp_version", 1},
                        {"fsdp_offload_params", true},
                        {"mine", {{"a", 1}}}};
  const auto conversion = to_fsdp2({{"fsdp_config", section}, {"num_processes", 2}}, "f");
  EXPECT_EQ(
      conversion.config,
      (json{{"fsdp_config",
             {{"fsdp_offload_params", true}, {"fsdp_reshard_after_forward", false}, {"fsdp_version", 2}, {"mine", {{"a", 1}}}}},
            {"num_processes", 2}}));
  ASSERT_EQ(conversion.notes.size(), 4u);
  EXPECT_NE(conversion.notes[0].find("fsdp_backward_prefetch is left out"), std::string::npos);
}

TEST(ToFsdp2, EveryStrategyHasItsResharding) {
  for (const char* key : {"fsdp_sharding_strategy", "fsdp_reshard_after_forward"}) {
    for (const char* name : {"FULL_SHARD", "HYBRID_SHARD"})
      EXPECT_EQ(converted_section({{key, name}})["fsdp_reshard_after_forward"], true) << name;
    for (const char* name : {"SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "NO_SHARD"})
      EXPECT_EQ(converted_section({{key, name}})["fsdp_reshard_after_forward"], false) << name;
    EXPECT_EQ(converted_section({{key, "full_shard"}})["fsdp_reshard_after_forward"], "full_shard") << "as in Python";
  }
}

TEST(ToFsdp2, AFileThatNeedsNoConversionStaysAsItIs) {
  for (const json& section : {json(), json::object(), json({{"fsdp_version", 2}, {"fsdp_use_orig_params", true}})}) {
    const json config = {{"fsdp_config", section}};
    const auto conversion = to_fsdp2(config, "f");
    EXPECT_EQ(conversion.config, config);
    EXPECT_EQ(conversion.notes.size(), 1u);
  }
  EXPECT_NE(message_of<ConfigError>([] {
              to_fsdp2({{"fsdp_config", "yes"}}, "f.yaml");
            }).find("f.yaml: fsdp_config"),
            std::string::npos);
}

TEST(ToFsdp2Command, WritesWhereItIsToldAndNothingElse) {
  const TemporaryFolder folder;
  const std::string before = "fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n";
  const std::string after = "fsdp_config:\n  fsdp_reshard_after_forward: true\n  fsdp_version: 2\n";
  std::ofstream(folder / "a.yaml") << before;
  EXPECT_EQ(to_fsdp2_command({"--config_file", folder / "a.yaml"}).exit_code, 2);
  EXPECT_EQ(to_fsdp2_command({"--output_file", folder / "b.yaml"}).exit_code, 2);
  EXPECT_EQ(to_fsdp2_command({"--config_file", folder / "none.yaml", "--overwrite"}).exit_code, 1);
  EXPECT_EQ(to_fsdp2_command({"--config_file", folder / "a.yaml", "--output_file", folder / "b.yaml"}).exit_code, 0);
  EXPECT_EQ(text_of_file(folder / "a.yaml"), before);
  EXPECT_EQ(text_of_file(folder / "b.yaml"), after);
  const auto again = to_fsdp2_command({"--config_file", folder / "a.yaml", "--output_file", folder / "b.yaml"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.errors.find("--overwrite"), std::string::npos) << again.errors;
  EXPECT_EQ(to_fsdp2_command({"--config_file", folder / "a.yaml", "--overwrite"}).exit_code, 0);
  EXPECT_EQ(text_of_file(folder / "a.yaml"), after);
  const auto twice = to_fsdp2_command({"--config_file", folder / "a.yaml", "--overwrite"});
  EXPECT_EQ(twice.exit_code, 0);
  EXPECT_NE(twice.errors.find("fsdp_version is 2 already"), std::string::npos) << twice.errors;
  EXPECT_EQ(text_of_file(folder / "a.yaml"), after);
  std::ofstream(folder / "empty.yaml") << "";
  EXPECT_EQ(to_fsdp2_command({"--config_file", folder / "empty.yaml", "--overwrite"}).exit_code, 1);
}

}  // namespace
}  // namespace accelerate::testing
