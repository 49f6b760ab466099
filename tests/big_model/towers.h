#pragma once

#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <string>

#include "support/together.h"

/// Models that dispatch tests are made of.
namespace towers {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

/// An embedding, blocks, and a head that may be tied to the embedding; a buffer that scales the result, and a 0-dim parameter.
struct TowerImpl : torch::nn::Module {
  TowerImpl(int64_t vocabulary, int64_t width, int64_t depth, bool tied = false) {
    embedding = register_module("embedding", torch::nn::Embedding(vocabulary, width));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < depth; ++i) blocks->push_back(Block(width));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(width, vocabulary).bias(false)));
    scale = register_buffer("scale", torch::arange(1, vocabulary + 1).to(torch::kFloat) / vocabulary);
    temperature = register_parameter("temperature", torch::full({}, 0.75));
    if (tied) head->weight.set_data(embedding->weight);
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = embedding(tokens);
    for (auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x) * scale * temperature;
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear head{nullptr};
  torch::Tensor scale, temperature;
};
TORCH_MODULE(Tower);

/// A small model with weights, its checkpoint, and what it answers.
struct Saved {
  explicit Saved(bool tied = false) : tower(100, 32, 4, tied), tokens(torch::arange(12).reshape({2, 6})) {
    accelerate::save_weights(accelerate::state_dict(*tower), folder / "checkpoint", {.max_shard_size = "40KB"});
    torch::NoGradGuard no_grad;
    answer = tower->forward(tokens);
  }
  std::string checkpoint() const { return folder / "checkpoint"; }
  std::string offload() const { return folder / "offload"; }

  TemporaryFolder folder;
  mutable Tower tower;  // a holder that is const gives its module as const
  torch::Tensor tokens, answer;
};

inline Tower empty_tower(bool tied = false) {
  accelerate::InitEmptyWeights empty;
  return Tower(100, 32, 4, tied);
}

}  // namespace towers
