#include "parallel/parallel_nets.h"

namespace {

using namespace parallel_nets;
using accelerate::CommHook;
using accelerate::PowerSgdOptions;

class TogetherPowerSgd : public TogetherParallel {
 protected:
  /// Two layers of which the gradient has a rank, and a task that they can learn.
  static torch::nn::Sequential wide_net() {
    return torch::nn::Sequential(torch::nn::Linear(4, 24), torch::nn::Tanh(), torch::nn::Linear(24, 24), torch::nn::Tanh(),
                                 torch::nn::Linear(24, 2));
  }
  static torch::Tensor inputs(int step) {
    return torch::sin(torch::arange(64, torch::kFloat).view({16, 4}) * 0.37 + step + rank());
  }
  static torch::Tensor targets(const torch::Tensor& x) { return torch::stack({x.sum(1), x.select(1, 0) * x.select(1, 1)}, 1); }

  static double loss_after_training(const DdpOptions& options, int steps) {
    torch::manual_seed(3);
    auto net = wide_net();
    auto model = prepared(net, options);
    double last = 0;
    for (int step = 0; step < steps; ++step) {
      const auto x = inputs(step % 5);
      model.zero_grad();
      const auto loss = torch::mse_loss(model(x), targets(x));
      backward(loss);
      take_step(*net);
      last = loss.item<double>();
    }
    expect_same_everywhere(net->parameters());
    return accelerate::reduce(state(), torch::tensor(last, torch::kDouble)).item<double>();
  }
};

TEST_F(TogetherPowerSgd, MatricesOfFullRankLoseNothing) {
  const PowerSgdOptions full{.matrix_approximation_rank = 1000, .start_powerSGD_iter = 2, .min_compression_rate = 0};
  const std::vector<DdpOptions> kOptions = {
      {.comm_hook = CommHook::power_sgd, .comm_state_option = full},
      {.bucket_cap_mb = 1, .gradient_as_bucket_view = true, .comm_hook = CommHook::power_sgd, .comm_state_option = full},
      {.bucket_cap_mb = 1, .comm_hook = CommHook::batched_power_sgd, .comm_state_option = full},
      {.static_graph = true, .comm_hook = CommHook::power_sgd, .comm_state_option = full},
      {.find_unused_parameters = true, .comm_hook = CommHook::power_sgd, .comm_state_option = full},
  };
  for (const auto& options : kOptions) {
    const int64_t width = options.bucket_cap_mb == 1 ? 300 : 30;  // more than one bucket of 1 MiB
    torch::nn::Sequential net(torch::nn::Linear(4, width), torch::nn::Tanh(), torch::nn::Linear(width, width),
                              torch::nn::Linear(width, width), torch::nn::Linear(width, width), torch::nn::Linear(width, 2));
    auto model = prepared(net, options);
    for (int step = 0; step < 4; ++step) {
      model.zero_grad();
      loss_of(net->forward(rows_of_all())).backward();
      const auto expected = gradients(*net);
      model.zero_grad();
      backward(loss_of(model(rows())));
      expect_close(gradients(*net), expected, 1e-4);
      expect_same_everywhere(gradients(*net));
    }
  }
}

TEST_F(TogetherPowerSgd, ThinMatricesAreNotTheMeanAndAreTheSameEverywhere) {
  if (world() == 1) return;  // nothing travels
  for (const auto hook : {CommHook::power_sgd, CommHook::batched_power_sgd}) {
    for (const auto wrapper : {CommHook::no, CommHook::fp16, CommHook::bf16}) {
      auto net = wide_net();
      auto model = prepared(net, {.comm_hook = hook, .comm_wrapper = wrapper, .comm_state_option = {.start_powerSGD_iter = 2}});
      for (int step = 0; step < 4; ++step) {
        const auto x = inputs(step);
        model.zero_grad();
        auto alone = torch::mse_loss(net->forward(x), targets(x));
        alone.backward();
        const auto expected = accelerate::reduce(state(), net[2]->as<torch::nn::Linear>()->weight.grad());
        model.zero_grad();
        backward(torch::mse_loss(model(x), targets(x)));
        const auto weight = net[2]->as<torch::nn::Linear>()->weight;
        expect_same_everywhere(gradients(*net));
        EXPECT_EQ(weight.grad().scalar_type(), torch::kFloat);
        const double tolerance = wrapper == CommHook::no ? 1e-6 : 1e-2;
        EXPECT_EQ(torch::allclose(weight.grad(), expected, tolerance, tolerance), step < 2) << "step " << step;
      }
    }
  }
}

TEST_F(TogetherPowerSgd, ANetLearnsAsWellAsWithoutIt) {
  const double plain = loss_after_training({}, 150);
  for (const auto hook : {CommHook::power_sgd, CommHook::batched_power_sgd}) {
    const double compressed = loss_after_training({.comm_hook = hook, .comm_state_option = {.start_powerSGD_iter = 5}}, 150);
    EXPECT_LT(compressed, plain * 1.5 + 0.02) << static_cast<int>(hook);
  }
}

TEST_F(TogetherPowerSgd, GradientsOfZeroStayZero) {
  for (const int64_t rank : {1, 2, 3}) {
    Plain net;
    auto model = prepared(
        net, {.comm_hook = CommHook::power_sgd,
              .comm_state_option = {.matrix_approximation_rank = rank, .start_powerSGD_iter = 2, .min_compression_rate = 0}});
    for (int step = 0; step < 4; ++step) {
      model.zero_grad();
      backward((model(rows()) * 0).sum());
      for (const auto& gradient : gradients(*net)) EXPECT_TRUE(torch::equal(gradient, torch::zeros_like(gradient)));
    }
  }
}

TEST_F(TogetherPowerSgd, WhatItCannotDoIsSaid) {
  if (world() == 1) return;  // nothing travels
  Plain net;
  auto model = prepared(net, {.comm_hook = CommHook::power_sgd});
  EXPECT_THROW(accelerate::JoinScope({model.core()}), accelerate::UsageError);
}

}  // namespace

TEST(PowerSgdOptions, ValuesThatMeanNothingAreErrors) {
  using accelerate::CommHook;
  const auto check = [](const accelerate::PowerSgdOptions& options) {
    accelerate::detail::check_ddp_options({.comm_hook = CommHook::power_sgd, .comm_state_option = options});
  };
  EXPECT_NO_THROW(check({}));
  EXPECT_NO_THROW(check({.start_powerSGD_iter = 0, .use_error_feedback = false, .warm_start = false}));
  EXPECT_THROW(check({.matrix_approximation_rank = 0}), accelerate::UsageError);
  EXPECT_THROW(check({.start_powerSGD_iter = 1}), accelerate::UsageError);
  EXPECT_THROW(check({.start_powerSGD_iter = 1, .warm_start = false}), accelerate::UsageError);
  EXPECT_THROW(check({.start_powerSGD_iter = 1, .use_error_feedback = false}), accelerate::UsageError);
  EXPECT_THROW(check({.min_compression_rate = -1}), accelerate::UsageError);
  EXPECT_THROW(check({.min_compression_rate = std::nan("")}), accelerate::UsageError);
  EXPECT_THROW(check({.orthogonalization_epsilon = -1e-8}), accelerate::UsageError);
  EXPECT_THROW(accelerate::detail::check_ddp_options({.bucket_cap_mb = 0, .comm_hook = CommHook::power_sgd}),
               accelerate::UsageError);
  EXPECT_THROW(accelerate::detail::check_ddp_options({.comm_hook = CommHook::power_sgd, .gradient_predivide_factor = 2}),
               accelerate::UsageError);
  EXPECT_NO_THROW(accelerate::detail::check_ddp_options({.comm_state_option = {.matrix_approximation_rank = 0}}));
  EXPECT_THROW(accelerate::detail::check_ddp_options({.comm_hook = CommHook::fp16, .comm_wrapper = CommHook::power_sgd}),
               accelerate::UsageError);
}
