#include "sharding/sharded_nets.h"
#include "support/error_text.h"
#include "support/variables.h"

namespace {

using namespace sharded_nets;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;
using accelerate::testing::Variables;

class TogetherShardedSettings : public Together {
 protected:
  /// What a rank holds of a model, in parts of the whole.
  static double share_of(const accelerate::AcceleratorOptions& options = {.timeout = std::chrono::seconds(60)}) {
    accelerate::Accelerator run(options);
    torch::nn::Linear net(64, 64);
    auto model = run.prepare(net);
    return static_cast<double>(model.local_parameter_bytes()) / static_cast<double>(model.total_parameter_bytes());
  }
};

TEST_F(TogetherShardedSettings, VariablesOfFsdpShardAModelAndThoseOfTheProgramWin) {
  const Variables variables({{"ACCELERATE_USE_FSDP", "true"}, {"FSDP_SHARDING_STRATEGY", "FULL_SHARD"}, {"FSDP_VERSION", "1"}});
  EXPECT_NEAR(share_of(), 1.0 / world(), 0.02);
  EXPECT_EQ(share_of({.fsdp = accelerate::FsdpOptions{.sharding_strategy = accelerate::ShardingStrategy::no_shard},
                      .timeout = std::chrono::seconds(60)}),
            1.0);
}

TEST_F(TogetherShardedSettings, TheDtypeOfWeightsIsTheSameOnAnyNumberOfRanks) {
  for (const auto strategy : {accelerate::ShardingStrategy::full_shard, accelerate::ShardingStrategy::no_shard}) {
    accelerate::Accelerator run(
        {.fsdp = accelerate::FsdpOptions{.sharding_strategy = strategy,
                                         .mixed_precision = accelerate::FsdpMixedPrecision{.param_dtype = torch::kBFloat16}},
         .timeout = std::chrono::seconds(60)});
    torch::manual_seed(1);
    torch::nn::Linear net(64, 64);
    auto model = run.prepare(net);
    torch::NoGradGuard no_grad;
    const auto output = model(torch::randn({4, 64}).to(run.device())).to(torch::kFloat);
    EXPECT_TRUE(torch::equal(output, output.to(torch::kBFloat16).to(torch::kFloat))) << to_string(strategy);
  }
}

TEST_F(TogetherShardedSettings, KeysOfDeepSpeedShardClipAndAccumulate) {
  const auto plain = train({.stepper = Stepper::momentum, .steps = 3, .accumulation = 2, .clip = 0.3});
  const Variables variables({{"ACCELERATE_USE_DEEPSPEED", "true"},
                             {"ACCELERATE_DEEPSPEED_CONFIG_FILE",
                              R"({"zero_optimization": {"stage": 3}, "gradient_clipping": 0.3, "gradient_accumulation_steps": 2,
                                  "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"})"}});
  EXPECT_NEAR(share_of(), 1.0 / world(), 0.02);
  // The loop neither clips nor says how many batches it adds up.
  auto sharded = train({.stepper = Stepper::momentum, .steps = 6});
  expect_close(sharded, plain, 1e-5);
}

TEST_F(TogetherShardedSettings, AScalerSkipsOnAllRanksAStepThatOverflowsInOneShard) {
  auto shard = torch::ones({4}, torch::requires_grad());
  torch::optim::SGD sgd({shard}, 0.1);
  accelerate::GradScaler scaler({.init_scale = 4});
  scaler.reduce_found_inf(sgd, [](at::Tensor& found) { found = accelerator().reduce(found, accelerate::Reduction::max); });
  for (int step = 0; step < 3; ++step) {
    shard.mutable_grad() = torch::ones({4});
    scaler.scale(torch::ones({}));
    if (step == 1 && rank() == world() - 1) shard.mutable_grad()[3] = INFINITY;
    EXPECT_EQ(scaler.step(sgd), step != 1) << step;
    scaler.update();
  }
  EXPECT_NEAR(shard[0].item<double>(), 1 - 0.1 / 4 - 0.1 / 2, 1e-6) << "the factor was halved everywhere";
}

TEST_F(TogetherShardedSettings, WhatCannotBeIsRefusedByName) {
  const auto refusal = [](std::map<std::string, std::string> variables) {
    const Variables set(std::move(variables));
    return message_of<accelerate::ConfigError>([] { accelerate::Accelerator refused; });
  };
  expect_parts(refusal({{"ACCELERATE_USE_FSDP", "true"}, {"FSDP_SHARDING_STRATEGY", "SOME_SHARD"}}),
               {"FSDP_SHARDING_STRATEGY", "SOME_SHARD"});
  expect_parts(refusal({{"ACCELERATE_USE_DEEPSPEED", "true"}, {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme"}}),
               {"nvme_path"});
  expect_parts(refusal({{"ACCELERATE_USE_FSDP", "true"},
                        {"FSDP_VERSION", "2"},
                        {"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
                        {"PARALLELISM_CONFIG_TP_SIZE", "2"}}),
               {"PARALLELISM_CONFIG_TP_SIZE"});
  const auto uneven = message_of<accelerate::UsageError>([] {
    accelerate::Accelerator run({.fsdp = accelerate::FsdpOptions{.sharding_strategy = accelerate::ShardingStrategy::hybrid_shard,
                                                                 .shard_group_size = world() + 1},
                                 .timeout = std::chrono::seconds(60)});
    torch::nn::Linear net(2, 2);
    run.prepare(net);
  });
  if (world() > 1) expect_parts(uneven, {"shard_group_size"});
}

}  // namespace
