#pragma once

#include <torch/torch.h>

#include "support/together.h"

/// What the tests of guards against silent mistakes train.
namespace guards {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::Precision;
using accelerate::UsageError;

struct GuardedNetImpl : torch::nn::Module {
  GuardedNetImpl() {
    first = register_module("first", torch::nn::Linear(3, 8));
    second = register_module("second", torch::nn::Linear(8, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(GuardedNet);

class TogetherGuards : public Together {
 protected:
  void SetUp() override { torch::manual_seed(3); }
  static AcceleratorOptions with(Precision precision, int accumulation = 1) {
    return {.cpu = true,
            .mixed_precision = precision,
            .gradient_accumulation_steps = accumulation,
            .timeout = std::chrono::seconds(60)};
  }
  /// What this rank wrote to stderr meanwhile.
  static std::string said_by(const std::function<void()>& call) {
    testing::internal::CaptureStderr();
    call();
    return testing::internal::GetCapturedStderr();
  }
  static torch::Tensor rows() { return (torch::arange(12, torch::kFloat).view({4, 3}) + rank()).sin(); }
  static torch::Tensor loss_of(const torch::Tensor& output) { return output.to(torch::kFloat).square().mean(); }
  static bool same_everywhere(const std::vector<torch::Tensor>& tensors) {
    bool same = true;
    for (const auto& tensor : tensors) {
      const auto all = accelerator().gather(tensor.detach().reshape({1, -1}));
      same = same && torch::equal(all, all.narrow(0, 0, 1).expand_as(all));
    }
    return same;
  }
  static std::vector<torch::Tensor> gradients(const torch::nn::Module& net) {
    std::vector<torch::Tensor> found;
    for (const auto& parameter : net.parameters()) found.push_back(parameter.grad().defined() ? parameter.grad() : parameter);
    return found;
  }
  /// Whether one process alone hears of a bypassed model, too: it has lost its precision.
  static bool expects_bypass(Precision precision) { return world() > 1 || precision != Precision::no; }
};

}  // namespace guards
