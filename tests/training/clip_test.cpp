#include <accelerate/core/error.h>
#include <accelerate/training/clip.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace {

using accelerate::clip_grad_norm_;
using accelerate::clip_grad_value_;

torch::Tensor clipped_parameter(const torch::Tensor& gradient) {
  auto parameter = torch::zeros(gradient.sizes(), gradient.options()).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

TEST(Clip, NormOfAnyOrderIsReturnedAsItWas) {
  const auto norm = [](double order) {
    return clip_grad_norm_({clipped_parameter(torch::tensor({3.0, 0.0})), clipped_parameter(torch::tensor({-4.0}))}, 1,
                           {.norm_type = order})
        .item<double>();
  };
  EXPECT_DOUBLE_EQ(norm(2), 5);
  EXPECT_DOUBLE_EQ(norm(1), 7);
  EXPECT_DOUBLE_EQ(norm(std::numeric_limits<double>::infinity()), 4);
  EXPECT_DOUBLE_EQ(norm(-std::numeric_limits<double>::infinity()), 0);
  EXPECT_NEAR(norm(3), std::cbrt(27 + 64), 1e-6);
  // As torch: the norm of the norms, so a count of tensors that are not zero.
  EXPECT_DOUBLE_EQ(norm(0), 2);
  EXPECT_DOUBLE_EQ(norm(-1), 0);
}

TEST(Clip, GradientsAreScaledDownToTheNormAndNeverUp) {
  const auto large = clipped_parameter(torch::tensor({3.0, 4.0})), small = clipped_parameter(torch::tensor({0.3, 0.4}));
  clip_grad_norm_({large}, 1);
  EXPECT_NEAR(large.grad().norm().item<double>(), 1, 1e-6);
  clip_grad_norm_({small}, 1);
  EXPECT_TRUE(torch::equal(small.grad(), torch::tensor({0.3, 0.4})));
}

TEST(Clip, ParametersWithoutGradientAreLeftOutAndSharedOnesCountOnce) {
  const auto shared = clipped_parameter(torch::tensor({3.0, 4.0}));
  EXPECT_DOUBLE_EQ(clip_grad_norm_({shared, torch::zeros({2}, torch::requires_grad()), shared}, 1).item<double>(), 5);
  EXPECT_NEAR(shared.grad().norm().item<double>(), 1, 1e-6);
  EXPECT_EQ(clip_grad_norm_({}, 1).item<double>(), 0);
  EXPECT_NO_THROW(clip_grad_value_({}, 1));
}

TEST(Clip, GradientsOfSeveralDtypesAreOneVector) {
  const auto narrow = clipped_parameter(torch::tensor({3.0}, torch::kBFloat16)),
             wide = clipped_parameter(torch::tensor({4.0}, torch::kDouble));
  EXPECT_DOUBLE_EQ(clip_grad_norm_({narrow, wide}, 2.5).item<double>(), 5);
  EXPECT_NEAR(narrow.grad().item<double>(), 1.5, 1e-2);
  EXPECT_NEAR(wide.grad().item<double>(), 2, 1e-5);
}

TEST(Clip, NormThatIsNotFiniteIsAnErrorWhenAskedFor) {
  const auto parameter = clipped_parameter(torch::tensor({std::numeric_limits<double>::infinity(), 1.0}));
  EXPECT_THROW(clip_grad_norm_({parameter}, 1, {.error_if_nonfinite = true}), accelerate::UsageError);
  EXPECT_EQ(parameter.grad()[1].item<double>(), 1) << "and gradients are as they were";
  EXPECT_TRUE(std::isinf(clip_grad_norm_({parameter}, 1).item<double>()));
}

TEST(Clip, ValuesAreBroughtIntoTheirRange) {
  const auto parameter = clipped_parameter(torch::tensor({-3.0, -0.25, 0.5, 7.0}));
  clip_grad_value_({parameter}, 0.5);
  EXPECT_TRUE(torch::equal(parameter.grad(), torch::tensor({-0.5, -0.25, 0.5, 0.5})));
}

}  // namespace
