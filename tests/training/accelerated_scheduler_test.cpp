#include <accelerate/core/error.h>
#include <accelerate/training/accelerated_scheduler.h>
#include <accelerate/training/torch_schedulers.h>
#include <accelerate/training/warmup_schedulers.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace {

using accelerate::AcceleratedScheduler;

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

double tenths(int64_t step) { return 1 - static_cast<double>(step) / 10; }

TEST(AcceleratedScheduler, TakesAsManyStepsAsThereAreProcesses) {
  FollowedSgd one, two;
  accelerate::LambdaLR alone(one.sgd, tenths), both(two.sgd, tenths);
  AcceleratedScheduler(alone, one.rule(1)).step();
  AcceleratedScheduler(both, two.rule(2)).step();
  EXPECT_DOUBLE_EQ(one.lr(), 0.9);
  EXPECT_DOUBLE_EQ(two.lr(), 0.8);
}

}  // namespace
