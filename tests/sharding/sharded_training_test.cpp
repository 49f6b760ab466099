#include "sharding/sharded_nets.h"
#include "support/error_text.h"

namespace {

using namespace sharded_nets;
using accelerate::BackwardPrefetch;
using accelerate::FsdpOptions;
using accelerate::ShardingStrategy;
using accelerate::testing::message_of;

class TogetherSharding : public Together {};

TEST_F(TogetherSharding, TwoRanksTrainToTheBitsOfDataParallelism) {
  // With two ranks there is one order in which gradients are added.
  const double tolerance = world() <= 2 ? 0 : 1e-5;
  for (const auto stepper : {Stepper::sgd, Stepper::momentum}) {
    const auto plain = train({.stepper = stepper});
    const auto sharded = train({.fsdp = by_block(), .stepper = stepper});
    expect_close(sharded, plain, tolerance);
  }
}

TEST_F(TogetherSharding, EveryStrategyAndWrapPolicyTrainsAsDataParallelismDoes) {
  const auto plain = train({.stepper = Stepper::momentum, .clip = 0.5});
  std::vector<FsdpOptions> kinds;
  kinds.push_back(by_block({.sharding_strategy = ShardingStrategy::shard_grad_op}));
  kinds.push_back(by_block({.sharding_strategy = ShardingStrategy::no_shard}));
  kinds.push_back(by_block({.reshard_after_forward = false}));
  kinds.push_back({});
  kinds.push_back({.min_num_params = 500});
  kinds.push_back(by_block({.backward_prefetch = BackwardPrefetch::backward_post, .forward_prefetch = false}));
  kinds.push_back(by_block({.backward_prefetch = BackwardPrefetch::no_prefetch, .limit_all_gathers = false}));
  kinds.push_back(by_block({.ignored_modules = {"blocks\\.1", "norm"}}));
  kinds.push_back(by_block({.cpu_offload = true}));
  kinds.push_back(by_block({.sharding_strategy = ShardingStrategy::hybrid_shard}));
  if (world() % 2 == 0) {
    kinds.push_back(by_block({.sharding_strategy = ShardingStrategy::hybrid_shard, .shard_group_size = 2}));
    kinds.push_back(by_block({.sharding_strategy = ShardingStrategy::hybrid_shard_zero2, .shard_group_size = world() / 2}));
  }
  for (const auto& fsdp : kinds) expect_close(train({.fsdp = fsdp, .stepper = Stepper::momentum, .clip = 0.5}), plain, 1e-5);
}

TEST_F(TogetherSharding, AccumulationAndFrozenWeightsAreThoseOfDataParallelism) {
  for (const bool freeze : {false, true}) {
    const RunOptions options{.stepper = Stepper::adamw, .steps = 4, .accumulation = 3, .clip = 1, .freeze = freeze};
    auto sharded = options;
    sharded.fsdp = by_block();
    expect_close(train(sharded), train(options), 1e-5);
  }
}

TEST_F(TogetherSharding, ActivationsThatAreComputedAgainChangeNoBit) {
  const auto run = [](bool again, bool is_sharded) {
    FsdpOptions fsdp = by_block({.activation_checkpointing = again});
    if (!is_sharded) fsdp.sharding_strategy = ShardingStrategy::no_shard;
    accelerate::Accelerator accelerator({.fsdp = fsdp, .timeout = std::chrono::seconds(60)});
    torch::manual_seed(4);
    torch::nn::Sequential net(torch::nn::Linear(6, 8), AttentionBlock(8), torch::nn::Dropout(0.2), AttentionBlock(8),
                              torch::nn::Linear(8, 1));
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 4; ++step) {
      torch::manual_seed(step * 10 + rank());
      accelerator.backward(model(torch::randn({2, 5, 6}, accelerator.device())).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    return accelerator.get_state_dict(model);
  };
  const auto expected = run(false, true);
  for (const bool is_sharded : {true, false}) {
    for (const auto& [name, tensor] : run(true, is_sharded)) {
      if (rank() != 0) continue;
      const double tolerance = is_sharded || world() <= 2 ? 0 : 1e-5;
      EXPECT_TRUE(torch::allclose(tensor.cpu(), expected.at(name).cpu(), tolerance, tolerance)) << name;
    }
  }
}

}  // namespace
