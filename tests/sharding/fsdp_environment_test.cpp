#include "sharding/fsdp_environment.h"

#include <accelerate/core/error.h>
#include <gtest/gtest.h>

#include <map>

#include "support/error_text.h"

namespace {

using accelerate::BackwardPrefetch;
using accelerate::ConfigError;
using accelerate::FsdpOptions;
using accelerate::ShardingStrategy;
using accelerate::StateDictType;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;
using FsdpVariables = std::map<std::string, std::string>;

std::optional<FsdpOptions> fsdp_read(FsdpVariables table) {
  table.emplace("ACCELERATE_USE_FSDP", "true");
  table.emplace("ACCELERATE_LOG_LEVEL", "critical");
  return accelerate::detail::fsdp_options_from([table = std::move(table)](const std::string& name) -> std::optional<std::string> {
    const auto found = table.find(name);
    return found == table.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string fsdp_refusal(const FsdpVariables& table) {
  return message_of<ConfigError>([&] { fsdp_read(table); });
}

TEST(FsdpEnvironment, NothingIsReadUnlessTheRunUsesFsdp) {
  EXPECT_EQ(fsdp_read({{"ACCELERATE_USE_FSDP", "false"}, {"FSDP_VERSION", "nine"}}), std::nullopt);
  const auto nothing = [](const std::string&) { return std::optional<std::string>(); };
  EXPECT_EQ(accelerate::detail::fsdp_options_from(nothing), std::nullopt);
}

TEST(FsdpEnvironment, WithoutVariablesTheDefaultsOfTheOptionsHold) { EXPECT_EQ(fsdp_read({}), FsdpOptions{}); }

TEST(FsdpEnvironment, EveryVariableOfVersion1ReachesItsOption) {
  const auto options = fsdp_read({{"FSDP_SHARDING_STRATEGY", "5"},
                                  {"FSDP_OFFLOAD_PARAMS", "yes"},
                                  {"FSDP_BACKWARD_PREFETCH", "backward_post"},
                                  {"FSDP_FORWARD_PREFETCH", "false"},
                                  {"FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT"},
                                  {"FSDP_AUTO_WRAP_POLICY", "transformer_based_wrap"},
                                  {"FSDP_TRANSFORMER_CLS_TO_WRAP", "Block, Head"},
                                  {"FSDP_IGNORED_MODULES", "head\\d"},
                                  {"FSDP_ACTIVATION_CHECKPOINTING", "1"},
                                  {"FSDP_SYNC_MODULE_STATES", "false"}});
  const FsdpOptions expected{.sharding_strategy = ShardingStrategy::hybrid_shard_zero2,
                             .transformer_layer_classes = {"Block", "Head"},
                             .ignored_modules = {"head\\d"},
                             .backward_prefetch = BackwardPrefetch::backward_post,
                             .forward_prefetch = false,
                             .cpu_offload = true,
                             .sync_module_states = false,
                             .state_dict_type = StateDictType::sharded,
                             .activation_checkpointing = true};
  EXPECT_EQ(options, expected);
}

TEST(FsdpEnvironment, Version2ReadsReshardAfterForwardAndNoStrategy) {
  const auto options = fsdp_read({{"FSDP_VERSION", "2"},
                                  {"FSDP_RESHARD_AFTER_FORWARD", "false"},
                                  {"FSDP_SHARDING_STRATEGY", "NO_SHARD"},
                                  {"FSDP_BACKWARD_PREFETCH", "BACKWARD_POST"},
                                  {"FSDP_FORWARD_PREFETCH", "false"},
                                  {"FSDP_SYNC_MODULE_STATES", "false"},
                                  {"FSDP_ACTIVATION_CHECKPOINTING", "true"},
                                  {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "true"}});
  const FsdpOptions expected{.sharding_strategy = ShardingStrategy::shard_grad_op,
                             .reshard_after_forward = false,
                             .activation_checkpointing = true,
                             .activation_checkpointing_offload = true,
                             .version = 2};
  EXPECT_EQ(options, expected);
}

TEST(FsdpEnvironment, SizesOfUnitsAreReadForTheirPolicyAlone) {
  EXPECT_EQ(fsdp_read({{"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"}, {"FSDP_MIN_NUM_PARAMS", "5000000000"}})->min_num_params,
            5000000000);
  EXPECT_EQ(fsdp_read({{"FSDP_MIN_NUM_PARAMS", "many"}})->min_num_params, 0);
  EXPECT_TRUE(fsdp_read({{"FSDP_TRANSFORMER_CLS_TO_WRAP", "Block"}})->transformer_layer_classes.empty());
}

TEST(FsdpEnvironment, WeightsThatOnlyRank0LoadsAreBroadcastWhateverElseIsSaid) {
  EXPECT_TRUE(fsdp_read({{"FSDP_CPU_RAM_EFFICIENT_LOADING", "true"}, {"FSDP_SYNC_MODULE_STATES", "false"}})->sync_module_states);
}

TEST(FsdpEnvironment, ARefusalNamesTheVariableItsValueAndWhatIsExpected) {
  struct Refusal {
    FsdpVariables variables;
    std::initializer_list<std::string> parts;
  };
  const Refusal cases[] = {
      {{{"FSDP_VERSION", "3"}}, {"FSDP_VERSION=3", "1 or 2"}},
      {{{"FSDP_SHARDING_STRATEGY", "6"}}, {"FSDP_SHARDING_STRATEGY=6", "HYBRID_SHARD_ZERO2", "1 to 5"}},
      {{{"FSDP_BACKWARD_PREFETCH", "3"}}, {"FSDP_BACKWARD_PREFETCH=3", "NO_PREFETCH", "1 to 2"}},
      {{{"FSDP_STATE_DICT_TYPE", "LOCAL_STATE_DICT"}}, {"FSDP_STATE_DICT_TYPE=LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}},
      {{{"FSDP_AUTO_WRAP_POLICY", "1"}}, {"FSDP_AUTO_WRAP_POLICY=1", "SIZE_BASED_WRAP"}},
      {{{"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"}}, {"FSDP_TRANSFORMER_CLS_TO_WRAP"}},
      {{{"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"}, {"FSDP_TRANSFORMER_CLS_TO_WRAP", "Block,"}},
       {"FSDP_TRANSFORMER_CLS_TO_WRAP=Block,"}},
      {{{"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"}, {"FSDP_MIN_NUM_PARAMS", "-1"}}, {"FSDP_MIN_NUM_PARAMS=-1", "at least 0"}},
      {{{"FSDP_OFFLOAD_PARAMS", ""}}, {"FSDP_OFFLOAD_PARAMS="}},
      {{{"FSDP_USE_ORIG_PARAMS", "perhaps"}}, {"FSDP_USE_ORIG_PARAMS=perhaps"}},
      {{{"FSDP_IGNORED_MODULES", "("}}, {"FSDP_IGNORED_MODULES=(", "regular expression"}},
      {{{"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "1"}}, {"FSDP_ACTIVATION_CHECKPOINTING is true"}},
      {{{"FSDP_ACTIVATION_CHECKPOINTING", "1"}, {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "1"}}, {"FSDP_VERSION is 2"}}};
  for (const auto& c : cases) expect_parts(fsdp_refusal(c.variables), c.parts);
}

FsdpVariables with_sizes(const std::string& replicate, const std::string& shard, const std::string& processes) {
  return {{"FSDP_VERSION", "2"},
          {"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
          {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE", replicate},
          {"PARALLELISM_CONFIG_DP_SHARD_SIZE", shard},
          {"RANK", "0"},
          {"WORLD_SIZE", processes},
          {"LOCAL_RANK", "0"},
          {"LOCAL_WORLD_SIZE", processes}};
}

TEST(ParallelismSizes, ReplicasOfShardsAreHybridSharding) {
  auto options = fsdp_read(with_sizes("2", "3", "6"));
  EXPECT_EQ(options->sharding_strategy, ShardingStrategy::hybrid_shard);
  EXPECT_EQ(options->shard_group_size, 3);
  auto table = with_sizes("2", "3", "6");
  table["FSDP_RESHARD_AFTER_FORWARD"] = "false";
  EXPECT_EQ(fsdp_read(table)->sharding_strategy, ShardingStrategy::hybrid_shard_zero2);
  options = fsdp_read(with_sizes("1", "4", "4"));
  EXPECT_EQ(options->sharding_strategy, ShardingStrategy::full_shard);
  EXPECT_EQ(options->shard_group_size, 0);
  EXPECT_EQ(fsdp_read(with_sizes("1", "1", "1"))->sharding_strategy, ShardingStrategy::full_shard);
}

TEST(ParallelismSizes, SizesThatDoNotFitAreRefusedByName) {
  expect_parts(fsdp_refusal(with_sizes("2", "3", "4")),
               {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE=2", "PARALLELISM_CONFIG_DP_SHARD_SIZE=3", "number of processes, 4"});
  expect_parts(fsdp_refusal(with_sizes("0", "4", "4")), {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE=0", "at least 1"});
  expect_parts(fsdp_refusal(with_sizes("2", "1", "2")), {"PARALLELISM_CONFIG_DP_SHARD_SIZE=1"});
  expect_parts(fsdp_refusal(with_sizes("1", "1", "2")), {"PARALLELISM_CONFIG_DP_SHARD_SIZE=1"});
  auto table = with_sizes("2", "2", "4");
  table["FSDP_VERSION"] = "1";
  expect_parts(fsdp_refusal(table), {"FSDP_VERSION=1", "expected 2"});
  for (const char* name : {"TP", "CP", "SP"}) {
    table = with_sizes("1", "2", "4");
    table["PARALLELISM_CONFIG_" + std::string(name) + "_SIZE"] = "2";
    expect_parts(fsdp_refusal(table), {"PARALLELISM_CONFIG_" + std::string(name) + "_SIZE=2", "parallelism", "not support"});
  }
  table = with_sizes("1", "2", "2");
  table["PARALLELISM_CONFIG_CP_BACKEND"] = "ring";
  expect_parts(fsdp_refusal(table), {"PARALLELISM_CONFIG_CP_BACKEND=ring", "torch"});
}

}  // namespace
