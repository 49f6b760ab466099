#include <accelerate/core/error.h>
#include <accelerate/training/accelerated_scheduler.h>
#include <accelerate/training/one_cycle_lr.h>
#include <accelerate/training/torch_schedulers.h>
#include <accelerate/training/warmup_schedulers.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace {

using accelerate::AcceleratedScheduler;
using torch::optim::ReduceLROnPlateauScheduler;

/// An optimizer of one parameter with a rate of 1, a switch for its skipped steps, and the rule of a scheduler that follows it.
struct FollowedSgd {
  torch::optim::SGD sgd{std::vector<torch::Tensor>{torch::zeros(1)}, torch::optim::SGDOptions(1)};
  std::shared_ptr<accelerate::GradientState> gradients = std::make_shared<accelerate::GradientState>();
  bool skipped = false;

  accelerate::SchedulerRule rule(int num_processes = 1) {
    accelerate::SchedulerRule rule;
    rule.gradients = gradients;
    rule.optimizers = {{&sgd, [this] { return skipped; }}};
    rule.num_processes = num_processes;
    return rule;
  }
  double lr() { return sgd.param_groups().front().options().get_lr(); }
};

double tenths_left(int64_t step) { return 1 - static_cast<double>(step) / 10; }

TEST(AcceleratedScheduler, TakesAsManyStepsAsThereAreProcesses) {
  FollowedSgd one, two;
  accelerate::LambdaLR alone(one.sgd, tenths_left), both(two.sgd, tenths_left);
  AcceleratedScheduler(alone, one.rule(1)).step();
  AcceleratedScheduler(both, two.rule(2)).step();
  EXPECT_DOUBLE_EQ(one.lr(), 0.9);
  EXPECT_DOUBLE_EQ(two.lr(), 0.8);
}

TEST(AcceleratedScheduler, TakesOneStepWhereBatchesAreSplit) {
  FollowedSgd followed;
  accelerate::LambdaLR lambda(followed.sgd, tenths_left);
  auto rule = followed.rule(4);
  rule.split_batches = true;
  AcceleratedScheduler(lambda, rule).step();
  EXPECT_DOUBLE_EQ(followed.lr(), 0.9);
}

TEST(AcceleratedScheduler, DoesNothingWhileGradientsAreAccumulated) {
  FollowedSgd followed;
  accelerate::LambdaLR lambda(followed.sgd, tenths_left);
  AcceleratedScheduler scheduler(lambda, followed.rule());
  followed.gradients->set_sync_gradients(false);
  scheduler.step();
  EXPECT_DOUBLE_EQ(followed.lr(), 1);
  followed.gradients->set_sync_gradients(true);
  scheduler.step();
  EXPECT_DOUBLE_EQ(followed.lr(), 0.9);
}

TEST(AcceleratedScheduler, DoesNothingAfterASkippedStepOfAnyOptimizer) {
  FollowedSgd followed, second;
  accelerate::LambdaLR lambda(followed.sgd, tenths_left);
  auto rule = followed.rule(2);
  rule.optimizers.push_back(second.rule().optimizers.front());
  AcceleratedScheduler scheduler(lambda, rule);
  scheduler.step();
  second.skipped = true;
  scheduler.step();
  EXPECT_DOUBLE_EQ(followed.lr(), 0.8);
  second.skipped = false;
  scheduler.step();
  EXPECT_DOUBLE_EQ(followed.lr(), 0.6);
}

TEST(AcceleratedScheduler, OnItsOwnTakesOneStepACallWhateverTheOptimizerDoes) {
  FollowedSgd followed;
  accelerate::LambdaLR lambda(followed.sgd, tenths_left);
  auto rule = followed.rule(2);
  rule.step_with_optimizer = false;
  AcceleratedScheduler scheduler(lambda, rule);
  followed.skipped = true;
  followed.gradients->set_sync_gradients(false);
  scheduler.step();
  EXPECT_DOUBLE_EQ(followed.lr(), 0.9);
  scheduler.step();
  EXPECT_DOUBLE_EQ(followed.lr(), 0.8);
}

TEST(AcceleratedScheduler, ReachesTheEndOfAScheduleOfOneProcessOnTwoAndWithAccumulation) {
  for (const int accumulation : {1, 3}) {
    FollowedSgd followed;
    accelerate::LinearWithWarmup linear(followed.sgd, {.total_steps = 20});
    AcceleratedScheduler scheduler(linear, followed.rule(2));
    for (int i = 0; i < 10 * accumulation; ++i) {
      EXPECT_GT(followed.lr(), 0);
      followed.gradients->set_sync_gradients((i + 1) % accumulation == 0);
      scheduler.step();
    }
    EXPECT_EQ(followed.lr(), 0);
  }
}

TEST(AcceleratedScheduler, StopsAtTheEndOfACycleThatProcessesDoNotDivide) {
  FollowedSgd followed;
  accelerate::OneCycleLR cycle(followed.sgd, {.max_lr = 1, .total_steps = 7});
  AcceleratedScheduler scheduler(cycle, followed.rule(3));
  for (int i = 0; i < 4; ++i) scheduler.step();
  EXPECT_EQ(cycle.last_epoch(), 7);
}

TEST(AcceleratedScheduler, CopiesAreTheSame) {
  FollowedSgd followed;
  AcceleratedScheduler scheduler(std::make_shared<accelerate::LambdaLR>(followed.sgd, tenths_left), followed.rule());
  auto copy = scheduler;
  copy.step();
  EXPECT_EQ(scheduler.get_last_lr(), std::vector<double>{0.9});
  EXPECT_EQ(scheduler.state_dict(), copy.state_dict());
}

TEST(AcceleratedScheduler, FindsTheOptimizerOfEveryKind) {
  FollowedSgd first, second;
  accelerate::LambdaLR own(second.sgd, tenths_left);
  torch::optim::StepLR step_lr(second.sgd, 1);
  ReduceLROnPlateauScheduler plateau(second.sgd);
  const std::vector<torch::optim::Optimizer*> both = {&first.sgd, &second.sgd}, one = {&first.sgd, nullptr};
  EXPECT_EQ(accelerate::optimizer_of(own, both), &second.sgd);
  EXPECT_EQ(accelerate::optimizer_of(step_lr, both), &second.sgd);
  EXPECT_EQ(accelerate::optimizer_of(plateau, both), &second.sgd);
  EXPECT_EQ(accelerate::optimizer_of(own, one), nullptr);
  EXPECT_EQ(accelerate::optimizer_of(step_lr, one), nullptr);
  EXPECT_EQ(accelerate::optimizer_of(plateau, one), nullptr);
  EXPECT_EQ(first.lr(), 1);
  EXPECT_EQ(second.lr(), 1);
}

TEST(AcceleratedScheduler, LooksForAnOptimizerWithoutATrace) {
  FollowedSgd touched, untouched;
  ReduceLROnPlateauScheduler asked(touched.sgd, ReduceLROnPlateauScheduler::min, 0.5, 0, 0, ReduceLROnPlateauScheduler::rel, 0,
                                   std::vector<float>{0.25F});
  ReduceLROnPlateauScheduler not_asked(untouched.sgd, ReduceLROnPlateauScheduler::min, 0.5, 0, 0, ReduceLROnPlateauScheduler::rel,
                                       0, std::vector<float>{0.25F});
  EXPECT_EQ(accelerate::optimizer_of(asked, {&touched.sgd}), &touched.sgd);
  for (const float metric : {3.0F, 3.0F, 4.0F, 5.0F, 1.0F}) {
    asked.step(metric);
    not_asked.step(metric);
    EXPECT_EQ(touched.lr(), untouched.lr());
  }
  EXPECT_EQ(touched.lr(), 0.25);
}

TEST(AcceleratedScheduler, SchedulersOfTorchStepSaveAndLoad) {
  FollowedSgd followed, resumed;
  torch::optim::StepLR step_lr(followed.sgd, 3, 0.5), same(resumed.sgd, 3, 0.5);
  AcceleratedScheduler scheduler(step_lr, followed.rule(2)), loaded(same, resumed.rule(2));
  scheduler.step();
  // One behind: the next step decides by the count of 2, for which Python counts to 2 first.
  EXPECT_EQ(scheduler.state_dict().at("last_epoch"), accelerate::Value(1));
  loaded.load_state_dict(scheduler.state_dict());
  scheduler.step();
  loaded.step();
  EXPECT_EQ(scheduler.get_last_lr(), std::vector<double>{0.5});
  EXPECT_EQ(loaded.get_last_lr(), std::vector<double>{0.5});
  EXPECT_THROW(scheduler.step(0.5), accelerate::UsageError);
}

TEST(AcceleratedScheduler, PlateausAreWatchedSavedAndLoaded) {
  FollowedSgd followed, resumed;
  ReduceLROnPlateauScheduler plateau(followed.sgd, ReduceLROnPlateauScheduler::min, 0.5, 2);
  ReduceLROnPlateauScheduler same(resumed.sgd, ReduceLROnPlateauScheduler::min, 0.5, 2);
  AcceleratedScheduler scheduler(plateau, followed.rule()), loaded(same, resumed.rule());
  EXPECT_THROW(scheduler.step(), accelerate::UsageError);
  for (const double loss : {1.0, 2.0, 2.0}) scheduler.step(loss);
  EXPECT_EQ(scheduler.state_dict().at("num_bad_epochs"), accelerate::Value(2));
  EXPECT_EQ(scheduler.state_dict().at("best"), accelerate::Value(1.0));
  loaded.load_state_dict(scheduler.state_dict());
  EXPECT_EQ(loaded.state_dict(), scheduler.state_dict());
  loaded.step(2);
  EXPECT_EQ(loaded.get_last_lr(), std::vector<double>{0.5});
  EXPECT_EQ(scheduler.get_last_lr(), std::vector<double>{1});
}

TEST(AcceleratedScheduler, StepsToAnEpochWhereTheSchedulerCan) {
  FollowedSgd followed;
  accelerate::CosineAnnealingWarmRestarts restarts(followed.sgd, {.T_0 = 2});
  AcceleratedScheduler scheduler(restarts, followed.rule(2));
  scheduler.step(1.0);
  EXPECT_DOUBLE_EQ(followed.lr(), 0.5);
}

TEST(AcceleratedScheduler, ANullPointerOrAMissingGradientStateIsAnError) {
  FollowedSgd followed;
  accelerate::LambdaLR lambda(followed.sgd, tenths_left);
  EXPECT_THROW(AcceleratedScheduler(std::shared_ptr<accelerate::LRScheduler>(), followed.rule()), accelerate::UsageError);
  EXPECT_THROW(AcceleratedScheduler(lambda, {}), accelerate::UsageError);
}

}  // namespace
