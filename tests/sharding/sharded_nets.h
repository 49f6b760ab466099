#pragma once

#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <functional>

#include "support/together.h"

/// Small models, and runs of them that are sharded or not.
namespace sharded_nets {

struct AttentionBlockImpl : torch::nn::Module {
  explicit AttentionBlockImpl(int64_t width) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(torch::nn::LinearOptions(width, 3 * width).bias(false)));
    out = register_module("out", torch::nn::Linear(width, width));
    up = register_module("up", torch::nn::Linear(width, 2 * width));
    down = register_module("down", torch::nn::Linear(2 * width, width));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = qkv(norm(x)).chunk(3, -1);
    const auto attended = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    const auto y = x + out(attended);
    return y + down(torch::gelu(up(y)));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(AttentionBlock);

/// A language model whose head is its embedding, with a weight that does not lie in the order of its indices, and a buffer.
struct TinyGptImpl : torch::nn::Module {
  explicit TinyGptImpl(int64_t vocabulary = 23, int64_t width = 12, int layers = 3) {
    embedding = register_module("embedding", torch::nn::Embedding(vocabulary, width));
    for (int i = 0; i < layers; ++i) blocks->push_back(AttentionBlock(width));
    register_module("blocks", blocks);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    scale = register_buffer("scale", torch::full({1}, 0.5));
    auto& weight = blocks[0]->as<AttentionBlock>()->up->weight;
    weight.set_data(weight.detach().t().contiguous().t());
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    auto x = embedding(ids);
    for (const auto& each : *blocks) {
      const auto block = std::dynamic_pointer_cast<AttentionBlockImpl>(each);
      x = checkpoints ? accelerate::checkpoint(block, x) : block->forward(x);
    }
    return torch::matmul(norm(x) * scale, embedding->weight.t());
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::Tensor scale;
  bool checkpoints = false;  // activations
};
TORCH_MODULE(TinyGpt);

/// The batch of a step: the same rows whatever the number of ranks, divided among them, on the device of the run.
inline torch::Tensor batch(const accelerate::Accelerator& accelerator, int step, int rows_each = 2) {
  const auto all = (torch::arange(64 * 8).view({64, 8}) * 7 + step * 13).remainder(23);
  return all.narrow(0, (accelerator.process_index() * rows_each) % 48, rows_each).to(accelerator.device());
}

enum class Stepper { sgd, momentum, adamw };

struct RunOptions {
  std::optional<accelerate::FsdpOptions> fsdp = {};
  Stepper stepper = Stepper::sgd;
  int steps = 6;
  int accumulation = 1;
  double clip = 0;
  bool freeze = false;
  bool checkpoints = false;
  std::optional<accelerate::Precision> precision = {};
  std::optional<accelerate::CommHook> comm_hook = {};
};

struct RunResult {
  std::vector<double> losses;
  accelerate::TensorDict weights;  // on the main process
};

template <class M>
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const M& net, Stepper stepper) {
  using namespace torch::optim;
  if (stepper == Stepper::adamw) return std::make_unique<AdamW>(net->parameters(), AdamWOptions(1e-2));
  return std::make_unique<SGD>(net->parameters(), SGDOptions(0.1).momentum(stepper == Stepper::momentum ? 0.9 : 0));
}

inline double mean_over_ranks(const accelerate::Accelerator& accelerator, const torch::Tensor& loss) {
  return accelerator.reduce(loss.detach().to(torch::kDouble), accelerate::Reduction::mean).template item<double>();
}

inline accelerate::FsdpOptions by_block(accelerate::FsdpOptions options = {}) {
  options.transformer_layer_classes = {"AttentionBlock"};
  return options;
}

/// Trains a TinyGpt on all ranks.
inline RunResult train(const RunOptions& options) {
  accelerate::AcceleratorOptions how{.mixed_precision = options.precision,
                                     .gradient_accumulation_steps = options.accumulation,
                                     .fsdp = options.fsdp,
                                     .timeout = std::chrono::seconds(60)};
  if (options.comm_hook) how.ddp.comm_hook = *options.comm_hook;
  accelerate::Accelerator accelerator(how);
  torch::manual_seed(11 + (options.fsdp ? accelerator.process_index() : 0));  // prepare gives all of them those of the first
  TinyGpt net;
  net->checkpoints = options.checkpoints;
  if (options.freeze) net->embedding->weight.set_requires_grad(false);
  const auto stepper = make_optimizer(net, options.stepper);
  auto [model, optimizer] = accelerator.prepare(net, *stepper);
  RunResult result;
  for (int step = 0; step < options.steps * options.accumulation; ++step) {
    auto scope = accelerator.accumulate(model);
    const auto ids = batch(accelerator, step);
    const auto logits = model(ids.narrow(1, 0, 7));
    const auto loss = torch::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), ids.narrow(1, 1, 7).reshape({-1}));
    result.losses.push_back(mean_over_ranks(accelerator, loss));
    accelerator.backward(loss);
    if (options.clip > 0 && accelerator.sync_gradients()) accelerator.clip_grad_norm_(model.parameters(), options.clip);
    optimizer.step();
    optimizer.zero_grad();
  }
  for (auto& [name, tensor] : accelerator.get_state_dict(model)) result.weights[name] = tensor.cpu().clone();
  return result;
}

inline void expect_close(const RunResult& a, const RunResult& b, double tolerance) {
  EXPECT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < std::min(a.losses.size(), b.losses.size()); ++i)
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance) << "loss of step " << i;
  for (const auto& [name, tensor] : a.weights) {
    if (!b.weights.contains(name)) continue;
    const auto difference =
        (tensor.to(torch::kDouble) - b.weights.at(name).to(torch::kDouble)).abs().max().template item<double>();
    EXPECT_LE(difference, 100 * tolerance) << name;
  }
}

}  // namespace sharded_nets
