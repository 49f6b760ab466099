#include "launch/launch_flags.h"

#include <gtest/gtest.h>

#include <accelerate/core/error.h>
#include <algorithm>
#include <set>

#include "config/config_schema.h"
#include "config/python_text.h"
#include "launch/launch_arguments.h"
#include "support/error_text.h"

namespace accelerate {

using namespace detail;
namespace {

using testing::message_of;

/// A value that `flag` accepts, other than its default.
std::string some_value(const LaunchFlag& flag) {
  if (flag.choices != nullptr) return flag.choice_list().back();
  switch (flag.kind) {
    case FlagKind::integer:
      return "3";
    case FlagKind::number:
      return "2.5";
    case FlagKind::truth:
    case FlagKind::boolean:
    case FlagKind::bit:
      return "yes";
    case FlagKind::booleans:
      return "true,no,1";
    default:
      return "word";
  }
}

std::string refusal_of(const std::vector<std::string>& line) {
  return message_of<UsageError>([&] { parse_launch_arguments(line); });
}

TEST(LaunchFlags, NamesAndLettersAreUniqueAndEveryFlagIsExplained) {
  std::set<std::string> names;
  std::set<char> letters;
  for (const LaunchFlag& flag : launch_flags()) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
    EXPECT_TRUE(flag.letter == 0 || letters.insert(flag.letter).second) << flag.name;
    EXPECT_GT(std::string(flag.help).size(), 8u) << flag.name;
    EXPECT_EQ(find_launch_flag(flag.name), &flag);
  }
  EXPECT_EQ(find_launch_flag("no_such_flag"), nullptr);
  EXPECT_EQ(find_launch_flag('\0'), nullptr);
}

TEST(LaunchFlags, EveryFlagIsKnownInBothSpellingsAndWithAnEqualsSign) {
  for (const LaunchFlag& flag : launch_flags()) {
    std::string hyphens = flag.name;
    std::replace(hyphens.begin(), hyphens.end(), '_', '-');
    const std::string value = some_value(flag);
    std::vector<std::vector<std::string>> lines = {{"--" + std::string(flag.name)}, {"--" + hyphens}};
    if (flag.takes_value()) {
      lines = {{"--" + std::string(flag.name), value}, {"--" + hyphens, value}, {"--" + hyphens + "=" + value}};
    }
    const auto expected = value_of(parse_launch_arguments(lines.front()).settings, flag);
    for (auto& line : lines) {
      line.emplace_back("program");
      const LaunchArguments read = parse_launch_arguments(line);
      EXPECT_EQ(value_of(read.settings, flag), expected) << flag.name;
      EXPECT_TRUE(read.given.contains(flag.key())) << flag.name;
      EXPECT_EQ(read.settings.command, std::vector<std::string>{"program"}) << flag.name;
    }
  }
}

/// A line that gives `flag` something other than its default.
std::vector<std::string> line_with(const LaunchFlag& flag) {
  const std::string name = std::string("--") + flag.name;
  if (!flag.takes_value()) return {name};
  const bool same = flag.choices != nullptr && flag.fallback != nullptr && flag.fallback == flag.choice_list().back();
  if (same) return {name, flag.choice_list().front()};
  return {name, flag.fallback != nullptr && flag.fallback == std::string("true") ? "no" : some_value(flag)};
}

TEST(LaunchFlags, EachFlagSetsWhatItIsBoundToAndNothingElse) {
  const LaunchSettings before = parse_launch_arguments({}).settings;
  for (const LaunchFlag& flag : launch_flags()) {
    const LaunchSettings after = parse_launch_arguments(line_with(flag)).settings;
    const PythonValue value = value_of(after, flag);
    const bool only_choice = flag.choices != nullptr && flag.choice_list().size() == 1;
    if (value.is_null()) {
      EXPECT_TRUE(!flag.has_member() && flag.passed == PassedAs::nothing) << flag.name;
      EXPECT_EQ(after, before) << flag.name;
    } else {
      EXPECT_EQ(value == value_of(before, flag), only_choice || flag.kind == FlagKind::off) << flag.name;
      LaunchSettings expected = before;
      set_value(expected, flag, value);
      EXPECT_EQ(after, expected) << flag.name;
    }
  }
}

TEST(LaunchFlags, FlagsThatSetOneMemberHaveOneKey) {
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.has_member()) {
      EXPECT_EQ(key_of(flag.member), flag.key()) << flag.name;
    }
  }
}

TEST(LaunchFlags, ADefaultOfTheTableIsThatOfTheSettings) {
  const LaunchSettings settings = parse_launch_arguments({}).settings;
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.fallback == nullptr || flag.kind == FlagKind::booleans) continue;
    const std::string text = python_str(value_of(settings, flag));
    const bool is_off = (text == "False" || text == "0") && flag.fallback == std::string("false");
    const bool is_on = (text == "True" || text == "1") && flag.fallback == std::string("true");
    const bool has_effect = flag.has_member() || flag.passed != PassedAs::nothing;
    EXPECT_TRUE(!has_effect || is_off || is_on || text == flag.fallback || text == flag.fallback + std::string(".0"))
        << flag.name << ": " << text;
  }
}

TEST(LaunchFlags, WhatHasNoMemberIsPassedOnOrHasNoEffect) {
  for (const LaunchFlag& flag : launch_flags()) {
    const bool for_python = flag.group != FlagGroup::without_effect && flag.group != FlagGroup::tpu;
    EXPECT_TRUE(flag.has_member() || flag.passed != PassedAs::nothing || !for_python) << flag.name;
  }
}

TEST(LaunchFlags, KeysAtTheTopOfConfigFilesAndTheirSectionsExist) {
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.top_key) {
      EXPECT_NE(find_config_key(local_config_keys(), flag.key()), nullptr) << flag.name;
    }
  }
  for (const FlagGroupInfo& group : launch_flag_groups()) {
    if (group.section != nullptr) {
      EXPECT_NE(find_config_key(local_config_keys(), group.section), nullptr) << group.section;
    }
  }
}

TEST(LaunchFlags, ValuesBecomeWhatTheirKindSays) {
  const LaunchSettings settings =
      parse_launch_arguments({"--num_processes", "4", "--gradient_clipping", "1", "--fsdp_offload_params", "True",
                              "--megatron_lm_no_load_optim", "false", "--fp8_pad_inner_dim", "no",
                              "--fp8_override_linear_precision", "true,false,true", "--vm", "a", "--vm=b", "--cpu"})
          .settings;
  const auto value = [&](const char* name) { return value_of(settings, *find_launch_flag(name)); };
  EXPECT_EQ(settings.num_processes, 4);
  EXPECT_TRUE(value("gradient_clipping").is_number_float());
  EXPECT_EQ(value("fsdp_offload_params"), "True");
  EXPECT_EQ(value("megatron_lm_no_load_optim"), false);
  EXPECT_EQ(value("fp8_pad_inner_dim"), 0);
  EXPECT_EQ(settings.fp8_override_linear_precision, nlohmann::json::array({true, false, true}));
  EXPECT_TRUE(settings.cpu);
  EXPECT_FALSE(settings.multi_gpu);
  EXPECT_EQ(settings.num_machines, std::nullopt);
}

TEST(LaunchFlags, LettersMayBeJoinedAndCarryTheirValue) {
  for (const std::vector<std::string>& line :
       std::vector<std::vector<std::string>>{{"-q", "-m", "-t", "3", "x"}, {"-qmt3", "x"}, {"-qm", "-t=3", "x"}}) {
    const LaunchArguments read = parse_launch_arguments(line);
    EXPECT_TRUE(read.settings.quiet && read.settings.module);
    EXPECT_EQ(read.settings.tee, "3");
    EXPECT_EQ(read.settings.command, std::vector<std::string>{"x"});
  }
}

TEST(LaunchFlags, TheLastOfContradictingFlagsCounts) {
  EXPECT_FALSE(parse_launch_arguments({"--tpu_cluster", "--no_tpu_cluster"}).settings.tpu_use_cluster);
  EXPECT_TRUE(parse_launch_arguments({"--no_tpu_cluster", "--tpu_cluster"}).settings.tpu_use_cluster);
}

TEST(LaunchFlags, NegativeNumbersAreValues) {
  EXPECT_EQ(parse_launch_arguments({"--num_processes", "-1"}).settings.num_processes, -1);
}

TEST(LaunchFlags, WhatIsWrongIsNamed) {
  EXPECT_NE(refusal_of({"--mixed_precision", "int8"}).find("choose no, fp16, bf16 or fp8"), std::string::npos);
  EXPECT_NE(refusal_of({"--parallelism_config_cp_backend", "x"}).find("it can only be torch"), std::string::npos);
  EXPECT_NE(refusal_of({"--cpu=yes"}).find("--cpu takes no value"), std::string::npos);
  EXPECT_NE(refusal_of({"--num_processes", "--cpu"}).find("--num_processes needs a value, but --cpu follows it"),
            std::string::npos);
  EXPECT_NE(refusal_of({"--num_processes"}).find("nothing follows it"), std::string::npos);
  EXPECT_NE(refusal_of({"--fsdp-ofload-params", "true"}).find("The closest is --fsdp_offload_params"), std::string::npos);
  EXPECT_NE(refusal_of({"-x"}).find("no flag -x"), std::string::npos);
}

// Whether a help text has an entry for the flag.
bool explains(const std::string& help, const std::string& flag) {
  const auto at = [&](const std::string& end) {
    return help.find("  --" + flag + end) != std::string::npos || help.find(", --" + flag + end) != std::string::npos;
  };
  return at(" ") || at("\n");
}

TEST(LaunchFlags, TheWholeHelpExplainsEveryFlag) {
  const std::string help = launch_help({.all = true});
  for (const LaunchFlag& flag : launch_flags()) EXPECT_TRUE(explains(help, flag.name)) << flag.name;
  EXPECT_EQ(help.find("shows all"), std::string::npos);
}

TEST(LaunchFlags, HelpAloneLeavesOutWhatFewNeedAndSaysWhereThatIs) {
  const std::string help = launch_help({});
  for (const char* name : {"num_processes", "cpu", "multi_gpu", "mixed_precision", "machine_rank", "tee", "max_restarts"})
    EXPECT_TRUE(explains(help, name)) << name;
  for (const char* name : {"use_fsdp", "use_deepspeed"}) EXPECT_TRUE(explains(help, name)) << name;
  for (const char* name : {"zero_stage", "dynamo_mode", "fsdp_version", "megatron_lm_tp_degree", "fp8_format", "tpu",
                           "aws_access_key_id", "rdzv_endpoint", "nproc_per_node"})
    EXPECT_FALSE(explains(help, name)) << name;
  EXPECT_NE(help.find("accelerate launch --help-all"), std::string::npos);
  EXPECT_LT(std::count(help.begin(), help.end(), '\n'), 70) << "it fits on a screen or two";
}

TEST(LaunchFlags, HelpBesideOtherFlagsShowsWhatMattersToThem) {
  const auto asked = asked_help({"--use_fsdp", "--num_processes", "2", "-h", "program", "--use_deepspeed"});
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->flags, (std::vector<std::string>{"use_fsdp", "num_processes"}));
  const std::string help = launch_help(*asked);
  EXPECT_NE(help.find("\nFSDP:"), std::string::npos);
  EXPECT_NE(help.find("--fsdp_version"), std::string::npos);
  EXPECT_EQ(help.find("--zero_stage"), std::string::npos);
  EXPECT_EQ(help.find("--megatron_lm_tp_degree"), std::string::npos);
  EXPECT_NE(help.find("--help-all` shows all"), std::string::npos);
}

TEST(LaunchFlags, HelpIsFoundBehindLettersThatTakeAValue) {
  EXPECT_TRUE(asked_help({"-n", "2", "--help"}));
  EXPECT_TRUE(asked_help({"-np", "2", "-t", "3", "--help"}));
  for (const char* word : {"--help-all", "--help_all"}) EXPECT_TRUE(asked_help({"-q", word})->all);
}

TEST(LaunchFlags, NamesOfTorchrunAndMpirunAreUnderstood) {
  const LaunchSettings read = parse_launch_arguments({"--nnodes=2", "--node-rank", "1", "--master_addr", "host", "--master-port",
                                                      "29501", "--nproc-per-node=4", "--standalone", "train"})
                                  .settings;
  EXPECT_EQ(read.num_machines, 2);
  EXPECT_EQ(read.machine_rank, 1);
  EXPECT_EQ(read.main_process_ip, "host");
  EXPECT_EQ(read.main_process_port, 29501);
  EXPECT_EQ(read.nproc_per_node, "4");
  EXPECT_EQ(read.command, std::vector<std::string>{"train"});
  for (const std::vector<std::string>& line :
       std::vector<std::vector<std::string>>{{"-n", "3", "x"}, {"-n3", "x"}, {"-np", "3", "x"}, {"--np", "3", "x"}}) {
    EXPECT_EQ(parse_launch_arguments(line).settings.num_processes, 3) << line.front();
  }
  for (const char* flag : {"--nnodes", "--num_machines"}) {
    const LaunchSettings range = parse_launch_arguments({flag, "1:4", "x"}).settings;
    EXPECT_EQ(range.min_machines, 1) << flag;
    EXPECT_EQ(range.num_machines, 4) << flag;
  }
}

TEST(LaunchFlags, NamesOfOtherLaunchersThatAreNotTakenSayWhatToGiveInstead) {
  EXPECT_NE(refusal_of({"--num_gpus", "2"}).find("--num_processes"), std::string::npos);
  EXPECT_NE(refusal_of({"-r", "3"}).find("--log_dir"), std::string::npos);
}

TEST(LaunchFlags, AHintIsGivenOnlyWhenItIsClose) {
  EXPECT_NE(refusal_of({"--num_proceses", "2"}).find("The closest is --num_processes;"), std::string::npos);
  EXPECT_NE(refusal_of({"--mixed", "no"}).find("The closest is --mixed_precision;"), std::string::npos);
  for (const char* far : {"--batch_size", "--epochs", "--lr", "-x", "--no_such_flag"})
    EXPECT_EQ(refusal_of({far}).find("closest"), std::string::npos) << refusal_of({far});
}

TEST(LaunchFlags, HelpThatTheProgramIsAskedForIsNotOurs) {
  EXPECT_FALSE(asked_help({"--cpu", "program", "--help"}));
  EXPECT_FALSE(asked_help({"--role", "-h", "program"}));
  EXPECT_FALSE(asked_help({"-n", "2", "program", "--help-all"}));
}

}  // namespace
}  // namespace accelerate
