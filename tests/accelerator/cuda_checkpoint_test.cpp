// Checkpoints of runs on a CUDA device. Run by one process on one GPU, where there is one.
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/torch.h>

#include "distributed/accelerators.h"

#include "support/together.h"

namespace cuda_checkpoint {
namespace {

using accelerate::Accelerator;
using accelerate::Precision;

/// A run with everything that has a state on the device: weights, moments, a scale, dropout.
struct GpuRun {
  explicit GpuRun(Precision precision)
      : accelerator({.mixed_precision = precision, .gradient_accumulation_steps = 2}),
        net(torch::nn::Linear(8, 64), torch::nn::Dropout(0.3), torch::nn::ReLU(), torch::nn::Linear(64, 1)),
        adamw(net->parameters(), torch::optim::AdamWOptions(1e-2)),
        cosine(adamw, {.warmup_steps = 2, .total_steps = 40}),
        data(accelerate::TensorDataset(torch::arange(512).reshape({64, 8}) / 512.0, torch::arange(64).reshape({64, 1}) / 64.0),
             {.batch_size = 8, .shuffle = true}) {
    auto made = accelerator.prepare(net, adamw, data, cosine);
    std::apply(
        [this](auto&... prepared) { epoch = [this, prepared...](auto&& after) mutable { run_epoch(after, prepared...); }; },
        made);
  }

  void run_epoch(const std::function<void(int)>& after, auto& model, auto& optimizer, auto& loader, auto& scheduler) {
    int batches = 0;
    for (auto& [x, y] : loader) {
      auto scope = accelerator.accumulate(model);
      const auto loss = torch::mse_loss(model(x), y);
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      losses.push_back(loss.template item<double>());
      after(++batches);
    }
  }

  Accelerator accelerator;
  torch::nn::Sequential net;
  torch::optim::AdamW adamw;
  accelerate::CosineWithWarmup cosine;
  accelerate::DataLoader<accelerate::Example> data;
  std::function<void(const std::function<void(int)>&)> epoch;
  std::vector<double> losses;
};

class TogetherCudaCheckpoint : public Together {};

/// How much more memory of the GPU `call` has in use at its most than there is before.
int64_t peak_above_now(const std::function<void()>& call) {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(torch::kCUDA));
  const auto allocated = [&] { return allocator->getDeviceStats(0).allocated_bytes[0]; };
  allocator->resetPeakStats(0);
  const auto before = allocated().current;
  call();
  return allocated().peak - before;
}

TEST_F(TogetherCudaCheckpoint, ARunThatWasStoppedAnywhereGoesOnToTheSameBits) {
  for (const Precision precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const bool async : {false, true}) {
      for (const int stop : {3, 4}) {  // in the middle of an accumulation, and between two
        const TemporaryFolder folder;
        torch::manual_seed(1);
        GpuRun whole(precision);
        whole.epoch([](int) {});
        whole.epoch([&](int batches) {
          if (batches == stop) whole.accelerator.save_state(folder / "saved", {.async = async});
        });
        whole.epoch([](int) {});
        whole.accelerator.end_training();
        torch::manual_seed(7);
        GpuRun again(precision);
        again.accelerator.load_state(folder / "saved");
        again.epoch([](int) {});
        again.epoch([](int) {});
        const auto count = static_cast<ptrdiff_t>(again.losses.size());
        EXPECT_EQ(count, 16 - stop);
        const std::vector<double> expected(whole.losses.end() - count, whole.losses.end());
        EXPECT_EQ(again.losses, expected) << to_string(precision) << (async ? " async " : " ") << stop;
      }
    }
  }
}

TEST_F(TogetherCudaCheckpoint, AnAsynchronousSaveHoldsTheMomentOfTheCall) {
  const TemporaryFolder folder;
  Accelerator accelerator;
  torch::nn::Linear net(8192, 4096);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto input = torch::ones({1, 8192}, accelerator.device());
  torch::Tensor others;
  for (int round = 0; round < 4; ++round) {
    if (round == 2) {  // no room for a second copy on the GPU
      constexpr int64_t kRoom = 200 << 20;
      const auto free = static_cast<int64_t>(accelerate::detail::free_accelerator_memory(0).value_or(0));
      others = torch::empty({free - kRoom}, torch::dtype(torch::kUInt8).device(accelerator.device()));
    }
    accelerator.backward(model(input).sum());
    optimizer.step();
    const auto before = net->weight.detach().clone();
    const int64_t peak = peak_above_now([&] { accelerator.save_state(folder / "saved", {.async = true}); });
    EXPECT_EQ(peak >= 3 * 4 * net->weight.numel(), round < 2) << peak;  // a copy on the GPU, where there is room
    for (int i = 0; i < 5; ++i) optimizer.step();                       // while it is written
    const auto after = net->weight.detach().clone();
    accelerator.load_state(folder / "saved");
    EXPECT_TRUE(torch::equal(net->weight, before)) << round;
    EXPECT_FALSE(torch::equal(after, before)) << round;
    EXPECT_TRUE(net->weight.is_cuda());
  }
}

TEST_F(TogetherCudaCheckpoint, WeightsThatComeFromTheHostAreSaved) {
  const TemporaryFolder folder;
  torch::nn::Linear net(64, 32);
  const auto expected = net->weight.detach().clone();
  accelerate::cpu_offload(net, {.main_device = c10::Device(torch::kCUDA, 0)});
  EXPECT_TRUE(net->weight.is_cuda());
  accelerate::save_weights(accelerate::state_dict(*net), folder / "model");
  EXPECT_TRUE(torch::equal(accelerate::load_file(folder / "model" / "model.safetensors").at("weight"), expected));
}

}  // namespace
}  // namespace cuda_checkpoint
