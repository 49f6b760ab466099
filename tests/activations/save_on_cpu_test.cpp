#include <accelerate/activations/save_on_cpu.h>

#include "activations/checkpoint_nets.h"
#include "support/error_text.h"
#include "support/other_device.h"

namespace {

using namespace checkpoint_nets;

TEST(SaveOnCpu, GradientsAreThoseOfThePlainRun) {
  AttentionBlock net(8);
  const auto x = sequences();
  const TrainingPass plain(*net, [&] { return net(x).pow(2).sum(); });
  expect_same_pass(TrainingPass(*net,
                                [&] {
                                  const auto scope = accelerate::save_on_cpu();
                                  return net(x).pow(2).sum();
                                }),
                   plain);
}

/// An MLP on a device that is not a CPU.
struct OnOtherDevice {
  torch::Tensor forward(const torch::Tensor& rows) {
    const auto hidden = rows.matmul(weights[0]);
    seen = hidden.getIntrusivePtr();
    return hidden.sin().matmul(weights[1]);
  }
  std::vector<torch::Tensor> gradients(const std::function<torch::Tensor()>& call) const {
    auto gradients = torch::autograd::grad({call().pow(2).sum()}, weights);
    for (auto& gradient : gradients) {
      EXPECT_EQ(gradient.device(), other_device());
      gradient = gradient.cpu();
    }
    return gradients;
  }
  static torch::Tensor weight(int64_t rows, int64_t columns) {
    return torch::randn({rows, columns}).to(other_device()).requires_grad_();
  }
  std::vector<torch::Tensor> weights = {weight(8, 16), weight(16, 8)};
  torch::Tensor x = sequences().view({-1, 8}).to(other_device());
  /// What sin saves.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> seen{sequences().getIntrusivePtr()};
};

void expect_equal_lists(const std::vector<torch::Tensor>& mine, const std::vector<torch::Tensor>& plain) {
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(mine[i], plain[i])) << i;
}

TEST(SaveOnCpu, TensorsOfADeviceGoToTheHostAndComeBack) {
  OnOtherDevice net;
  const auto call = [&](bool is_saved) {
    std::optional<accelerate::SaveOnCpuScope> scope;
    if (is_saved) scope.emplace();
    auto result = net.forward(net.x);
    EXPECT_EQ(net.seen.expired(), is_saved);
    return result;
  };
  const auto plain = net.gradients([&] { return call(false); });
  expect_equal_lists(net.gradients([&] { return call(true); }), plain);
}

TEST(SaveOnCpu, InputsOfARegionGoToTheHostWhenAskedSoThatTheirDevicesMemoryMayChange) {
  OnOtherDevice net;
  const auto plain = net.gradients([&] { return net.forward(net.x * 2); });
  const auto gradients = [&](bool offload) {
    return net.gradients([&] {
      auto input = net.x * 2;
      auto result = accelerate::checkpoint({.offload = offload}, &OnOtherDevice::forward, &net, input);
      EXPECT_TRUE(net.seen.expired());
      input.mul_(3);
      return result;
    });
  };
  expect_equal_lists(gradients(true), plain);
  accelerate::testing::expect_parts(accelerate::testing::message_of<accelerate::UsageError>([&] { gradients(false); }),
                                    {"changed in place"});
}

TEST(SaveOnCpu, ATensorThatWasChangedInPlaceIsAnError) {
  auto x = sequences().requires_grad_();
  torch::Tensor y, loss;
  {
    const auto scope = accelerate::save_on_cpu();
    y = x.exp();
    loss = y.sin().sum();
  }
  y.mul_(2);
  accelerate::testing::expect_parts(accelerate::testing::message_of<accelerate::UsageError>([&] { loss.backward(); }),
                                    {"changed in place"});
}

TEST(SaveOnCpu, RegionsInsideKeepTheirInputsThere) {
  BlockStack net(8, 2);
  const auto x = sequences();
  const TrainingPass plain(*net, [&] { return net->forward(x).sum(); });
  net->is_checkpointed = true;
  expect_same_pass(TrainingPass(*net,
                                [&] {
                                  const auto scope = accelerate::save_on_cpu();
                                  return net->forward(x).sum();
                                }),
                   plain);
}

}  // namespace
