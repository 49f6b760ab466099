// Sharded training whose results another implementation must have, too.
#include <torch/torch.h>

#include "scenes.h"

namespace {

using namespace accelerate::testing;
using accelerate::Accelerator;

constexpr int64_t kVocabulary = 23, kWidth = 12, kLength = 7;
constexpr int kSteps = 10;

struct PeerBlockImpl : torch::nn::Module {
  PeerBlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(torch::nn::LinearOptions(kWidth, 3 * kWidth).bias(false)));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 31));
    down = register_module("down", torch::nn::Linear(31, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = qkv(norm(x)).chunk(3, -1);
    const auto y = x + out(at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true));
    return y + down(torch::gelu(up(y)));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(PeerBlock);

/// A language model whose head is its embedding, and with sizes that no number of ranks divides.
struct PeerGptImpl : torch::nn::Module {
  PeerGptImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(kVocabulary, kWidth));
    blocks = register_module("blocks", torch::nn::Sequential(PeerBlock(), PeerBlock(), PeerBlock()));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return torch::matmul(norm(blocks->forward(embedding(ids))), embedding->weight.t());
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Sequential blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(PeerGpt);

torch::Tensor peer_batch(int step, int rank) {
  return (torch::arange(3 * (kLength + 1)).view({3, kLength + 1}) * 7 + step * 13 + rank * 5).remainder(kVocabulary);
}

/// Trains, and returns the losses of this rank. Before it and after it the main process writes all weights.
torch::Tensor train_beside_the_peer(accelerate::ShardingStrategy strategy, const std::string& name) {
  accelerate::FsdpOptions options{.sharding_strategy = strategy, .transformer_layer_classes = {"PeerBlock"}};
  Accelerator accelerator({.fsdp = options, .timeout = std::chrono::seconds(40)});
  torch::manual_seed(3);
  PeerGpt net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto save = [&](const std::string& moment) {
    const auto state = accelerator.get_state_dict(model);
    if (accelerator.is_main_process()) accelerate::save_file(state, folder + "/" + name + "_" + moment + ".safetensors");
  };
  save("begin");
  const auto losses = torch::zeros({kSteps});
  for (int step = 0; step < kSteps; ++step) {
    const auto ids = peer_batch(step, accelerator.process_index());
    const auto logits = model(ids.narrow(1, 0, kLength));
    const auto loss = torch::cross_entropy_loss(logits.reshape({-1, kVocabulary}), ids.narrow(1, 1, kLength).reshape({-1}));
    losses[step] = loss.detach();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  save("end");
  return losses;
}

/// Both of fully_shard's ways: weights resharded after a forward pass, or not.
void sharded_beside_python() {
  accelerate::TensorDict losses;
  losses["reshards"] = train_beside_the_peer(accelerate::ShardingStrategy::full_shard, "reshards");
  losses["keeps"] = train_beside_the_peer(accelerate::ShardingStrategy::shard_grad_op, "keeps");
  accelerate::save_file(losses, folder + "/losses_" + std::getenv("RANK") + ".safetensors");
}

}  // namespace

std::map<std::string, void (*)()> accelerate::testing::sharding_scenes() {
  return {{"sharded_beside_python", sharded_beside_python}};
}
