// Fused kernels of a CUDA device. Run by one process on one GPU, where there is one.
#include "support/together.h"
#include "training/fused_check.h"
#include "training/fused_kernels.h"
#include "training/fused_step.h"

class TogetherCudaFusedKernels : public Together {};

TEST_F(TogetherCudaFusedKernels, WeightsOfEverySizeAndDtypeAreSteppedAsByThePlainOptimizer) {
  fused_kernels::expect_every_size_right(accelerator().device());
  fused_kernels::expect_large_sizes_right(accelerator().device());
}

TEST_F(TogetherCudaFusedKernels, WeightsOfEveryLayoutAndDtypeAreSteppedAsByThePlainOptimizer) {
  fused_kernels::expect_every_layout_right(accelerator().device());
}

// Else every step of a GPU would be the slow one.
TEST_F(TogetherCudaFusedKernels, TheCheckPassesEveryKernel) {
  using accelerate::detail::FusedOptimizer;
  for (const auto kernel : {FusedOptimizer::adamw, FusedOptimizer::adam, FusedOptimizer::sgd}) {
    for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
      EXPECT_TRUE(accelerate::detail::steps_rightly(
          kernel, torch::TensorOptions().dtype(dtype).device(accelerator().device()),
          [](torch::optim::Optimizer& optimizer) { return accelerate::detail::make_step(optimizer, /*on_trial=*/true); }))
          << "kernel " << static_cast<int>(kernel) << " in " << dtype;
    }
  }
}
