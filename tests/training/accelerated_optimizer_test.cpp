#include <accelerate/core/error.h>
#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/grad_scaler.h>
#include <accelerate/training/gradient_state.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace {

using accelerate::AcceleratedOptimizer;
using accelerate::GradientState;
using accelerate::GradScaler;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::SGD;

torch::Tensor weight_with_gradient(double gradient = 1) {
  auto weight = torch::ones({2}, torch::requires_grad());
  weight.mutable_grad() = torch::full({2}, gradient);
  return weight;
}

TEST(AcceleratedOptimizer, StepAndZeroGradDoNothingWhileGradientsAreAccumulated) {
  auto weight = weight_with_gradient();
  SGD sgd({weight}, 0.5);
  const auto state = std::make_shared<GradientState>();
  AcceleratedOptimizer optimizer(sgd, state);
  state->set_sync_gradients(false);
  optimizer.step();
  optimizer.zero_grad();
  EXPECT_TRUE(weight.grad().defined());
  EXPECT_TRUE(torch::equal(weight, torch::ones({2})));
  EXPECT_FALSE(optimizer.step([] { return torch::ones({}); }).defined());
  state->set_sync_gradients(true);
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.5)));
  optimizer.zero_grad(false);
  EXPECT_TRUE(torch::equal(weight.grad(), torch::zeros({2})));
  optimizer.zero_grad();
  EXPECT_FALSE(weight.grad().defined());
}

TEST(AcceleratedOptimizer, CopiesAreTheSameOptimizer) {
  auto weight = weight_with_gradient();
  SGD sgd({weight}, 0.5), other({weight}, 0.5);
  const auto state = std::make_shared<GradientState>();
  AcceleratedOptimizer optimizer(sgd, state);
  auto copy = optimizer;
  EXPECT_EQ(copy, optimizer);
  EXPECT_EQ(&copy.optimizer(), &sgd);
  EXPECT_EQ(copy, AcceleratedOptimizer(sgd, state)) << "prepared twice";
  EXPECT_FALSE(copy == AcceleratedOptimizer(other, state));
  copy.param_groups()[0].options().set_lr(0.25);
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.75)));
}

TEST(AcceleratedOptimizer, KeepsASharedOptimizerAlive) {
  auto weight = weight_with_gradient();
  const auto state = std::make_shared<GradientState>();
  AcceleratedOptimizer optimizer(std::make_shared<SGD>(std::vector<torch::Tensor>{weight}, 0.5), state);
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.5)));
  EXPECT_THROW(AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer>(), state), accelerate::UsageError);
}

TEST(AcceleratedOptimizer, ClosureIsCalledWithGradientsOnAndItsLossReturned) {
  auto weight = torch::ones({2}, torch::requires_grad());
  SGD sgd({weight}, 0.5);
  AcceleratedOptimizer optimizer(sgd, std::make_shared<GradientState>());
  const torch::NoGradGuard no_grad;
  const auto loss = optimizer.step([&] {
    auto sum = weight.sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(loss.item<double>(), 2);
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.5)));
}

TEST(AcceleratedOptimizer, AnOptimizerThatNeedsItsClosureSeveralTimesGetsIt) {
  auto weight = torch::full({2}, 3.0, torch::requires_grad());
  torch::optim::LBFGS lbfgs({weight}, torch::optim::LBFGSOptions(0.5).max_iter(20));
  AcceleratedOptimizer optimizer(lbfgs, std::make_shared<GradientState>());
  int calls = 0;
  optimizer.step([&] {
    ++calls;
    optimizer.zero_grad();
    auto loss = (weight * weight).sum();
    loss.backward();
    return loss;
  });
  EXPECT_GT(calls, 1);
  EXPECT_LT(weight.detach().abs().max().item<double>(), 0.1);
}

TEST(AcceleratedOptimizer, ClosureWithAScalerIsRefused) {
  auto weight = weight_with_gradient();
  SGD sgd({weight}, 0.5);
  AcceleratedOptimizer optimizer(sgd, std::make_shared<GradientState>(), std::make_shared<GradScaler>());
  EXPECT_THROW(optimizer.step([] { return torch::ones({}); }), accelerate::UsageError);
}

TEST(AcceleratedOptimizer, AWeightThatIsListedTwiceIsSteppedOnce) {
  auto weight = weight_with_gradient();
  SGD sgd({weight, weight}, 0.5);
  AcceleratedOptimizer optimizer(sgd, std::make_shared<GradientState>());
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.5)));
  sgd.add_param_group({{weight}});
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, torch::zeros({2})));
}

TEST(AcceleratedOptimizer, StateGoesToTheDeviceOfItsParameter) {
  // Adagrad makes its state at once; meta stands for a device that the CPU build has.
  auto weight = torch::ones({2}, torch::requires_grad());
  torch::optim::Adagrad adagrad({weight});
  weight.unsafeGetTensorImpl()->shallow_copy_from(torch::ones({2}, torch::kMeta).getIntrusivePtr());
  const auto device_of_sum = [&] {
    return static_cast<torch::optim::AdagradParamState&>(*adagrad.state().at(weight.unsafeGetTensorImpl())).sum().device();
  };
  AcceleratedOptimizer unplaced(adagrad, std::make_shared<GradientState>(), nullptr, /*device_placement=*/false);
  EXPECT_TRUE(device_of_sum().is_cpu());
  AcceleratedOptimizer placed(adagrad, std::make_shared<GradientState>());
  EXPECT_TRUE(device_of_sum().is_meta());
}

TEST(AcceleratedOptimizer, TheHistoryOfLbfgsGoesToTheDeviceOfItsParameter) {
  auto weight = torch::full({2}, 3.0, torch::requires_grad());
  torch::optim::LBFGS lbfgs({weight}, torch::optim::LBFGSOptions(0.1).max_iter(5));
  lbfgs.step([&] {
    lbfgs.zero_grad();
    auto loss = weight.pow(4).sum();
    loss.backward();
    return loss;
  });
  auto& state = static_cast<torch::optim::LBFGSParamState&>(*lbfgs.state().at(weight.unsafeGetTensorImpl()));
  ASSERT_FALSE(state.old_dirs().empty());
  weight.unsafeGetTensorImpl()->shallow_copy_from(torch::ones({2}, torch::kMeta).getIntrusivePtr());
  AcceleratedOptimizer placed(lbfgs, std::make_shared<GradientState>());
  std::vector<torch::Tensor> history = {state.d(), state.H_diag(), state.prev_flat_grad()};
  for (const auto* list : {&state.old_dirs(), &state.old_stps(), &state.ro()})
    history.insert(history.end(), list->begin(), list->end());
  for (const auto& tensor : history) EXPECT_TRUE(tensor.is_meta());
}

/// A step of a loss whose gradient is `gradient`, through backward as in training.
void scaled_backward(GradScaler& scaler, const torch::Tensor& weight, double gradient) {
  scaler.scale((weight * gradient).sum()).backward();
}

TEST(AcceleratedOptimizer, SkippedStepChangesNothingAndIsTold) {
  auto weight = torch::ones({2}, torch::requires_grad());
  AdamW adamw({weight}, AdamWOptions(0.1));
  const auto scaler = std::make_shared<GradScaler>(accelerate::GradScalerOptions{.init_scale = 8});
  const auto state = std::make_shared<GradientState>();
  AcceleratedOptimizer optimizer(adamw, state, scaler);
  const auto steps = [&] {
    return static_cast<torch::optim::AdamWParamState&>(*adamw.state().at(weight.unsafeGetTensorImpl())).step();
  };
  scaled_backward(*scaler, weight, 1);
  optimizer.step();
  optimizer.zero_grad();
  EXPECT_FALSE(optimizer.step_was_skipped());
  EXPECT_EQ(steps(), 1);
  const auto before = weight.detach().clone();
  scaled_backward(*scaler, weight, std::numeric_limits<double>::infinity());
  optimizer.step();
  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_EQ(steps(), 1);
  EXPECT_TRUE(torch::equal(weight, before));
  EXPECT_EQ(scaler->get_scale(), 4);
  // While gradients are accumulated the answer stays, until a step is taken.
  state->set_sync_gradients(false);
  optimizer.step();
  EXPECT_TRUE(optimizer.step_was_skipped());
  state->set_sync_gradients(true);
  optimizer.zero_grad();
  scaled_backward(*scaler, weight, 1);
  optimizer.step();
  EXPECT_FALSE(optimizer.step_was_skipped());
  EXPECT_EQ(steps(), 2);
}

TEST(AcceleratedOptimizer, GradientsAccumulatedOverSeveralBatchesAreUnscaledOnce) {
  auto weight = torch::ones({2}, torch::requires_grad());
  SGD sgd({weight}, 0.5);
  const auto scaler = std::make_shared<GradScaler>(accelerate::GradScalerOptions{.init_scale = 1024, .growth_interval = 1});
  const auto state = std::make_shared<GradientState>(2);
  AcceleratedOptimizer optimizer(sgd, state, scaler);
  for (int i = 0; i < 4; ++i) {
    state->count_batch();
    scaled_backward(*scaler, weight, 0.25);
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.5)));
  EXPECT_EQ(scaler->get_scale(), 4096);
}

TEST(AcceleratedOptimizer, GradientsThatAreThrownAwayAfterUnscalingLeaveNothingBehind) {
  auto weight = torch::ones({2}, torch::requires_grad());
  const auto scaler = std::make_shared<GradScaler>(accelerate::GradScalerOptions{.init_scale = 1024});
  auto sgd = std::make_shared<SGD>(std::vector<torch::Tensor>{weight}, 0.5);
  AcceleratedOptimizer optimizer(sgd, std::make_shared<GradientState>(), scaler);
  // A loop that clips, finds the norm too large, and goes on to the next batch.
  scaled_backward(*scaler, weight, 100);
  scaler->unscale_(*sgd);
  optimizer.zero_grad();
  EXPECT_FALSE(scaler->is_unscaled(*sgd));
  scaled_backward(*scaler, weight, 1);
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.5)));

  // Likewise an optimizer that is prepared anew, or another at its address, as after a lack of memory.
  scaled_backward(*scaler, weight, 1);
  scaler->unscale_(*sgd);
  weight.mutable_grad().reset();
  AcceleratedOptimizer again(sgd, std::make_shared<GradientState>(), scaler);
  scaled_backward(*scaler, weight, 1);
  again.step();
  EXPECT_TRUE(torch::equal(weight, torch::zeros({2})));
}

TEST(AcceleratedOptimizer, SeveralOptimizersShareAScaler) {
  auto first = torch::ones({2}, torch::requires_grad()), second = torch::ones({2}, torch::requires_grad());
  SGD sgd_first({first}, 0.5), sgd_second({second}, 0.5);
  // The factor doubles at every step: the second optimizer must use the one that its gradients were made with.
  const auto scaler = std::make_shared<GradScaler>(accelerate::GradScalerOptions{.init_scale = 8, .growth_interval = 1});
  const auto state = std::make_shared<GradientState>();
  AcceleratedOptimizer one(sgd_first, state, scaler), two(sgd_second, state, scaler);
  scaler->scale((first + second).sum()).backward();
  one.step();
  EXPECT_EQ(scaler->get_scale(), 16);
  two.step();
  EXPECT_TRUE(torch::equal(first, torch::full({2}, 0.5)));
  EXPECT_TRUE(torch::equal(second, torch::full({2}, 0.5)));
  one.zero_grad();
  two.zero_grad();

  // Unscaled for both, as clipping does, then one overflows: the other steps, and with what it was given.
  scaler->scale((first * std::numeric_limits<double>::infinity() + second).sum()).backward();
  scaler->unscale_(sgd_first);
  scaler->unscale_(sgd_second);
  one.step();
  two.step();
  EXPECT_TRUE(one.step_was_skipped());
  EXPECT_FALSE(two.step_was_skipped());
  EXPECT_TRUE(torch::equal(first, torch::full({2}, 0.5)));
  EXPECT_TRUE(torch::equal(second, torch::zeros({2})));
}

TEST(AcceleratedOptimizer, AnotherGoesOnFromItsState) {
  const auto state = std::make_shared<GradientState>();
  auto first = torch::ones({2}).requires_grad_(), second = torch::ones({2}).requires_grad_();
  AdamW adamw_first({first}, AdamWOptions(0.1)), adamw_second({second}, AdamWOptions(7));
  AcceleratedOptimizer one(adamw_first, state), other(adamw_second, state);
  first.sum().backward();
  one.step();
  second.data().copy_(first.data());
  other.load_state_dict(one.state_dict());
  for (auto* optimizer : {&one, &other}) {
    optimizer->zero_grad();
    (optimizer == &one ? first : second).square().sum().backward();
    optimizer->step();
  }
  EXPECT_TRUE(torch::equal(first, second)) << first << second;
}

TEST(AcceleratedOptimizer, TwoThatTakeTurnsWithALossEachAreUnscaledInTheirOwnTurn) {
  auto first = torch::ones({2}, torch::requires_grad()), second = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD sgd_first({first}, 1.0), sgd_second({second}, 1.0);
  const auto scaler = std::make_shared<GradScaler>(accelerate::GradScalerOptions{.init_scale = 8});
  const auto state = std::make_shared<GradientState>();
  AcceleratedOptimizer one(sgd_first, state, scaler), two(sgd_second, state, scaler);
  for (int turn = 1; turn <= 3; ++turn) {
    one.zero_grad();
    // The loss of the first reaches the second's weight as well, from its second turn on.
    scaler->scale(turn == 1 ? first.sum() : (first + 100 * second).sum()).backward();
    scaler->unscale_(sgd_first);
    scaler->unscale_(sgd_second);
    one.step();
    if (turn == 2) {
      second.mutable_grad().reset();  // not by its optimizer
    } else {
      two.zero_grad();
    }
    scaler->scale(second.sum()).backward();
    EXPECT_FALSE(scaler->is_unscaled(sgd_second));
    two.step();
    EXPECT_EQ(first[0].item<double>(), 1 - turn);
    EXPECT_EQ(second[0].item<double>(), 1 - turn);
  }
}

TEST(AcceleratedOptimizer, GradientsThatAreAddedToUnscaledOnesAreNotUnscaledAgain) {
  auto weight = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  GradScaler scaler({.init_scale = 8});
  scaler.scale(weight.sum()).backward();
  scaler.unscale_(sgd);
  EXPECT_TRUE(scaler.is_unscaled(sgd));
  scaler.scale(weight.sum()).backward();
  EXPECT_FALSE(scaler.is_unscaled(sgd));
  EXPECT_THROW(scaler.unscale_(sgd), accelerate::UsageError) << "the sum of both is of two scales";
}

/// Weights after some steps whose gradients were clipped to a norm of 1, at once or in the step.
template <class Optimizer, class Options>
torch::Tensor clipped_steps(const Options& options, bool scaled, bool in_step, bool infinite = false) {
  auto weight = torch::ones({2}, torch::requires_grad());
  Optimizer raw({weight}, options);
  const auto scaler = scaled ? std::make_shared<GradScaler>(accelerate::GradScalerOptions{.init_scale = 1024}) : nullptr;
  AcceleratedOptimizer optimizer(raw, std::make_shared<GradientState>(), scaler);
  for (int i = 0; i < 5; ++i) {
    const auto loss = (weight * torch::tensor({0.2 + i, 0.4})).sum() * (infinite && i == 2 ? INFINITY : 1.0);
    (scaled ? scaler->scale(loss) : loss).backward();
    torch::Tensor norm;
    if (in_step) {
      const auto before = weight.grad().clone();
      const auto taken = optimizer.clip_in_step({weight}, 1, {});
      EXPECT_TRUE(taken.has_value());
      if (taken) norm = *taken;
      EXPECT_TRUE(torch::equal(weight.grad(), before) || infinite) << "the step scales them";
    } else {
      if (scaled) scaler->unscale_(raw);
      norm = accelerate::clip_grad_norm_({weight}, 1);
    }
    if (!infinite) {
      EXPECT_NEAR(norm.item<double>(), std::hypot(0.2 + i, 0.4), 1e-5);
    }
    optimizer.step();
    EXPECT_EQ(optimizer.step_was_skipped(), scaled && infinite && i == 2);
    optimizer.zero_grad();
  }
  if (scaled) {
    EXPECT_EQ(scaler->get_scale(), infinite ? 512 : 1024);
  }
  return weight.detach();
}

TEST(AcceleratedOptimizer, GradientsThatAreClippedInTheStepGiveTheSameStep) {
  using torch::optim::Adam;
  const torch::optim::SGDOptions momentum = torch::optim::SGDOptions(0.1).momentum(0.9);
  for (const bool scaled : {false, true}) {
    for (const bool infinite : {false, true}) {
      if (infinite && !scaled) continue;
      const auto expect_same = [&](const auto& steps) {
        EXPECT_TRUE(torch::allclose(steps(true), steps(false), 1e-6, 1e-7)) << scaled << infinite;
      };
      expect_same([&](bool in_step) { return clipped_steps<AdamW>(AdamWOptions(0.1), scaled, in_step, infinite); });
      expect_same([&](bool in_step) { return clipped_steps<Adam>(torch::optim::AdamOptions(0.1), scaled, in_step, infinite); });
      expect_same([&](bool in_step) { return clipped_steps<SGD>(momentum, scaled, in_step, infinite); });
    }
  }
}

TEST(AcceleratedOptimizer, WhatAStepCannotClipIsLeftToOthers) {
  auto weight = weight_with_gradient(), other = weight_with_gradient();
  SGD sgd({weight}, 0.5);
  torch::optim::RMSprop plain({other}, 0.5);
  const auto state = std::make_shared<GradientState>();
  AcceleratedOptimizer optimizer(sgd, state);
  EXPECT_FALSE(optimizer.clip_in_step({weight, other}, 1, {}).has_value()) << "a norm of more than it steps";
  EXPECT_FALSE(optimizer.clip_in_step({}, 1, {}).has_value());
  EXPECT_FALSE(AcceleratedOptimizer(plain, state).clip_in_step({other}, 1, {}).has_value());
  EXPECT_THROW(accelerate::clip_grad_norm_({weight}, 1, {.in_step = true}), accelerate::UsageError);
  weight.mutable_grad()[0] = INFINITY;
  EXPECT_THROW(optimizer.clip_in_step({weight}, 1, {.error_if_nonfinite = true}), accelerate::UsageError);
  optimizer.step();
  EXPECT_TRUE(weight[0].isinf().item<bool>()) << "nothing was left to it";
  const auto scaler = std::make_shared<GradScaler>();
  static_cast<void>(scaler->scale(torch::ones({})));
  AcceleratedOptimizer scaled(sgd, state, scaler);
  EXPECT_THROW(scaled.clip_in_step({weight}, 1, {.error_if_nonfinite = true}), accelerate::UsageError);
  EXPECT_FALSE(scaler->is_unscaled(sgd));
  EXPECT_FALSE(scaled.clip_in_step({weight}, 1, {.norm_type = 0}).has_value()) << "it counts, whatever is infinite";
}

TEST(AcceleratedOptimizer, GradientsThatChangeAfterTheyWereClippedInTheStepAreAnError) {
  auto weight = weight_with_gradient(4);
  SGD sgd({weight}, 1);
  AcceleratedOptimizer optimizer(sgd, std::make_shared<GradientState>());
  optimizer.clip_in_step({weight}, 1, {});
  weight.mutable_grad().add_(1);
  EXPECT_THROW(optimizer.step(), accelerate::UsageError);
  EXPECT_TRUE(torch::equal(weight, torch::ones({2})));
  // Those that no step came to do not count.
  optimizer.clip_in_step({weight}, 1, {});
  weight.mutable_grad() = torch::zeros({2});
  optimizer.clip_in_step({weight}, 1, {});
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, torch::ones({2})));
  // Clipped twice, the second time at once.
  weight.mutable_grad() = torch::tensor({3.0f, 4.0f});
  optimizer.clip_in_step({weight}, 1, {});
  optimizer.clip_now();
  EXPECT_NEAR(accelerate::clip_grad_norm_({weight}, 0.5).item<double>(), 1, 1e-5);
  optimizer.step();
  EXPECT_TRUE(torch::allclose(weight, torch::tensor({0.7f, 0.6f}), 1e-5));
}

}  // namespace
