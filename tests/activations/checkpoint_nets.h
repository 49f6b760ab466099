#pragma once

#include <ATen/autocast_mode.h>
#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

/// Regions to checkpoint, and runs to compare.
namespace checkpoint_nets {

/// Layer norm, causal attention, dropout and an MLP.
struct AttentionBlockImpl : torch::nn::Module {
  explicit AttentionBlockImpl(int64_t width, double dropout = 0.25) : rate(dropout) {
    first_norm = register_module("first_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    second_norm = register_module("second_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }
  torch::Tensor forward(torch::Tensor x) {
    ++calls;
    const auto parts = qkv(first_norm(x)).chunk(3, -1);
    const auto split = [](const torch::Tensor& t) { return t.view({t.size(0), t.size(1), 2, -1}).transpose(1, 2); };
    auto mixed = torch::scaled_dot_product_attention(split(parts[0]), split(parts[1]), split(parts[2]), {}, 0.0, true);
    x = x + torch::dropout(out(mixed.transpose(1, 2).reshape(x.sizes())), rate, is_training());
    return x + down(torch::dropout(torch::gelu(up(second_norm(x))), rate, is_training()));
  }
  torch::nn::LayerNorm first_norm{nullptr}, second_norm{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  double rate;
  int calls = 0;
};
TORCH_MODULE(AttentionBlock);

/// A model that calls its blocks itself, through checkpoint or not.
struct BlockStackImpl : torch::nn::Module {
  BlockStackImpl(int64_t width, int64_t depth) {
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < depth; ++i) blocks->push_back(AttentionBlock(width));
    head = register_module("head", torch::nn::Linear(width, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& each : *blocks) {
      auto block = std::dynamic_pointer_cast<AttentionBlockImpl>(each->shared_from_this());
      x = is_checkpointed ? accelerate::checkpoint(options, block, x) : block->forward(x);
    }
    return head(x);
  }
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear head{nullptr};
  bool is_checkpointed = false;
  accelerate::CheckpointOptions options;
};
TORCH_MODULE(BlockStack);

inline torch::Tensor sequences(int64_t width = 8) {
  return torch::linspace(-1, 1, 2 * 5 * width).view({2, 5, width}).mul(7).sin();
}

/// A loss and the gradients of parameters, of a run that begins with the same random numbers as every other.
struct TrainingPass {
  TrainingPass(torch::nn::Module& module, const std::function<torch::Tensor()>& loss_of) {
    torch::manual_seed(11);
    module.zero_grad();
    loss = loss_of();
    loss.backward();
    for (const auto& parameter : module.named_parameters()) {
      gradients[parameter.key()] = parameter.value().grad().defined() ? parameter.value().grad().clone() : torch::Tensor();
    }
    next_number = torch::rand({1});
  }
  torch::Tensor loss, next_number;
  std::map<std::string, torch::Tensor> gradients;
};

inline void expect_same_pass(const TrainingPass& run, const TrainingPass& plain) {
  EXPECT_TRUE(torch::equal(run.loss, plain.loss));
  EXPECT_TRUE(torch::equal(run.next_number, plain.next_number)) << "random numbers were drawn, or lost";
  EXPECT_FALSE(plain.gradients.empty());
  for (const auto& [name, gradient] : plain.gradients) {
    const auto& mine = run.gradients.at(name);
    EXPECT_EQ(mine.defined(), gradient.defined()) << name;
    if (mine.defined() && gradient.defined()) {
      EXPECT_TRUE(torch::equal(mine, gradient)) << name;
    }
  }
}

/// Tells which storages of tensors somebody still has.
class WatchedStorages {
 public:
  torch::Tensor operator()(torch::Tensor tensor) {
    storages_.push_back(tensor.storage().getWeakStorageImpl());
    return tensor;
  }
  /// How many of them are alive.
  int64_t alive() const {
    int64_t count = 0;
    for (const auto& storage : storages_) count += storage.expired() ? 0 : 1;
    return count;
  }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

}  // namespace checkpoint_nets
