#include <accelerate/core/error.h>
#include <accelerate/training/grad_scaler.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace {

using accelerate::GradScaler;
using accelerate::StateDict;
using accelerate::UsageError;
using torch::optim::SGD;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// A weight, its optimizer, and a scaler that starts at 8.
struct ScaledTraining {
  torch::Tensor weight = torch::ones({2}, torch::requires_grad());
  SGD sgd{{weight}, 0.5};
  GradScaler scaler{{.init_scale = 8, .growth_interval = 2}};

  void backward(double gradient) {
    sgd.zero_grad();
    scaler.scale((weight * gradient).sum()).backward();
  }
};

TEST(GradScaler, LossesAreMultipliedAndGradientsDividedByTheFactor) {
  ScaledTraining training;
  EXPECT_EQ(training.scaler.scale(torch::full({}, 3.0)).item<double>(), 24);
  training.backward(0.5);
  EXPECT_TRUE(torch::equal(training.weight.grad(), torch::full({2}, 4.0)));
  training.scaler.unscale_(training.sgd);
  EXPECT_TRUE(torch::equal(training.weight.grad(), torch::full({2}, 0.5)));
  EXPECT_TRUE(training.scaler.is_unscaled(training.sgd));
  EXPECT_TRUE(training.scaler.step(training.sgd));
  EXPECT_FALSE(training.scaler.is_unscaled(training.sgd));
  EXPECT_TRUE(torch::equal(training.weight, torch::full({2}, 0.75))) << "unscaled once";
}

TEST(GradScaler, FactorGrowsAfterAnIntervalOfStepsAndFallsAfterASkippedOne) {
  ScaledTraining training;
  std::vector<double> scales;
  for (const double gradient : {0.0, 0.0, 0.0, kInfinite, 0.0, std::nan(""), 0.0, 0.0}) {
    training.backward(gradient);
    EXPECT_EQ(training.scaler.step(training.sgd), std::isfinite(gradient));
    training.scaler.update();
    scales.push_back(training.scaler.get_scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 16, 16, 8, 8, 4, 4, 8}));
  EXPECT_TRUE(torch::equal(training.weight, torch::ones({2})));
}

TEST(GradScaler, ANewFactorMayBeSet) {
  ScaledTraining training;
  training.backward(1);
  training.scaler.step(training.sgd);
  training.scaler.update(32.0);
  EXPECT_EQ(training.scaler.get_scale(), 32);
  EXPECT_EQ(training.scaler.scale(torch::ones({})).item<double>(), 32);
}

TEST(GradScaler, CallsInAWrongOrderAreRefused) {
  ScaledTraining training;
  EXPECT_THROW(training.scaler.unscale_(training.sgd), UsageError) << "no loss was scaled";
  EXPECT_THROW(training.scaler.step(training.sgd), UsageError);
  EXPECT_THROW(training.scaler.update(), UsageError);
  training.backward(1);
  EXPECT_THROW(training.scaler.update(), UsageError) << "no step was taken";
  training.scaler.unscale_(training.sgd);
  EXPECT_THROW(training.scaler.unscale_(training.sgd), UsageError) << "twice";
  training.scaler.step(training.sgd);
  EXPECT_THROW(training.scaler.unscale_(training.sgd), UsageError) << "after the step";
  EXPECT_THROW(training.scaler.step(training.sgd), UsageError) << "without an update";
  training.scaler.update();
  training.sgd.zero_grad();
  EXPECT_THROW(training.scaler.step(training.sgd), UsageError) << "without gradients";
}

TEST(GradScaler, FactorsOutOfTheirRangeAreRefused) {
  EXPECT_THROW(GradScaler({.growth_factor = 1}), UsageError);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), UsageError);
}

TEST(GradScaler, WithoutItsUseNothingIsScaledAndEveryStepTaken) {
  ScaledTraining training;
  GradScaler off({.enabled = false});
  const auto loss = (training.weight * kInfinite).sum();
  EXPECT_TRUE(off.scale(loss).is_same(loss));
  training.weight.mutable_grad() = torch::ones({2});
  off.unscale_(training.sgd);
  EXPECT_TRUE(off.step(training.sgd));
  off.update();
  EXPECT_TRUE(torch::equal(training.weight, torch::full({2}, 0.5)));
  EXPECT_EQ(off.get_scale(), 1);
  EXPECT_TRUE(off.state_dict().empty());
  EXPECT_NO_THROW(off.load_state_dict({}));
}

TEST(GradScaler, GradientsOfEveryKindAreLookedAt) {
  auto plain = torch::ones({2}, torch::requires_grad()),
       wide = torch::ones({2}, torch::dtype(torch::kDouble).requires_grad(true));
  auto bf16 = torch::ones({2}, torch::dtype(torch::kBFloat16).requires_grad(true));
  auto sparse = torch::ones({4, 2}, torch::requires_grad()), strided = torch::ones({2, 3}, torch::requires_grad());
  auto unused = torch::ones({2}, torch::requires_grad());
  const std::vector<torch::Tensor> all = {unused, plain, wide, bf16, sparse, strided};
  // One gradient of each kind is infinite, one kind at a time; in the last round none.
  for (size_t infinite = 1; infinite <= all.size(); ++infinite) {
    SGD sgd(all, 0.5);
    GradScaler scaler({.init_scale = 4});
    scaler.scale(torch::ones({}));
    for (size_t i = 1; i < all.size(); ++i) {
      auto gradient = torch::full(all[i].sizes(), 4.0, all[i].options().requires_grad(false));
      if (i == 5) gradient = torch::full({3, 2}, 4.0).t();
      if (i == infinite) gradient.index_put_({0}, kInfinite);
      all[i].mutable_grad() = i == 4 ? gradient.to_sparse(1) : gradient;
    }
    EXPECT_EQ(scaler.step(sgd), infinite == all.size()) << infinite;
    if (infinite == all.size()) {
      for (size_t i = 1; i < all.size(); ++i) EXPECT_TRUE(torch::equal(all[i], torch::full_like(all[i], 0.5))) << i;
    }
  }
}

TEST(GradScaler, GradientsOfFloat16AreRefused) {
  auto weight = torch::ones({2}, torch::dtype(torch::kHalf).requires_grad(true));
  SGD sgd({weight}, 0.5);
  GradScaler scaler;
  scaler.scale(torch::ones({}));
  weight.mutable_grad() = torch::ones({2}, torch::kHalf);
  EXPECT_THROW(scaler.step(sgd), UsageError);
}

TEST(GradScaler, OneUpdateTakesAllOptimizersIntoAccount) {
  auto first = torch::ones({2}, torch::requires_grad()), second = torch::ones({2}, torch::requires_grad());
  SGD one({first}, 0.5), two({second}, 0.5);
  GradScaler scaler({.init_scale = 8, .growth_interval = 1});
  for (const bool infinite_in_first : {true, false}) {
    one.zero_grad();
    two.zero_grad();
    scaler.scale((infinite_in_first ? first * kInfinite + second : first + second * kInfinite).sum()).backward();
    EXPECT_EQ(scaler.step(one), !infinite_in_first);
    EXPECT_EQ(scaler.step(two), infinite_in_first);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), infinite_in_first ? 4 : 2);
  }
}

TEST(GradScaler, StateHasPythonsNamesAndGoesOnWhereItWas) {
  ScaledTraining training;
  const StateDict fresh = training.scaler.state_dict();
  EXPECT_EQ(
      fresh,
      (StateDict{
          {"scale", 8.0}, {"growth_factor", 2.0}, {"backoff_factor", 0.5}, {"growth_interval", 2}, {"_growth_tracker", 0}}));
  training.backward(0);
  training.scaler.step(training.sgd);
  training.scaler.update();
  const StateDict state = training.scaler.state_dict();
  EXPECT_EQ(state.at("_growth_tracker").get<int64_t>(), 1);

  // Into one that is new, and into one that has been at work.
  GradScaler unused({.growth_factor = 3, .backoff_factor = 0.25});
  ScaledTraining used;
  used.backward(kInfinite);
  used.scaler.step(used.sgd);
  used.scaler.update();
  for (auto* scaler : {&unused, &used.scaler}) {
    scaler->load_state_dict(state);
    EXPECT_EQ(scaler->state_dict(), state);
    used.sgd.zero_grad();
    scaler->scale(used.weight.sum()).backward();
    scaler->step(used.sgd);
    scaler->update();
    EXPECT_EQ(scaler->get_scale(), 16) << "the second good step of two";
  }
  EXPECT_THROW(unused.load_state_dict({}), UsageError);
  EXPECT_THROW(unused.load_state_dict({{"scale", 1.0}}), UsageError);
  EXPECT_EQ(unused.get_scale(), 16) << "a state that is refused changes nothing";
}

}  // namespace
