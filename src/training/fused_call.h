#pragma once

#include <ATen/core/TensorBody.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace accelerate::detail {

/// What the host tells the device of a step. Its memory stays from step to step, and is never that of a recording, which uses its
/// own for one thing after the other.
struct StepNumbers {
  at::Tensor rate;
  std::optional<double> rate_told;
  std::vector<at::Tensor> counts;
};

/// The most tensors that a kernel keeps of a parameter: AdamW and Adam with amsgrad.
inline constexpr size_t kMostStateTensors = 3;

/// What an optimizer keeps of one parameter, as its kernel takes it.
struct FusedState {
  /// In the order of the kernel's lists.
  std::array<at::Tensor, kMostStateTensors> tensors;
  /// The optimizer's own count of steps; null where it does not count.
  int64_t* steps = nullptr;
  /// The kernel is yet to fill it.
  bool begins = false;
};

/// One launch of a kernel: parameters of one group, device and dtype, with their gradients and state.
struct FusedCall {
  const torch::optim::OptimizerParamGroup* group = nullptr;
  bool small = false;
  // The state of its parameters is yet to be filled.
  bool begins = false;
  std::vector<at::Tensor> parameters, gradients;
  // A list for each tensor of the state, or empty ones.
  std::array<std::vector<at::Tensor>, kMostStateTensors> states;
  // For each parameter: how many steps the optimizer has counted, and the tensor that tells the device. Empty where none counts.
  std::vector<int64_t*> steps;
  std::vector<at::Tensor> step_tensors;
  std::shared_ptr<StepNumbers> numbers;
  // Of a recorded call, whose learning rate the device looks up; null otherwise.
  std::unique_ptr<torch::optim::OptimizerOptions> recorded_options;

  bool takes(const at::Tensor& parameter, bool is_small, bool is_begun) const {
    return small == is_small && begins == is_begun && parameters.front().device() == parameter.device() &&
           parameters.front().scalar_type() == parameter.scalar_type();
  }
  /// With the first `tensors` of its state.
  void add(const at::Tensor& parameter, FusedState&& state, size_t tensors);
  // Nothing is held between steps: a gradient that is set to none must give its memory back.
  void clear();

  bool is_recorded() const { return recorded_options != nullptr; }
  /// From now on it is a recorded one.
  void begin_recording();

  /// The kernels want the count of steps as float tensors on the device; one serves all parameters that have the same count.
  void share_counts();
  /// Whether those who share a tensor still have the same count.
  bool shares_rightly() const;
  /// Those of the step to be taken.
  void tell_counts();
  void tell_rate();

  /// Calls `launch` with the learning rate as the kernels of the device take it: a tensor when it is recorded. Accelerators look
  /// that up as float32, and a step must have the same result either way.
  template <class Launch>
  void with_rate(double lr, const Launch& launch) const {
    if (is_recorded()) {
      launch(numbers->rate);
    } else {
      launch(parameters.front().is_cpu() ? lr : static_cast<double>(static_cast<float>(lr)));
    }
  }

 private:
  void make_numbers(size_t counts);

  // The first parameter of each count.
  std::vector<size_t> firsts_;
};

}  // namespace accelerate::detail
