#include <accelerate/console/progress.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/format_tensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace {

std::string streamed(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor;
  return text.str();
}

TEST(FormatTensor, OneWithoutDimensionsIsItsNumberAndTakesItsFormats) {
  const auto loss = torch::tensor(2.0 / 3, torch::requires_grad());
  EXPECT_EQ(accelerate::format("epoch {} loss {:.3f}", 3, loss), "epoch 3 loss 0.667");
  EXPECT_EQ(accelerate::format("{} {}", torch::tensor(0.1f), torch::tensor(0.1, torch::kDouble)), "0.1 0.1");
  EXPECT_EQ(accelerate::format("{} {:.2e}", torch::tensor(1.5f).to(torch::kBFloat16), torch::tensor(1.5f).to(torch::kHalf)),
            "1.5 1.50e+00");
  EXPECT_EQ(accelerate::format("{:>4}{:d}{:x}", torch::tensor(7), torch::tensor(7, torch::kByte), torch::tensor(255)), "   77ff");
  EXPECT_EQ(accelerate::format("{}", torch::tensor(7).to(torch::kUInt64)), "7");
  EXPECT_EQ(accelerate::format("{} {}", torch::tensor(true), torch::ones({2}).sum() > 3), "true false");
}

TEST(FormatTensor, OthersAreAsLibTorchStreamsThem) {
  for (const auto& tensor : {torch::arange(4), torch::ones({2, 3}), torch::empty({0}), torch::Tensor(),
                             torch::complex(torch::tensor(1.0), torch::tensor(2.0)), torch::ones({2}).to_sparse()})
    EXPECT_EQ(accelerate::format("{}!", tensor), streamed(tensor) + "!");
}

TEST(FormatTensor, OneWithoutValuesIsItsTypeAndShape) {
  const auto nothing = torch::empty({2, 3}, torch::kMeta);
  EXPECT_EQ(accelerate::format("{}", nothing), "[ " + nothing.toString() + "{2,3} ]");
  EXPECT_EQ(accelerate::format("{}", torch::empty({}, torch::kMeta)), "[ " + nothing.toString() + "{} ]");
}

TEST(FormatTensor, ANumbersFormatForSeveralNumbersIsAUsageError) {
  EXPECT_THROW(accelerate::format("{:.3f}", torch::ones({2})), accelerate::UsageError);
}

TEST(FormatTensor, ProgressBarsTakeThem) {
  accelerate::ProgressBar bar({.disable = true});
  bar.set_postfix({{"loss", torch::tensor(0.5)}});
  EXPECT_EQ(accelerate::format_arguments("{}", std::array{accelerate::FormatArgument(torch::tensor(0.5))}), "0.5");
}

}  // namespace
