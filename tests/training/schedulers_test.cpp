#include <accelerate/core/error.h>
#include <accelerate/training/composed_schedulers.h>
#include <accelerate/training/one_cycle_lr.h>
#include <accelerate/training/torch_schedulers.h>
#include <accelerate/training/warmup_schedulers.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <type_traits>

#include "support/error_text.h"

// What the formulas give is in conformance/schedulers_test.cpp.
namespace {

using accelerate::UsageError;
using accelerate::testing::message_of;

torch::optim::SGD sgd_with_rates(const std::vector<double>& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double lr : rates) {
    groups.emplace_back(std::vector<torch::Tensor>{torch::zeros(1)},
                        std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(lr)));
  }
  return torch::optim::SGD(groups, torch::optim::SGDOptions(rates.front()));
}

double rate_of_group(torch::optim::Optimizer& optimizer, size_t group = 0) {
  return optimizer.param_groups()[group].options().get_lr();
}

class HalvingScheduler final : public accelerate::LRScheduler {
 public:
  explicit HalvingScheduler(torch::optim::Optimizer& optimizer) : LRScheduler(optimizer) { start(); }

 private:
  std::vector<double> get_lr() override { return scaled(current_lrs(), is_initial() ? 1 : 0.5); }
  void visit_state(accelerate::StateFields& fields) override {
    fields("favourite", favourite_);
    LRScheduler::visit_state(fields);
  }
  int64_t favourite_ = 7;
};

class ForgetfulScheduler final : public accelerate::LRScheduler {
 public:
  explicit ForgetfulScheduler(torch::optim::Optimizer& optimizer) : LRScheduler(optimizer) {}

 private:
  std::vector<double> get_lr() override { return current_lrs(); }
};

TEST(Schedulers, StayWithTheirOptimizer) {
  EXPECT_FALSE(std::is_move_constructible_v<accelerate::StepLR>);
  EXPECT_FALSE(std::is_copy_constructible_v<accelerate::StepLR>);
  auto sgd = sgd_with_rates({1});
  EXPECT_EQ(&accelerate::StepLR(sgd, {.step_size = 2}).optimizer(), &sgd);
}

TEST(Schedulers, OneOfTheUsersOwnStepsSavesAndLoads) {
  auto sgd = sgd_with_rates({1, 4});
  HalvingScheduler halving(sgd);
  EXPECT_EQ(halving.get_last_lr(), (std::vector<double>{1, 4}));
  halving.step();
  halving.step();
  EXPECT_EQ(halving.get_last_lr(), (std::vector<double>{0.25, 1}));
  EXPECT_EQ(halving.last_epoch(), 2);
  EXPECT_EQ(halving.state_dict().at("favourite"), accelerate::Value(7));

  HalvingScheduler other(sgd);
  other.load_state_dict(halving.state_dict());
  EXPECT_EQ(other.state_dict(), halving.state_dict());
}

TEST(Schedulers, OneThatNeverStartedSaysSo) {
  auto sgd = sgd_with_rates({1});
  ForgetfulScheduler forgetful(sgd);
  EXPECT_NE(message_of<UsageError>([&] { forgetful.step(); }).find("start()"), std::string::npos);
}

TEST(Schedulers, AStepThatFailsIsNotCounted) {
  auto sgd = sgd_with_rates({1});
  accelerate::OneCycleLR cycle(sgd, {.max_lr = 1, .total_steps = 2});
  cycle.step();
  cycle.step();
  EXPECT_NE(message_of<UsageError>([&] { cycle.step(); }).find("tried to step 3 times, but total_steps is 2"), std::string::npos);
  EXPECT_EQ(cycle.last_epoch(), 2);
  EXPECT_EQ(cycle.step_count(), 3);
}

TEST(Schedulers, AGroupAddedLaterIsAnErrorWhereItsRateIsUnknown) {
  auto sgd = sgd_with_rates({1});
  accelerate::LambdaLR lambda(sgd, [](int64_t) { return 0.5; });
  accelerate::ExponentialLR exponential(sgd, 0.5);
  sgd.add_param_group(torch::optim::OptimizerParamGroup({torch::zeros(1)}));
  EXPECT_NE(message_of<UsageError>([&] { lambda.step(); }).find("1 learning rates for the 2 parameter groups"),
            std::string::npos);
  EXPECT_NO_THROW(exponential.step());
}

TEST(Schedulers, AStateThatDoesNotFitChangesNothing) {
  auto one = sgd_with_rates({1}), two = sgd_with_rates({1, 1});
  accelerate::StepLR of_one(one, {.step_size = 2}), of_two(two, {.step_size = 3});
  of_one.step();
  EXPECT_NE(message_of<UsageError>([&] { of_two.load_state_dict(of_one.state_dict()); }).find("1 parameter groups"),
            std::string::npos);
  auto bad = of_one.state_dict();
  bad["step_size"] = 5;
  bad["gamma"] = "half";
  EXPECT_NE(message_of<UsageError>([&] { of_one.load_state_dict(bad); }).find("\"gamma\""), std::string::npos);
  EXPECT_EQ(of_one.state_dict().at("step_size"), accelerate::Value(2));
  EXPECT_NE(message_of<UsageError>([&] { of_one.load_state_dict({{"weight", 1}}); }).find("last_epoch"), std::string::npos);
  accelerate::MultiStepLR milestones(one, {.milestones = {3, 5}});
  for (const std::string milestone : {"", "-", "3-4", "five", "99999999999999999999"}) {
    auto strange = milestones.state_dict();
    strange["milestones"] = accelerate::StateDict{{milestone, 1}};
    EXPECT_NE(message_of<UsageError>([&] { milestones.load_state_dict(strange); }).find("\"milestones\""), std::string::npos)
        << milestone;
  }
}

TEST(Schedulers, ComposedStatesAreLoadedAllOrNotAtAll) {
  auto sgd = sgd_with_rates({1});
  accelerate::LinearLR warmup(sgd, {.total_iters = 2});
  accelerate::ExponentialLR decay(sgd, 0.5);
  accelerate::SequentialLR both(sgd, {warmup, decay}, {2});
  auto state = both.state_dict();
  state["last_epoch"] = 3;
  state["_schedulers"].as<accelerate::Value::List>()[0].as<accelerate::StateDict>()["last_epoch"] = 2;
  state["_schedulers"].as<accelerate::Value::List>()[1].as<accelerate::StateDict>()["gamma"] = "half";
  EXPECT_NE(message_of<UsageError>([&] { both.load_state_dict(state); }).find("\"gamma\""), std::string::npos);
  EXPECT_EQ(both.last_epoch(), 0);
  EXPECT_EQ(warmup.last_epoch(), 0);
  state["_schedulers"].as<accelerate::Value::List>().pop_back();
  EXPECT_NE(message_of<UsageError>([&] { both.load_state_dict(state); }).find("1 schedulers, but this SequentialLR has 2"),
            std::string::npos);
}

TEST(Schedulers, AWarmupGoesOnWhereItsOptimizerWasSaved) {
  auto sgd = sgd_with_rates({1});
  accelerate::CosineWithWarmup cosine(sgd, {.warmup_steps = 4, .total_steps = 8});
  EXPECT_EQ(rate_of_group(sgd), 0);
  for (int i = 0; i < 6; ++i) cosine.step();
  EXPECT_DOUBLE_EQ(rate_of_group(sgd), 0.5);
  auto again = sgd_with_rates({1});
  accelerate::CosineWithWarmup resumed(again, {.warmup_steps = 4, .total_steps = 8});
  resumed.load_state_dict(cosine.state_dict());
  cosine.step();
  resumed.step();
  EXPECT_EQ(rate_of_group(again), rate_of_group(sgd));
}

TEST(Schedulers, ASequenceDoesNotDependOnTheOrderInWhichItsPartsWereMade) {
  auto first = sgd_with_rates({1}), second = sgd_with_rates({1});
  const auto quarter = [](int64_t) { return 0.25; };
  accelerate::ConstantLR constant(first, {.factor = 0.5});
  accelerate::LambdaLR lambda(first, quarter);
  accelerate::SequentialLR in_order(first, {constant, lambda}, {1});
  accelerate::LambdaLR lambda_made_first(second, quarter);
  accelerate::ConstantLR constant_made_last(second, {.factor = 0.5});
  accelerate::SequentialLR other_way_round(second, {constant_made_last, lambda_made_first}, {1});
  for (const double expected : {0.5, 0.25, 0.25}) {
    EXPECT_DOUBLE_EQ(rate_of_group(first), expected);
    EXPECT_DOUBLE_EQ(rate_of_group(second), expected);
    in_order.step();
    other_way_round.step();
  }
}

TEST(Schedulers, PartsOfASequenceMayBeShared) {
  auto sgd = sgd_with_rates({1});
  const auto make = [&] {
    accelerate::SchedulerPointers parts = {
        std::make_shared<accelerate::ConstantLR>(sgd, accelerate::ConstantLROptions{.factor = 0.5}),
        std::make_shared<accelerate::ExponentialLR>(sgd, 0.1)};
    return std::make_unique<accelerate::SequentialLR>(sgd, parts, std::vector<int64_t>{1});
  };
  const auto sequence = make();
  sequence->step();
  sequence->step();
  EXPECT_DOUBLE_EQ(rate_of_group(sgd), 0.1);
}

TEST(Schedulers, TheStepLROfTorchIsOneStepLaterThanOurs) {
  auto ours = sgd_with_rates({1}), theirs = sgd_with_rates({1});
  accelerate::StepLR step_lr(ours, {.step_size = 2, .gamma = 0.5});
  torch::optim::StepLR of_torch(theirs, 2, 0.5);
  std::vector<double> our_rates, their_rates;
  for (int i = 0; i < 5; ++i) {
    step_lr.step();
    of_torch.step();
    our_rates.push_back(rate_of_group(ours));
    their_rates.push_back(rate_of_group(theirs));
  }
  EXPECT_EQ(our_rates, (std::vector<double>{1, 0.5, 0.5, 0.25, 0.25}));
  EXPECT_EQ(their_rates, (std::vector<double>{1, 1, 0.5, 0.5, 0.25}));
}

TEST(Schedulers, AChainMultiplies) {
  auto sgd = sgd_with_rates({1});
  accelerate::ConstantLR constant(sgd, {.factor = 0.5, .total_iters = 2});
  accelerate::ExponentialLR decay(sgd, 0.1);
  accelerate::ChainedScheduler chain({constant, decay});
  EXPECT_DOUBLE_EQ(chain.get_last_lr().front(), 0.5);
  chain.step();
  EXPECT_DOUBLE_EQ(chain.get_last_lr().front(), 0.05);
  chain.step();
  EXPECT_DOUBLE_EQ(chain.get_last_lr().front(), 0.01);
}

TEST(Schedulers, AConstantOfZeroComesBack) {
  auto sgd = sgd_with_rates({1});
  accelerate::ConstantLR constant(sgd, {.factor = 0, .total_iters = 2});
  constant.step();
  EXPECT_EQ(rate_of_group(sgd), 0);
  constant.step();
  EXPECT_EQ(rate_of_group(sgd), 1);
}

TEST(Schedulers, ACycleWhosePhaseHasNoLengthBeginsAtItsEnd) {
  auto sgd = sgd_with_rates({1});
  accelerate::OneCycleLR cycle(sgd, {.max_lr = 1, .total_steps = 4, .pct_start = 0.25});
  EXPECT_DOUBLE_EQ(rate_of_group(sgd), 1);
}

/// Each call is a UsageError with a certain text in it.
void expect_usage_errors(const std::vector<std::pair<std::function<void()>, std::string>>& calls) {
  for (const auto& [call, expected] : calls) {
    EXPECT_NE(message_of<UsageError>(call).find(expected), std::string::npos)
        << message_of<UsageError>(call) << "\nhas no " << expected;
  }
}

TEST(Schedulers, OptionsThatCannotMeanAnythingAreErrorsThatSayWhatWasExpected) {
  using namespace accelerate;
  auto sgd = sgd_with_rates({1, 2});
  StepLR step(sgd, {.step_size = 2});
  const auto one = [](int64_t) { return 1.0; };
  expect_usage_errors({{[&] { StepLR(sgd, {.step_size = 0}); }, "step_size=0"},
                       {[&] { ConstantLR(sgd, {.factor = 1.5}); }, "factor=1.5: expected between 0 and 1"},
                       {[&] { LinearLR(sgd, {.start_factor = 0}); }, "start_factor=0"},
                       {[&] { LinearLR(sgd, {.total_iters = 0}); }, "total_iters=0"},
                       {[&] { PolynomialLR(sgd, {.total_iters = 0}); }, "total_iters=0"},
                       {[&] { CosineAnnealingLR(sgd, {}); }, "T_max=0"},
                       {[&] { CosineAnnealingWarmRestarts(sgd, {.T_0 = 0}); }, "T_0=0"},
                       {[&] { CosineAnnealingWarmRestarts(sgd, {.T_0 = 1, .T_mult = 0}); }, "T_mult=0"},
                       {[&] { CosineAnnealingWarmRestarts(sgd, {.T_0 = 1}).step(-1); }, "epoch=-1"},
                       {[&] {
                          LambdaLR(sgd, {one, one, one});
                        },
                        "3 functions for 2 parameter groups"},
                       {[&] { LambdaLR(sgd, LambdaLR::Factor()); }, "an empty function"},
                       {[&] { CosineWithWarmup(sgd, {.warmup_steps = 3}); }, "total_steps=0: expected at least 1"},
                       {[&] { LinearWithWarmup(sgd, {.warmup_steps = -1, .total_steps = 3}); }, "warmup_steps=-1"},
                       {[&] { PolynomialWithWarmup(sgd, {.warmup_steps = 3, .total_steps = 3}); }, "more than warmup_steps, 3"},
                       {[&] { PolynomialWithWarmup(sgd, {.total_steps = 3, .lr_end = 1}); }, "less than the optimizer's default"},
                       {[&] { step.step(1.5); }, "call step() without an argument"}});
}

TEST(Schedulers, CyclesThatCannotMeanAnythingAreErrorsThatSayWhatWasExpected) {
  using accelerate::OneCycleLR;
  auto sgd = sgd_with_rates({1, 2});
  torch::optim::Adagrad adagrad(std::vector<torch::Tensor>{torch::zeros(1)}, torch::optim::AdagradOptions(1));
  expect_usage_errors({{[&] { OneCycleLR(sgd, {.max_lr = 1}); }, "OneCycleLR needs total_steps, or epochs and steps_per_epoch"},
                       {[&] { OneCycleLR(sgd, {.total_steps = 5}); }, "max_lr has 0 values for 2 parameter groups"},
                       {[&] {
                          OneCycleLR(sgd, {.max_lr = {1, 2, 3}, .total_steps = 5});
                        },
                        "max_lr has 3 values"},
                       {[&] { OneCycleLR(sgd, {.max_lr = 1, .total_steps = 5, .pct_start = 2}); }, "pct_start=2"},
                       {[&] { OneCycleLR(sgd, {.max_lr = 1, .epochs = 2, .steps_per_epoch = 0}); }, "steps_per_epoch=0"},
                       {[&] { OneCycleLR(adagrad, {.max_lr = 1, .total_steps = 5}); }, "cycle_momentum = false"}});
}

TEST(Schedulers, SequencesThatCannotMeanAnythingAreErrorsThatSayWhatWasExpected) {
  using namespace accelerate;
  auto sgd = sgd_with_rates({1}), other = sgd_with_rates({1});
  StepLR step(sgd, {.step_size = 2}), of_other(other, {.step_size = 2});
  expect_usage_errors({{[&] {
                          SequentialLR(sgd, {step, of_other}, {1});
                        },
                        "scheduler 1 belongs to a different optimizer"},
                       {[&] {
                          SequentialLR(sgd, {step, step}, {1, 2});
                        },
                        "2 milestones for 2 schedulers"},
                       {[&] {
                          SequentialLR(sgd, {step, step, step}, {2, 1});
                        },
                        "milestones must be in ascending order"},
                       {[&] { SequentialLR(sgd, SchedulerPointers{}, {}); }, "needs at least one scheduler"},
                       {[&] { SequentialLR(sgd, SchedulerPointers{nullptr}, {}); }, "scheduler 0 is a null pointer"},
                       {[&] { ChainedScheduler(SchedulerReferences{}); }, "needs at least one scheduler"}});
}

TEST(Schedulers, AComposedOneCannotBeEnteredLate) {
  using namespace accelerate;
  auto sgd = sgd_with_rates({1});
  StepLR a(sgd, {.step_size = 2}), b(sgd, {.step_size = 2});
  ChainedScheduler chain(SchedulerReferences{b});
  SequentialLR sequence(sgd, {a, chain}, {1});
  EXPECT_NE(message_of<UsageError>([&] { sequence.step(); }).find("can only be its first scheduler"), std::string::npos);
  EXPECT_EQ(sequence.last_epoch(), 0);
}

TEST(Schedulers, AComposedOneKeepsAmongTheOptionsWhatItsPartsKeep) {
  using namespace accelerate;
  auto sgd = sgd_with_rates({1, 0.5});
  LinearLR warmup(sgd, {.start_factor = 0.1, .total_iters = 4});
  CosineAnnealingLR cosine(sgd, {.T_max = 8});
  SequentialLR sequence(sgd, {warmup, cosine}, {4});
  EXPECT_EQ(Value(sequence.group_fields(1)), Value(StateDict{{"initial_lr", 0.5}}));
  // Python's OneCycleLR looks there for its bounds.
  OneCycleLR cycle(sgd, {.max_lr = {2}, .total_steps = 10, .cycle_momentum = false});
  ChainedScheduler chain(SchedulerReferences{cycle, warmup});
  EXPECT_EQ(chain.group_fields(0).at("max_lr"), Value(2.0));
  EXPECT_EQ(chain.group_fields(0).at("initial_lr"), Value(2.0 / 25));
}

}  // namespace
