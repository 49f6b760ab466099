#include "training/fused_check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <accelerate/console/logging.h>
#include <c10/core/InferenceMode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include <array>
#include <atomic>
#include <cmath>
#include <mutex>

#include "training/fused_step.h"
#include "training/step_recording.h"

namespace accelerate::detail {
namespace {

// Kernels have a path for whole vectors of elements, of up to 64, and one for what is left over.
constexpr std::array<int64_t, 5> kTrialSizes = {1, 7, 64, 100, 1000};
// Exact in every dtype, and large: a weight that stays as it was, or goes the other way, is far off.
constexpr double kTrialRate = 0.25, kTrialDivisor = -4;

/// What a weight may be off after a few steps. Kernels for 16 bits compute with more of them than the optimizers do.
double trial_tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 8 * 0x1p-7;
    case at::kHalf:
      return 8 * 0x1p-10;
    case at::kFloat:
      return 64 * 0x1p-23;
    default:
      return 64 * 0x1p-52;
  }
}

/// Weights of several sizes that are stepped by what is tried, and the same in one tensor, of float64, by the optimizer itself.
class KernelTrial {
 public:
  explicit KernelTrial(const at::TensorOptions& options) : options_(options) {
    std::vector<double> weights, gradients;
    for (const int64_t size : kTrialSizes) {
      for (int64_t i = 0; i < size; ++i) {
        const double wave = std::sin(1.0 + 1.7 * static_cast<double>(weights.size()));
        weights.push_back(1.5 * wave);
        // Of one sign with the weight: what decay adds never brings it near zero, where squares are lost in float16.
        gradients.push_back(std::copysign(0.5, wave) + wave / 2);
      }
    }
    weights_ = pieces_of(at::tensor(weights, at::kDouble));
    gradients_ = pieces_of(at::tensor(gradients, at::kDouble));
    // As they were rounded.
    expected_ = joined(weights_);
    expected_gradient_ = joined(gradients_);
  }

  template <class Optimizer, class Options>
  bool passes(Options options, const StepMaker& maker) {
    options.lr(kTrialRate);
    Optimizer tried(weights_, options), own({expected_}, options);
    const auto step = maker(tried);
    const auto scalar = [this](double value) { return at::full({}, value, options_.dtype(at::kFloat)); };
    give_gradients(1);
    step->take(std::nullopt);
    own.step();
    give_gradients(kTrialDivisor);
    step->take(scalar(kTrialDivisor));
    own.step();
    give_gradients(kTrialDivisor);
    if (const auto rollback = step->step_unless_inf({.found_inf = scalar(1), .divisor = scalar(kTrialDivisor)})) rollback();
    if (!step->step_unless_inf({.found_inf = scalar(0), .divisor = scalar(kTrialDivisor)})) step->take(scalar(kTrialDivisor));
    own.step();
    const auto off = (joined(weights_) - expected_).abs() / expected_.abs().clamp_min(1);
    // Also when it is not a number.
    return off.max().item<double>() <= trial_tolerance(options_.dtype().toScalarType());
  }

 private:
  std::vector<at::Tensor> pieces_of(const at::Tensor& all) const {
    std::vector<at::Tensor> pieces;
    for (const auto& piece : all.split_with_sizes(kTrialSizes)) pieces.push_back(piece.to(options_, false, /*copy=*/true));
    return pieces;
  }
  static at::Tensor joined(const std::vector<at::Tensor>& pieces) { return at::cat(pieces).to(at::kCPU, at::kDouble); }

  void give_gradients(double factor) {
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i].mutable_grad() = gradients_[i] * factor;
    expected_.mutable_grad() = expected_gradient_;
  }

  at::TensorOptions options_;
  std::vector<at::Tensor> weights_, gradients_;
  at::Tensor expected_, expected_gradient_;
};

template <class Optimizer, class... Options>
bool passes_with(const at::TensorOptions& like, const StepMaker& maker, const Options&... options) {
  return (KernelTrial(like).passes<Optimizer>(options, maker) && ...);
}

const char* optimizer_name(FusedOptimizer kernel) {
  return kernel == FusedOptimizer::adamw ? "AdamW" : kernel == FusedOptimizer::adam ? "Adam" : "SGD";
}

bool try_kernel(FusedOptimizer kernel, const at::Tensor& parameter) {
  const auto options = at::TensorOptions().dtype(parameter.scalar_type()).device(parameter.device());
  const bool right =
      steps_rightly(kernel, options, [](torch::optim::Optimizer& optimizer) { return make_step(optimizer, /*on_trial=*/true); });
  if (!right) {
    get_logger("accelerate")
        .warning(
            "The fused {0} kernel of LibTorch {1} gives wrong results for {2} weights on {3}: falling back to the step of "
            "torch::optim::{0}.",
            optimizer_name(kernel), TORCH_VERSION, c10::toString(parameter.scalar_type()),
            c10::DeviceTypeName(parameter.device().type(), /*lower_case=*/true));
  }
  return right;
}

}  // namespace

bool steps_rightly(FusedOptimizer kernel, const at::TensorOptions& options, const StepMaker& maker) {
  using namespace torch::optim;
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  switch (kernel) {
    case FusedOptimizer::adamw:
      return passes_with<AdamW>(options, maker, AdamWOptions().weight_decay(0.5), AdamWOptions().amsgrad(true));
    case FusedOptimizer::adam:
      return passes_with<Adam>(options, maker, AdamOptions().weight_decay(0.5), AdamOptions().amsgrad(true));
    case FusedOptimizer::sgd:
      return passes_with<SGD>(options, maker, SGDOptions(1), SGDOptions(1).momentum(0.5).dampening(0.5).weight_decay(0.5),
                              SGDOptions(1).momentum(0.5).nesterov(true));
  }
  return false;
}

bool is_right(FusedOptimizer kernel, const at::Tensor& parameter) {
  enum Verdict : int8_t { untried, right, wrong };
  constexpr size_t kDtypes = static_cast<size_t>(at::ScalarType::NumOptions);
  constexpr size_t kDeviceTypes = static_cast<size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES);
  // Facts about the libraries of this process, not a state of it.
  static std::array<std::atomic<Verdict>, 3 * kDeviceTypes * kDtypes> verdicts{};
  static std::mutex one_tries;
  const size_t device_type = static_cast<size_t>(parameter.device().type()), dtype = static_cast<size_t>(parameter.scalar_type());
  auto& verdict = verdicts[(static_cast<size_t>(kernel) * kDeviceTypes + device_type) * kDtypes + dtype];
  if (verdict == untried) {
    if (StepRecording::current()) throw NotRecordable("its optimizer has not yet taken a step like this one");
    const std::lock_guard lock(one_tries);
    if (verdict == untried) verdict = try_kernel(kernel, parameter) ? right : wrong;
  }
  return verdict == right;
}

}  // namespace accelerate::detail
