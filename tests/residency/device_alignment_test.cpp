// Operators whose tensors are on several devices.
#include "residency/device_alignment.h"

#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "residency/interception.h"
#include "support/other_device.h"

using accelerate::detail::AlignmentScope;

namespace {

/// A weight as a model with several devices has them.
torch::Tensor weight_on(c10::Device device, const torch::Tensor& value) {
  auto weight = value.detach().to(device).requires_grad_();
  accelerate::detail::intercept_operators();
  accelerate::detail::set_key(weight, true);
  return weight;
}

bool equal_values(const torch::Tensor& left, const torch::Tensor& right) {
  return torch::allclose(left.detach().cpu(), right.detach().cpu(), 1e-5, 1e-6);
}

TEST(DeviceAlignment, OperatorsRunWhereTheirWeightIs) {
  const auto x = torch::randn({3, 4}), value = torch::randn({5, 4});
  const auto there = weight_on(other_device(), value), here = weight_on(torch::kCPU, value);
  const AlignmentScope scope;
  const auto far = torch::linear(x, there);
  EXPECT_EQ(far.device(), other_device());
  EXPECT_TRUE(equal_values(far, x.matmul(value.t())));
  const auto back = torch::linear(x.to(other_device()), here);
  EXPECT_TRUE(back.is_cpu());
  EXPECT_TRUE(equal_values(back, x.matmul(value.t())));
}

TEST(DeviceAlignment, WithoutAScopeOrOutsideItNothingMoves) {
  const auto x = torch::randn({3, 4});
  const auto there = x.to(other_device());
  const auto mixed = [&] { return torch::mm(x, there.t()); };
  EXPECT_ANY_THROW(mixed());
  {
    const AlignmentScope scope;
    EXPECT_NO_THROW(mixed());
  }
  EXPECT_ANY_THROW(mixed());
}

TEST(DeviceAlignment, WhatFollowsAWeightStaysWithItAndResidualsCome) {
  const auto x = torch::randn({3, 4});
  const auto weight = weight_on(other_device(), torch::randn({4, 4}));
  const AlignmentScope scope;
  const auto y = torch::linear(x, weight);
  EXPECT_EQ((x + y).device(), other_device()) << "the residual crosses the border once";
  EXPECT_EQ(torch::cat({x, y}).device(), other_device());
  EXPECT_EQ(torch::stack({x, y, x}).device(), other_device());
  EXPECT_TRUE(equal_values(torch::cat({x, y}), torch::cat({x, y.detach().cpu()})));
  EXPECT_TRUE(equal_values(torch::stack({torch::tensor(1.0), y.sum()}), torch::stack({torch::tensor(1.0), y.sum().cpu()})));
  EXPECT_EQ(torch::stack({y.sum(), torch::tensor(1.0)}).device(), other_device()) << "numbers in a list come, too";
  const auto here = weight_on(torch::kCPU, torch::randn({4, 4}));
  const auto z = torch::linear(y, here);
  EXPECT_TRUE((y + z).is_cpu());
}

TEST(DeviceAlignment, WithoutAWeightTheFirstTensorDecides) {
  const auto here = torch::randn({3, 4}), there = torch::randn({3, 4}).to(other_device());
  const AlignmentScope scope;
  EXPECT_TRUE((here + there).is_cpu());
  EXPECT_EQ((there + here).device(), other_device());
  EXPECT_TRUE(equal_values(torch::mm(here, there.t()), here.mm(there.cpu().t())));
}

TEST(DeviceAlignment, ListsThatAreMadeForSeveralDevicesStay) {
  const AlignmentScope scope;
  const auto doubled = torch::_foreach_mul({torch::ones({2}), torch::ones({2}, torch::kMeta)}, 2.0);
  EXPECT_TRUE(doubled[0].is_cpu());
  EXPECT_TRUE(doubled[1].is_meta());
}

TEST(DeviceAlignment, WhatIsWrittenStaysWhereItIs) {
  auto here = torch::zeros({3, 4});
  const auto there = torch::ones({3, 4}).to(other_device());
  const auto weight = weight_on(other_device(), torch::ones({3, 4}));
  const torch::NoGradGuard no_grad;
  const AlignmentScope scope;
  const void* bytes = here.data_ptr();
  here += there;
  here.mul_(weight);
  here.index_put_({torch::tensor({0}).to(other_device())}, there.select(0, 0));
  EXPECT_TRUE(here.is_cpu());
  EXPECT_EQ(here.data_ptr(), bytes);
  EXPECT_TRUE(torch::equal(here, torch::ones({3, 4})));
}

TEST(DeviceAlignment, NumbersOnTheCpuStayAndCopiesGoWhereTheyAreSent) {
  const auto there = torch::ones({3, 4}).to(other_device());
  const AlignmentScope scope;
  EXPECT_EQ((torch::tensor(2.0) * there).device(), other_device()) << "a number decides nothing";
  EXPECT_TRUE(there.to(torch::kCPU).is_cpu());
  EXPECT_TRUE(there.to(torch::zeros({3, 4})).is_cpu());
  auto empty = torch::zeros({3, 4}, torch::kMeta);
  empty.copy_(torch::ones({3, 4}));
  EXPECT_TRUE(empty.is_meta());
}

TEST(DeviceAlignment, GradientsFindTheirWayBackWithoutAScope) {
  // In double precision: the devices add in different orders, and float32 sums that cancel out differ by more than 1e-6.
  const auto x = torch::randn({3, 4}, torch::kDouble), first = torch::randn({4, 4}, torch::kDouble);
  const auto second = torch::randn({4, 4}, torch::kDouble);
  const auto model = [&](const torch::Tensor& a, const torch::Tensor& b) {
    const auto y = torch::relu(torch::linear(x, a)) + x;
    return (y + torch::linear(y, b)).pow(2).sum();
  };
  auto a = first.clone().requires_grad_(), b = second.clone().requires_grad_();
  model(a, b).backward();
  const auto here = weight_on(torch::kCPU, first), there = weight_on(other_device(), second);
  torch::Tensor loss;
  {
    const AlignmentScope scope;
    loss = model(here, there);
  }
  loss.backward();
  EXPECT_TRUE(here.grad().is_cpu());
  EXPECT_EQ(there.grad().device(), other_device());
  EXPECT_TRUE(equal_values(here.grad(), a.grad()));
  EXPECT_TRUE(equal_values(there.grad(), b.grad()));
}

TEST(DeviceAlignment, AnExceptionEndsTheScopeAndThreadsHaveTheirOwn) {
  const auto x = torch::randn({3, 4}), there = torch::randn({4, 4}).to(other_device());
  try {
    const AlignmentScope scope;
    torch::mm(there, x);  // the shapes do not fit
    ADD_FAILURE();
  } catch (const std::exception&) {
  }
  EXPECT_EQ(AlignmentScope::current(), nullptr);
  const AlignmentScope scope;
  bool refused = false;
  std::thread([&] {
    try {
      torch::mm(x, there);
    } catch (const std::exception&) {
      refused = true;
    }
  }).join();
  EXPECT_TRUE(refused) << "a thread of its own is in no scope";
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto mine = torch::randn({4, 4});  // the lazy device may still be busy with a tensor that another thread asked for
      const auto mine_there = mine.to(other_device());
      const AlignmentScope own;
      for (int k = 0; k < 20; ++k) right += equal_values(torch::mm(x, mine_there), x.mm(mine));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 80);
}

TEST(DeviceAlignment, NothingChangesWhileModelsAreMadeEmpty) {
  const auto x = torch::randn({3, 4}), there = torch::randn({3, 4}).to(other_device());
  const AlignmentScope scope;
  const accelerate::InitEmptyWeights empty;
  EXPECT_ANY_THROW(torch::mm(x, there.t()));
}

}  // namespace
