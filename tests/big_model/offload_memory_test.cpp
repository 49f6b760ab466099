// A limit is a limit: what a process holds while weights come and go. In a process of its own, whose heap nobody has used.
#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "support/together.h"

namespace {

/// Anonymous memory of this process, in MB.
double anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return kilobytes * 1024 / 1e6;
  }
  throw std::runtime_error("/proc/self/status has no RssAnon");
}

/// Layers of many sizes, as real models have. Matrix-vector products: they read weights and take no memory, where the buffers
/// of matrix-matrix products are as large as the weights here.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    for (int64_t i = 0; i < 36; ++i) {
      const int64_t rows = kWidth * (1 + i * 5 % 12) / 4;
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, rows)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto sum = torch::zeros({1});
    for (const auto& layer : layers) {
      for (int64_t i = 0; i < x.size(0); ++i) sum += torch::mv(layer->weight, x[i]).sum();
    }
    return sum;
  }
  static constexpr int64_t kWidth = 640;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Mixed);

/// The most that was held at any time, over passes of several lengths by one thread and by several.
double most_held(const auto& model) {
  std::atomic<double> most = 0;
  std::jthread sampler([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) most = std::max(most.load(), anonymous_memory());
  });
  for (const int threads : {1, 4}) {
    for (const int64_t length : {1, 5, 2, 9, 3, 1}) {
      std::vector<std::jthread> passes;
      for (int i = 0; i < threads; ++i) {
        passes.emplace_back([&] {
          const torch::NoGradGuard no_grad;
          model(torch::ones({length, MixedImpl::kWidth}));
        });
      }
    }
  }
  sampler.request_stop();
  sampler.join();
  return most;
}

TEST(OffloadMemory, AProcessHoldsItsBudgetAndNoMore) {
  const TemporaryFolder folder;
  accelerate::save_weights(accelerate::state_dict(*Mixed()), folder.path());
  const auto load = [&](const accelerate::LoadCheckpointOptions& options) {
    const accelerate::InitEmptyWeights empty;
    return accelerate::load_checkpoint_and_dispatch(Mixed(), folder.path(), options);
  };
  // What passes take without their weights: those are pages of the file here, which are not anonymous.
  const double base = most_held(load({.device_map = "disk", .mmap = true}));
  constexpr double kBudget = 32e6;
  const auto model = load({.device_map = "disk", .offload_budget = static_cast<int64_t>(kBudget)});
  const double held = most_held(model);
  EXPECT_LE(held, 1.05 * (base + kBudget / 1e6)) << "MB, with a base of " << base;
  EXPECT_GT(model.offload_counts().bytes_read, 10 * kBudget) << "weights came and went";
  model.release_memory();
  EXPECT_LE(anonymous_memory(), 1.05 * base) << "MB are still held";
}

}  // namespace
