#include <ATen/autocast_mode.h>
#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <accelerate/training/autocast.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace {

using accelerate::autocast_dtype;
using accelerate::AutocastScope;
using accelerate::Precision;
using accelerate::UsageError;

torch::ScalarType dtype_of_product() { return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(); }

TEST(Autocast, Bf16OnCpuCastsWithinTheScopeOnly) {
  EXPECT_EQ(dtype_of_product(), torch::kFloat);
  {
    AutocastScope scope(Precision::bf16, torch::kCPU);
    EXPECT_EQ(dtype_of_product(), torch::kBFloat16);
    const auto low = torch::ones({2}, torch::kBFloat16);
    EXPECT_EQ(torch::mse_loss(low, low).scalar_type(), torch::kFloat);
  }
  EXPECT_EQ(dtype_of_product(), torch::kFloat);
}

TEST(Autocast, AScopeCanBeSwitchedOffWithinAnother) {
  AutocastScope outer(Precision::bf16, torch::kCPU);
  {
    AutocastScope off(Precision::bf16, torch::kCPU, {.enabled = false});
    EXPECT_EQ(dtype_of_product(), torch::kFloat);
    AutocastScope on_again(torch::kCPU, torch::kHalf);
    EXPECT_EQ(dtype_of_product(), torch::kHalf);
  }
  EXPECT_EQ(dtype_of_product(), torch::kBFloat16);
}

TEST(Autocast, EndsAlsoByAnException) {
  const bool cache_before = at::autocast::is_autocast_cache_enabled();
  const auto dtype_before = at::autocast::get_autocast_dtype(torch::kCPU);
  try {
    AutocastScope scope(torch::kCPU, torch::kHalf, {.cache_enabled = !cache_before});
    EXPECT_EQ(at::autocast::is_autocast_cache_enabled(), !cache_before);
    throw 1;
  } catch (int) {
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
  EXPECT_EQ(at::autocast::is_autocast_cache_enabled(), cache_before);
  EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), dtype_before);
}

TEST(Autocast, CastCopiesOfWeightsAreDroppedWithTheOutermostScope) {
  auto weight = torch::ones({2, 2}, torch::requires_grad());
  const auto product = [&] { return torch::mm(weight, torch::ones({2, 2})).sum().item<double>(); };
  {
    AutocastScope outer(Precision::bf16, torch::kCPU);
    {
      AutocastScope inner(Precision::bf16, torch::kCPU);
      EXPECT_EQ(product(), 8);
    }
    const torch::NoGradGuard no_grad;
    weight.fill_(2);
    const torch::AutoGradMode with_grad(true);
    EXPECT_EQ(product(), 8) << "the inner scope has left the cache to the outer";
  }
  AutocastScope next(Precision::bf16, torch::kCPU);
  EXPECT_EQ(product(), 16);
}

TEST(Autocast, WhereItIsMissingNothingIsCast) {
  EXPECT_EQ(autocast_dtype(Precision::no, torch::kCPU), std::nullopt);
  EXPECT_EQ(autocast_dtype(Precision::no, torch::kCUDA), std::nullopt);
  EXPECT_EQ(autocast_dtype(Precision::fp16, torch::kCPU), std::nullopt);
  EXPECT_EQ(autocast_dtype(Precision::fp16, torch::kCUDA), torch::kHalf);
  EXPECT_EQ(autocast_dtype(Precision::bf16, torch::kCPU), torch::kBFloat16);
  EXPECT_EQ(autocast_dtype(Precision::bf16, torch::kCUDA), torch::kBFloat16);
  AutocastScope scope(Precision::fp16, torch::kCPU);
  EXPECT_EQ(dtype_of_product(), torch::kFloat);
}

TEST(Autocast, WhatNoDeviceHereCanDoIsRefused) {
  EXPECT_THROW(autocast_dtype(Precision::fp8, torch::kCPU), UsageError);
  EXPECT_THROW(autocast_dtype(Precision::fp8, torch::kCUDA), UsageError);
  EXPECT_THROW(autocast_dtype(Precision::fp16, torch::kVulkan), UsageError);
  EXPECT_THROW(AutocastScope(Precision::bf16, torch::kVulkan), UsageError);
}

TEST(Autocast, ThatFp16ComputesInFloat32OnCpuIsSaidOnceForEachLogger) {
  const auto told = [](Precision precision, int times) {
    const accelerate::Logger logger("accelerate", accelerate::LogLevel::info, {});
    testing::internal::CaptureStderr();
    for (int i = 0; i < times; ++i) accelerate::warn_where_autocast_is_missing(precision, torch::kCPU, logger);
    return testing::internal::GetCapturedStderr();
  };
  const auto text = told(Precision::fp16, 3);
  EXPECT_NE(text.find("float32"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_EQ(told(Precision::fp16, 2), text) << "another accelerator says it again";
  EXPECT_EQ(told(Precision::bf16, 1), "");
  EXPECT_EQ(told(Precision::no, 1), "");
}

}  // namespace
