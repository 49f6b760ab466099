#include "training/fused_kernels.h"

#include "training/fused_check.h"
#include "training/fused_step.h"

namespace {

using accelerate::AcceleratedOptimizer;
using accelerate::GradientState;
using accelerate::detail::FusedOptimizer;
using accelerate::detail::OptimizerStep;

TEST(FusedKernels, WeightsOfEverySizeAndDtypeAreSteppedAsByThePlainOptimizer) {
  fused_kernels::expect_every_size_right(torch::kCPU);
}

TEST(FusedKernels, WeightsThatThreadsShareAreSteppedAsByThePlainOptimizer) {
  fused_kernels::expect_large_sizes_right(torch::kCPU);
}

TEST(FusedKernels, WeightsOfEveryLayoutAndDtypeAreSteppedAsByThePlainOptimizer) {
  fused_kernels::expect_every_layout_right(torch::kCPU);
}

/// The optimizer's own step, with a defect.
class DefectiveStep : public OptimizerStep {
 public:
  enum Defect { none, vectors_stay, last_ones_stay, only_first_step, not_divided, unskipped };
  DefectiveStep(torch::optim::Optimizer& optimizer, Defect defect) : optimizer_(optimizer), defect_(defect) {}

  void take(const std::optional<at::Tensor>& divisor) override {
    if (divisor && defect_ != not_divided) accelerate::detail::divide_gradients(optimizer_, *divisor);
    const auto& weights = optimizer_.param_groups()[0].params();
    std::vector<at::Tensor> before;
    for (const auto& weight : weights) before.push_back(weight.clone());
    optimizer_.step();
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t size = weights[i].numel(), whole = size / 16 * 16;
      if (defect_ == vectors_stay) weights[i].slice(0, 0, whole).copy_(before[i].slice(0, 0, whole));
      if (defect_ == last_ones_stay) weights[i].slice(0, whole, size).copy_(before[i].slice(0, whole, size));
      if (defect_ == only_first_step && steps_ > 0) weights[i].copy_(before[i]);
    }
    ++steps_;
  }
  at::Tensor take(const std::function<at::Tensor()>& closure) override { return closure(); }
  std::function<void()> step_unless_inf(const accelerate::detail::StepConditions& conditions) override {
    if (defect_ == unskipped || conditions.found_inf->item<float>() == 0) take(conditions.divisor);
    return [] {};
  }
  accelerate::detail::RecordedStep record(const accelerate::detail::StepConditions&) override { return {}; }

 private:
  torch::optim::Optimizer& optimizer_;
  Defect defect_;
  int steps_ = 0;
};

bool check_passes(FusedOptimizer kernel, torch::ScalarType dtype, DefectiveStep::Defect defect) {
  return accelerate::detail::steps_rightly(kernel, torch::TensorOptions().dtype(dtype), [=](torch::optim::Optimizer& optimizer) {
    return std::make_unique<DefectiveStep>(optimizer, defect);
  });
}

TEST(FusedKernels, TheCheckFindsEveryDefectInEveryDtypeAndTakesNoRoundingForOne) {
  for (const auto kernel : {FusedOptimizer::adamw, FusedOptimizer::adam, FusedOptimizer::sgd}) {
    for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
      const auto about = [&] { return testing::Message() << "kernel " << static_cast<int>(kernel) << " in " << dtype; };
      EXPECT_TRUE(check_passes(kernel, dtype, DefectiveStep::none)) << about();
      for (const auto defect : {DefectiveStep::vectors_stay, DefectiveStep::last_ones_stay, DefectiveStep::only_first_step,
                                DefectiveStep::not_divided, DefectiveStep::unskipped})
        EXPECT_FALSE(check_passes(kernel, dtype, defect)) << about() << ", defect " << defect;
    }
  }
}

TEST(FusedKernels, TheCheckLeavesRandomNumbersAsTheyWere) {
  torch::manual_seed(5);
  const auto expected = torch::rand({3});
  torch::manual_seed(5);
  check_passes(FusedOptimizer::sgd, torch::kFloat, DefectiveStep::none);
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
}

/// How many warnings a process gives that steps bf16 weights with two optimizers.
[[noreturn]] void exit_with_number_of_warnings() {
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    auto weight = torch::ones({64}, torch::kBFloat16);
    torch::optim::SGD sgd({weight}, 0.5);
    AcceleratedOptimizer prepared(sgd, std::make_shared<GradientState>());
    weight.mutable_grad() = torch::ones_like(weight);
    prepared.step();
    prepared.step();
  }
  const std::string text = testing::internal::GetCapturedStderr();
  const std::string warning =
      "The fused SGD kernel of LibTorch " TORCH_VERSION " gives wrong results for BFloat16 weights on cpu";
  int count = 0;
  for (size_t at = text.find(warning); at != std::string::npos; at = text.find(warning, at + 1)) ++count;
  std::_Exit(40 + count);  // no code of any other failure
}

TEST(FusedKernels, AWrongKernelIsWarnedOfOnceInAProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const bool right = accelerate::detail::steps_rightly(
      FusedOptimizer::sgd, torch::TensorOptions().dtype(torch::kBFloat16),
      [](torch::optim::Optimizer& optimizer) { return accelerate::detail::make_step(optimizer, /*on_trial=*/true); });
  EXPECT_EXIT(exit_with_number_of_warnings(), testing::ExitedWithCode(right ? 40 : 41), "");
}

}  // namespace
