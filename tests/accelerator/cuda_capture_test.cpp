// Captured steps on a CUDA device. Run by one process on one GPU, and by two whose gradients NCCL all-reduces inside of the
// graphs.
#include <torch/torch.h>

#include "accelerator/captured_training.h"
#include "support/together.h"

namespace capture {
namespace {

using accelerate::Accelerator;
using accelerate::Precision;

class TogetherCudaCapture : public Together {};

TEST_F(TogetherCudaCapture, ACapturedRunEqualsAnEagerOneToTheBit) {
  for (const auto precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const bool zero_first : {false, true}) {
      for (const int accumulation : {1, 3, 8}) {
        const auto report =
            expect_same_run({.accumulation = accumulation,
                             .zero_first = zero_first,
                             .cpu = false,
                             .precision = precision,
                             .samples = 64 * world()},
                            25, to_string(precision) + std::to_string(accumulation) + (zero_first ? " zero first" : ""));
        EXPECT_GT(report.replayed, 150);
        EXPECT_TRUE(report.reasons.empty()) << report.reasons.front();
      }
    }
  }
}

TEST_F(TogetherCudaCapture, GradientsAreClippedInTheStep) {
  for (const auto precision : {Precision::no, Precision::fp16}) {
    const auto report =
        expect_same_run({.accumulation = 2, .clips_in_step = true, .cpu = false, .precision = precision, .samples = 64 * world()},
                        25, to_string(precision));
    EXPECT_GT(report.replayed, 150);
    EXPECT_TRUE(report.reasons.empty()) << report.reasons.front();
  }
}

TEST_F(TogetherCudaCapture, BatchesOfAnotherSizeAreRecordedApart) {
  const auto report = expect_same_run({.accumulation = 2, .cpu = false, .samples = 68}, 25, "");
  EXPECT_GE(report.recorded, 2);
  EXPECT_EQ(report.reasons.size(), world() == 1 ? 1 : 0);  // several processes fill the last batches up
}

TEST_F(TogetherCudaCapture, GradientsAreAllReducedInEveryWay) {
  const std::vector<std::pair<std::string, accelerate::DdpOptions>> ways = {
      {"gradient_as_bucket_view", {.gradient_as_bucket_view = true}},
      {"static_graph", {.static_graph = true}},
      {"many buckets", {.broadcast_buffers = false, .bucket_cap_mb = 1}},
      {"bf16", {.comm_hook = accelerate::CommHook::bf16}},
      {"predivided", {.comm_hook = accelerate::CommHook::fp16, .gradient_predivide_factor = 1}},
  };
  for (const auto& [name, ddp] : ways) {
    const auto report =
        expect_same_run({.accumulation = 2, .cpu = false, .samples = 64 * world(), .width = 1024, .ddp = ddp}, 15, name);
    EXPECT_GT(report.replayed, 80) << name;
    EXPECT_TRUE(report.reasons.empty()) << name << ": " << report.reasons.front();
  }
}

TEST_F(TogetherCudaCapture, ShardedModelsAreGatheredAndReducedInTheStep) {
  using accelerate::ShardingStrategy;
  for (const auto strategy : {ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op}) {
    for (const auto precision : {Precision::no, Precision::bf16, Precision::fp16}) {
      for (const int accumulation : {1, 3}) {
        const auto report = expect_same_run(
            {.accumulation = accumulation,
             .cpu = false,
             .precision = precision,
             .samples = 64 * world(),
             .fsdp = accelerate::FsdpOptions{.sharding_strategy = strategy, .min_num_params = 100}},
            25, std::string(to_string(strategy)) + " " + to_string(precision) + " " + std::to_string(accumulation));
        // Sums of several batches are kept on each rank, in memory that is freed after the step.
        EXPECT_EQ(report.replayed > 150, world() == 1 || accumulation == 1);
        EXPECT_EQ(report.reasons.empty(), world() == 1 || accumulation == 1)
            << (report.reasons.empty() ? "" : report.reasons.front());
      }
    }
  }
}

TEST_F(TogetherCudaCapture, AModelWhoseShardsAreInHostMemoryRunsEagerly) {
  const auto report = expect_same_run(
      {.cpu = false, .samples = 64 * world(), .fsdp = accelerate::FsdpOptions{.min_num_params = 100, .cpu_offload = true}}, 5,
      "");
  EXPECT_EQ(report.replayed, 0);
  ASSERT_EQ(report.reasons.size(), 1);
  EXPECT_NE(report.reasons.front().find("host memory"), std::string::npos) << report.reasons.front();
}

TEST_F(TogetherCudaCapture, AStepThatAsksTheDeviceRunsEagerlyAndOthersAreStillCaptured) {
  Accelerator accelerator;
  torch::nn::Sequential net(torch::nn::Linear(16, 16), torch::nn::Dropout(0.5));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  bool asks = true;
  const auto body = [&, &model = model, &optimizer = optimizer](torch::Tensor& x) {
    optimizer.zero_grad();
    const auto loss = model(x).square().mean();
    accelerator.backward(loss);
    if (asks) static_cast<void>(loss.item<double>());
    optimizer.step();
    return loss;
  };
  auto asking = accelerator.capture(body);
  const auto x = torch::randn({8, 16}, accelerator.device());
  for (int i = 0; i < 6; ++i) EXPECT_GT(asking(x).item<double>(), 0);
  EXPECT_EQ(asking.report().eager, 6);
  EXPECT_EQ(asking.report().reasons.size(), 1);
  for (const auto& reason : asking.report().reasons) EXPECT_NE(reason.find("aten::item"), std::string::npos) << reason;
  asks = false;
  auto quiet = accelerator.capture(body);
  double first = 0, last = 0;
  for (int i = 0; i < 60; ++i) {
    last = quiet(x).item<double>();
    if (i == 0) first = last;
  }
  EXPECT_EQ(quiet.report().replayed, 56);
  EXPECT_LT(last, first);
}

TEST_F(TogetherCudaCapture, DropoutStaysRandomAndReproducible) {
  Accelerator accelerator;
  auto step = accelerator.capture([](torch::Tensor& x) { return torch::dropout(x, 0.5, /*train=*/true); });
  const auto ones = torch::ones({1000}, accelerator.device());
  std::vector<torch::Tensor> drawn, again;
  for (auto* results : {&drawn, &again}) {
    torch::manual_seed(11);
    for (int i = 0; i < 10; ++i) results->push_back(step(ones).clone());
  }
  EXPECT_EQ(step.report().replayed, 16);
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_TRUE(torch::equal(drawn[i], again[i])) << i;
    EXPECT_FALSE(i > 0 && torch::equal(drawn[i], drawn[i - 1])) << i;
  }
}

TEST_F(TogetherCudaCapture, ProcessesThatAreAtDifferentStepsRunThemEagerly) {
  std::vector<torch::Tensor> weights;
  accelerate::CaptureReport report;
  for (const bool captured : {false, true}) {
    Accelerator accelerator;
    torch::manual_seed(1);
    torch::nn::Linear net(8, 4);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto body = [&, &model = model, &optimizer = optimizer](torch::Tensor& x) {
      accelerator.backward(model(x).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    };
    auto step = accelerator.capture(body);
    for (int i = 0; i < 40; ++i) {
      const bool odd = rank() == 0 && i % 3 == 2;
      auto x = torch::full({odd ? 5 : 4, 8}, 0.1 * (1 + i % 5), accelerator.device());
      captured ? step(x) : body(x);
    }
    weights.push_back(net->weight.detach().clone());
    report = step.report();
  }
  expect_equal({weights[1]}, {weights[0]});
  EXPECT_GT(report.replayed, 15);
  const auto told = [&](const std::string& words) {
    return std::any_of(report.reasons.begin(), report.reasons.end(),
                       [&](const auto& reason) { return reason.find(words) != std::string::npos; });
  };
  EXPECT_EQ(told("ranks are at different kinds of steps"), world() > 1);
}

class TogetherCudaSparse : public Together {};  // which NCCL does not reduce

TEST_F(TogetherCudaSparse, GradientsAreSteppedUnderFp16) {
  Accelerator accelerator({.mixed_precision = Precision::fp16});
  torch::nn::Embedding net(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto before = net->weight.detach().clone();
  accelerator.backward(model(torch::zeros({2}, torch::TensorOptions(accelerator.device()).dtype(torch::kLong))).sum());
  optimizer.step();
  EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
  EXPECT_FALSE(torch::equal(net->weight, before));
}

TEST_F(TogetherCudaCapture, ReplaysOnOtherStreamsFollowEachOther) {
  Accelerator accelerator;
  const auto sum = torch::zeros({1 << 22}, accelerator.device());
  auto step = accelerator.capture([&](torch::Tensor& x) {
    for (int i = 0; i < 20; ++i) sum.add_(x);
    return sum;
  });
  const c10::impl::VirtualGuardImpl guard(torch::kCUDA);
  for (int i = 0; i < 20; ++i) {
    const c10::StreamGuard stream(guard.getStreamFromGlobalPool(accelerator.device()));
    step(torch::ones({1 << 22}, accelerator.device()));
    if (i < 5) guard.synchronizeDevice(0);  // eager ones are as they are
  }
  guard.synchronizeDevice(0);
  EXPECT_TRUE(torch::equal(sum, torch::full_like(sum, 400)));
}

}  // namespace
}  // namespace capture
