#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <vector>

#include "training/step_recording.h"

namespace accelerate::detail {

/// What the host tells the device of a step. Its memory stays from step to step, and is never that of a recording, which uses its
/// own for one thing after the other.
struct StepNumbers {
  at::Tensor rate;
  std::optional<double> rate_told;
  std::vector<at::Tensor> counts;

  static at::Tensor make(const at::TensorOptions& options) {
    if (!options.device().is_cpu() && StepRecording::current())
      throw NotRecordable("its optimizer has not yet taken a step like this one");
    return at::empty({}, options);
  }
};

/// What is common to the calls of all kernels: parameters of one group, device and dtype, with their gradients.
struct FusedCall {
  const torch::optim::OptimizerParamGroup* group = nullptr;
  bool small = false;
  // The state of its parameters is yet to be filled.
  bool begins = false;
  std::vector<at::Tensor> parameters, gradients;
  std::shared_ptr<StepNumbers> numbers;
  // The device looks the learning rate up.
  bool recorded = false;

  bool takes(const at::Tensor& parameter, bool is_small) const {
    return small == is_small && parameters.front().device() == parameter.device() &&
           parameters.front().scalar_type() == parameter.scalar_type();
  }
  void add(const at::Tensor& parameter) {
    parameters.push_back(parameter);
    gradients.push_back(parameter.grad());
  }
  // Nothing is held between steps: a gradient that is set to none must give its memory back.
  void clear() {
    group = nullptr;
    begins = false;
    parameters.clear();
    gradients.clear();
  }

  /// As the kernels of the device take it: those of accelerators look it up as float32 when it is recorded, and a step must have
  /// the same result either way.
  double rate_of(double lr) const { return parameters.front().is_cpu() ? lr : static_cast<double>(static_cast<float>(lr)); }
  void make_numbers(size_t counts) {
    const auto options = parameters.front().options();
    if (!numbers || numbers->rate.device() != options.device()) {
      numbers = std::make_shared<StepNumbers>();
      numbers->rate = StepNumbers::make(options.dtype(options.device().is_cpu() ? at::kDouble : at::kFloat));
    }
    while (numbers->counts.size() < counts) numbers->counts.push_back(StepNumbers::make(options.dtype(at::kFloat)));
  }
  void tell_rate(double lr) {
    if (numbers->rate_told == lr) return;
    numbers->rate.fill_(lr);
    numbers->rate_told = lr;
  }
};

}  // namespace accelerate::detail
