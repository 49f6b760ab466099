#include "sharding/sharded_nets.h"

namespace {

using namespace sharded_nets;
using accelerate::FsdpOptions;
using accelerate::ShardingStrategy;

class TogetherSharding : public Together {};

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
