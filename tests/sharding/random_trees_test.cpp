#include <cstdlib>
#include <random>

#include "sharding/sharded_nets.h"

namespace {

using namespace sharded_nets;
using accelerate::FsdpOptions;
using accelerate::ShardingStrategy;

/// A block that calls its children in another order than it registers them, some twice, one perhaps never.
struct RandomBlockImpl : torch::nn::Module {
  RandomBlockImpl(int depth, int64_t width, std::mt19937& random) {
    const int children = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < children; ++i) {
      const std::string name = "part" + std::to_string(i);
      if (depth > 0 && random() % 2 == 0) {
        parts.push_back(register_module(name, std::make_shared<RandomBlockImpl>(depth - 1, width, random)));
      } else if (random() % 3 == 0) {
        norms.emplace(i, register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}))));
        parts.push_back(nullptr);
      } else {
        const bool bias = random() % 2 == 0;
        linears.emplace(i, register_module(name, torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(bias))));
        parts.push_back(nullptr);
      }
      order.push_back(i);
    }
    std::shuffle(order.begin(), order.end(), random);
    if (random() % 3 == 0) order.push_back(order.front());
    if (random() % 4 == 0) scale = register_parameter("scale", torch::ones({1}));
    if (random() % 6 == 0) register_parameter("never", torch::ones({static_cast<int64_t>(1 + random() % 5)}));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const int i : order) {
      const auto y = parts[static_cast<size_t>(i)] ? parts[static_cast<size_t>(i)]->forward(x)
                     : norms.contains(i)           ? norms.at(i)->forward(x)
                                                   : torch::tanh(linears.at(i)->forward(x));
      x = scale.defined() ? x + y * scale : x + y;
    }
    return x;
  }
  std::vector<std::shared_ptr<RandomBlockImpl>> parts;
  std::map<int, torch::nn::LayerNorm> norms;
  std::map<int, torch::nn::Linear> linears;
  std::vector<int> order;
  torch::Tensor scale;
};
TORCH_MODULE(RandomBlock);

/// One with a first layer that is always trained.
struct RandomNetImpl : torch::nn::Module {
  explicit RandomNetImpl(std::mt19937& random) : width(static_cast<int64_t>(3 + random() % 9)) {
    stem = register_module("stem", torch::nn::Linear(width, width));
    body = register_module("body", RandomBlock(2, width, random));
    if (random() % 3 == 0) body->parameters().front().set_requires_grad(false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return body(stem(x)); }
  bool has_unused() const {
    const auto named = named_parameters();
    return std::any_of(named.begin(), named.end(), [](const auto& item) { return item.key().ends_with("never"); });
  }
  int64_t width;
  torch::nn::Linear stem{nullptr};
  RandomBlock body{nullptr};
};
TORCH_MODULE(RandomNet);

FsdpOptions random_options(std::mt19937& random, int ranks) {
  using enum ShardingStrategy;
  FsdpOptions options;
  options.sharding_strategy = std::array{full_shard, full_shard, shard_grad_op, hybrid_shard}[random() % 4];
  if (options.sharding_strategy == hybrid_shard)
    options.shard_group_size = ranks % 2 == 0 && random() % 2 == 0 ? ranks / 2 : ranks;
  switch (random() % 3) {
    case 0:
      options.transformer_layer_classes = {"RandomBlock"};
      break;
    case 1:
      options.min_num_params = static_cast<int64_t>(50 + random() % 400);
      break;
    default:
      break;
  }
  options.forward_prefetch = random() % 2 == 0;
  options.backward_prefetch = static_cast<accelerate::BackwardPrefetch>(random() % 3);
  options.limit_all_gathers = random() % 2 == 0;
  options.cpu_offload = random() % 4 == 0;
  return options;
}

class TogetherRandomTrees : public Together {
 protected:
  static accelerate::TensorDict weights_of_run(unsigned seed, const std::optional<FsdpOptions>& fsdp, int accumulation,
                                               bool clips) {
    std::mt19937 random(seed);
    torch::manual_seed(static_cast<int64_t>(seed));
    RandomNet net(random);
    accelerate::Accelerator run({.gradient_accumulation_steps = accumulation,
                                 .ddp = {.find_unused_parameters = net->has_unused()},
                                 .fsdp = fsdp,
                                 .timeout = std::chrono::seconds(60)});
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(0.1));
    auto [model, optimizer] = run.prepare(net, sgd);
    for (int step = 0; step < 3 * accumulation; ++step) {
      auto scope = run.accumulate(model);
      torch::manual_seed(step * 100 + run.process_index());
      run.backward(torch::tanh(model(torch::randn({2, net->width}, run.device()))).mean());  // bounded, however deep the tree
      if (clips && run.sync_gradients()) run.clip_grad_norm_(model.parameters(), 0.5);
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerate::TensorDict weights;
    for (const auto& [name, tensor] : run.get_state_dict(model)) weights[name] = tensor.cpu().clone();
    return weights;
  }
};

TEST_F(TogetherRandomTrees, AnyModuleShardedInAnyWayTrainsAsItDoesWhole) {
  const char* count = std::getenv("ACCELERATE_TEST_TREES");
  const unsigned trees = count ? static_cast<unsigned>(std::atoi(count)) : 5;
  for (unsigned seed = 0; seed < trees; ++seed) {
    std::mt19937 random(seed + 1000);
    const auto options = random_options(random, world());
    const int accumulation = random() % 3 == 0 ? 2 : 1;
    const bool clips = random() % 2 == 0;
    const auto expected = weights_of_run(seed, std::nullopt, accumulation, clips);
    const auto found = weights_of_run(seed, options, accumulation, clips);
    if (rank() != 0) continue;
    EXPECT_EQ(found.size(), expected.size()) << "tree " << seed;
    for (const auto& [name, tensor] : found)
      EXPECT_TRUE(torch::allclose(tensor, expected.at(name), 1e-4, 1e-5)) << "tree " << seed << ", " << name;
  }
}

}  // namespace
