// Gradients that are added up in another dtype than their parameters have.
#include <torch/torch.h>

#include "support/together.h"

namespace {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;

constexpr int kBatches = 512;

AcceleratorOptions adding_up_in(std::optional<at::ScalarType> dtype) {
  return {.cpu = true, .gradient_accumulation_steps = kBatches, .gradient_accumulation = {.dtype = dtype}};
}

/// A weight whose gradient is 1 / kBatches in every batch.
struct Sum {
  Sum(std::optional<at::ScalarType> dtype, at::ScalarType weights)
      : accelerator(adding_up_in(dtype)),
        net([&] {
          torch::nn::Linear made(torch::nn::LinearOptions(1, 1).bias(false));
          made->to(weights);
          return made;
        }()),
        model(accelerator.prepare(net)) {}

  void take(int batches) {
    for (int i = 0; i < batches; ++i) {
      auto scope = accelerator.accumulate(model);
      accelerator.backward(model(torch::ones({1, 1}, net->weight.scalar_type())).sum());
    }
  }
  double gradient() const { return net->weight.grad().item<double>(); }

  Accelerator accelerator;
  torch::nn::Linear net;
  accelerate::Model<torch::nn::LinearImpl> model;
};

class TogetherAccumulationDtype : public Together {};

TEST_F(TogetherAccumulationDtype, SmallGradientsOfHalfWeightsAreKept) {
  Sum lossy({}, at::kBFloat16), kept(at::kFloat, at::kBFloat16);
  for (auto* sum : {&lossy, &kept}) sum->take(kBatches);
  EXPECT_LT(lossy.gradient(), 0.6);  // bfloat16 does not grow by as little
  EXPECT_EQ(kept.gradient(), 1);
  EXPECT_EQ(kept.net->weight.grad().scalar_type(), at::kBFloat16);
}

TEST_F(TogetherAccumulationDtype, WeightsOfFloatAddUpInHalfAndBeginAnewAfterAStep) {
  Sum sum(at::kBFloat16, at::kFloat);
  sum.take(kBatches - 1);
  EXPECT_FALSE(sum.net->weight.grad().defined());  // it is in the buffer, with half the bytes
  sum.take(1);
  EXPECT_LT(sum.gradient(), 0.6);
  sum.net->zero_grad();
  Sum exact(at::kDouble, at::kFloat);
  for (int round = 0; round < 2; ++round) {
    exact.take(kBatches);
    EXPECT_EQ(exact.gradient(), 1) << round;
    exact.net->zero_grad();
  }
}

TEST_F(TogetherAccumulationDtype, ARunThatIsStoppedInTheMiddleGoesOn) {
  const CommonFolder folder(accelerator());
  const std::string path = folder / "saved";
  Sum sum(at::kFloat, at::kBFloat16);
  sum.take(300);
  sum.accelerator.save_state(path);
  Sum again(at::kFloat, at::kBFloat16);
  again.take(7);  // which do not count
  again.accelerator.load_state(path);
  again.take(kBatches - 300);
  EXPECT_EQ(again.gradient(), 1);
}

TEST(AccumulationDtype, OnlyFloatingPointIsTaken) { EXPECT_THROW(Accelerator(adding_up_in(at::kLong)), accelerate::UsageError); }

}  // namespace
