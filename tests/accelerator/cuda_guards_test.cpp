// The guards against silent mistakes, on a CUDA device. Run by one process on one GPU, and by two.
#include <torch/torch.h>

#include "support/error_text.h"
#include "support/together.h"

namespace {

using accelerate::Accelerator;
using accelerate::Precision;
using accelerate::testing::message_of;

class TogetherCudaGuards : public Together {
 protected:
  static torch::Tensor rows() { return torch::ones({4, 3}, torch::kCUDA) + rank(); }
};

TEST_F(TogetherCudaGuards, BypassedModelsAndUnpreparedOptimizersAreErrors) {
  for (const bool by_sgd : {true, false}) {
    Accelerator a({.mixed_precision = Precision::bf16, .gradient_accumulation_steps = 4});
    torch::nn::Linear net(3, 2);
    auto model = a.prepare(net);
    EXPECT_NE(message_of<accelerate::UsageError>([&] { a.backward(model->forward(rows()).square().mean()); }), "no error");
    model.zero_grad();
    std::unique_ptr<torch::optim::Optimizer> raw;
    if (by_sgd) {
      raw = std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
    } else {
      raw = std::make_unique<torch::optim::AdamW>(net->parameters());
    }
    int batches = 0;
    const auto problem = message_of<accelerate::UsageError>([&] {
      for (; batches < 8; ++batches) {
        auto scope = a.accumulate(model);
        a.backward(model(rows()).square().mean());
        raw->step();
      }
    });
    EXPECT_NE(problem.find("during gradient accumulation"), std::string::npos) << problem;
    EXPECT_EQ(batches, 1);
  }
}

TEST_F(TogetherCudaGuards, GradientsOfFp16AreNotSteppedWhileTheyAreScaled) {
  for (const bool by_scaler : {true, false}) {
    Accelerator a({.mixed_precision = Precision::fp16});
    torch::nn::Linear net(3, 2);
    auto model = a.prepare(net);
    torch::optim::SGD raw(net->parameters(), 1e-3);
    int steps = 0;
    const auto problem = message_of<accelerate::UsageError>([&] {
      for (; steps < 4; ++steps) {
        // Two losses before a step are no step.
        a.backward(model(rows()).square().mean());
        a.backward(model(rows()).mean());
        if (by_scaler) {
          a.grad_scaler()->step(raw);
          a.grad_scaler()->update();
        } else {
          raw.step();
        }
        raw.zero_grad();
      }
    });
    if (by_scaler) {
      EXPECT_EQ(problem, "no error");
    } else {
      EXPECT_NE(problem.find("accelerator.prepare"), std::string::npos) << problem;
      EXPECT_NE(problem.find("cuda_guards_test.cpp:"), std::string::npos) << problem;
      EXPECT_EQ(steps, 1);
    }
  }
}

TEST_F(TogetherCudaGuards, UnfrozenAndConvertedParametersAreSynchronisedAndDriftIsNotSaved) {
  CommonFolder folder(accelerator());
  Accelerator a;
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Linear(4, 1));
  for (auto& parameter : net->ptr(0)->parameters()) parameter.requires_grad_(false);
  torch::optim::AdamW adamw(net->parameters());
  auto [model, optimizer] = a.prepare(net, adamw);
  const auto step = [&, &model = model, &optimizer = optimizer](torch::Dtype dtype) {
    a.backward(model(rows().to(dtype)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int i = 0; i < 3; ++i) step(torch::kFloat);
  for (auto& parameter : net->parameters()) parameter.requires_grad_(true);
  for (int i = 0; i < 3; ++i) step(torch::kFloat);
  EXPECT_NO_THROW(a.save_state((folder / "whole").string()));
  if (rank() == world() - 1) {
    torch::NoGradGuard no_grad;
    net->parameters()[3].add_(1e-3);
  }
  const auto problem = message_of<accelerate::CheckpointError>([&] { a.save_state((folder / "diverged").string()); });
  if (world() > 1) {
    EXPECT_NE(problem.find("1.bias"), std::string::npos) << problem;
  } else {
    EXPECT_EQ(problem, "no error");
  }
}

}  // namespace
