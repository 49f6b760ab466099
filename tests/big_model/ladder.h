#pragma once

#include <torch/torch.h>

#include <mutex>
#include <vector>

/// A model of operators that the meta device has too.
namespace ladders {

struct RungImpl : torch::nn::Module {
  explicit RungImpl(int64_t width) {
    up = register_module("up", torch::nn::Linear(width, 2 * width));
    down = register_module("down", torch::nn::Linear(2 * width, width));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Rung);

/// Four rungs with residual connections, a buffer that all of them use, and a 0-dim parameter. Says where it was after each.
struct LadderImpl : torch::nn::Module {
  LadderImpl() {
    rungs = register_module("rungs", torch::nn::ModuleList());
    for (int i = 0; i < 4; ++i) rungs->push_back(Rung(4));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 5).bias(false)));
    shift = register_buffer("shift", torch::arange(4).to(torch::kFloat));
    temperature = register_parameter("temperature", torch::full({}, 0.75));
  }
  torch::Tensor forward(torch::Tensor x) {
    std::vector<c10::Device> devices;
    for (auto& rung : *rungs) {
      x = rung->as<Rung>()->forward(x) + shift;
      devices.push_back(x.device());
    }
    const std::lock_guard lock(mutex);
    seen = devices;
    return head(x) * temperature;
  }
  torch::nn::ModuleList rungs{nullptr};
  torch::nn::Linear head{nullptr};
  torch::Tensor shift, temperature;
  std::vector<c10::Device> seen;
  std::mutex mutex;
};
TORCH_MODULE(Ladder);

}  // namespace ladders
