// What goes wrong in a checkpointed region, and what it says.
#include "activations/checkpoint_nets.h"
#include "support/error_text.h"

namespace {

using namespace checkpoint_nets;
using accelerate::checkpoint;
using accelerate::UsageError;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

std::string this_file_at(int line) { return "checkpoint_errors_test.cpp:" + std::to_string(line); }

TEST(CheckpointErrors, ARerunThatSavesFewerTensorsIsNotDeterministic) {
  torch::nn::Linear net(8, 8);
  int calls = 0;
  const auto region = [&](const torch::Tensor& x) { return ++calls == 1 ? net(x).tanh().sin().exp() : net(x).tanh(); };
  const auto loss = checkpoint(region, sequences()).sum();
  const int line = __LINE__ - 1;
  expect_parts(message_of<UsageError>([&] { loss.backward(); }),
               {"accelerate::checkpoint", this_file_at(line), "is not deterministic", "in the forward pass", "in the rerun",
                "Move that out"});
}

TEST(CheckpointErrors, ARerunThatSavesOtherShapesOrDtypesIsNotDeterministic) {
  torch::nn::Linear net(8, 8);
  int calls = 0;
  const auto shapes = [&](const torch::Tensor& x) { return (++calls == 1 ? net(x) : net(x.narrow(1, 0, 2))).tanh().sum(); };
  const auto loss = checkpoint({.offload = false}, shapes, sequences());
  const int line = __LINE__ - 1;
  expect_parts(message_of<UsageError>([&] { loss.backward(); }),
               {this_file_at(line), "Float [10, 8] on cpu", "Float [4, 8] on cpu"});
  calls = 0;
  const auto dtypes = [&](const torch::Tensor& x) {
    return net(x).to(++calls == 1 ? torch::kDouble : torch::kFloat).tanh().sum();
  };
  const auto second = checkpoint(dtypes, sequences());
  expect_parts(message_of<UsageError>([&] { second.backward(); }), {"Double [2, 5, 8] on cpu", "Float [2, 5, 8] on cpu"});
}

TEST(CheckpointErrors, AFunctionThatHidesTheErrorIsStillNotDeterministic) {
  torch::nn::Linear net(8, 8);
  int calls = 0;
  const auto region = [&](const torch::Tensor& x) {
    try {
      return (++calls == 1 ? net(x) : net(x.narrow(1, 0, 2))).tanh().sum();
    } catch (const std::exception&) {
      return net(x).tanh().sum();
    }
  };
  const auto loss = checkpoint(region, sequences());
  expect_parts(message_of<UsageError>([&] { loss.backward(); }), {"is not deterministic"});
}

struct Unexpected : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(CheckpointErrors, AnExceptionInTheRerunComesOutOfTheBackwardPassAsItIsAndTheStateIsRestored) {
  torch::nn::Linear net(8, 8);
  int calls = 0;
  const auto region = [&](const torch::Tensor& x) {
    const auto y = torch::dropout(net(x), 0.5, true).tanh();
    if (++calls == 2) throw Unexpected("the second call");
    return y.exp();
  };
  torch::Tensor loss;
  {
    const accelerate::AutocastScope casting(c10::DeviceType::CPU, torch::kHalf);
    loss = checkpoint(region, sequences()).sum();
  }
  torch::manual_seed(1);
  const auto expected = torch::rand({3});
  torch::manual_seed(1);
  EXPECT_EQ(message_of<Unexpected>([&] { loss.backward({}, /*retain_graph=*/true); }), "the second call");
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
  EXPECT_TRUE(c10::GradMode::is_enabled());
  EXPECT_FALSE(net(sequences()).tanh().detach().requires_grad());
  loss.backward();  // the third call
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(net->weight.grad().defined());
}

TEST(CheckpointErrors, AnExceptionInTheForwardPassComesOutAndLeavesNothingBehind) {
  torch::nn::Linear net(8, 8);
  EXPECT_EQ(message_of<Unexpected>([&] {
              checkpoint([&](const torch::Tensor& x) -> torch::Tensor { throw Unexpected(net(x).tanh().defined() ? "now" : ""); },
                         sequences());
            }),
            "now");
  WatchedStorages watched;
  const auto y = watched(net(sequences()).tanh()).exp();
  EXPECT_EQ(watched.alive(), 1);  // saved, since no region has it
}

TEST(CheckpointErrors, AFunctionThatChangesItsInputInPlaceIsRefused) {
  torch::nn::Linear net(8, 8);
  const auto region = [&](torch::Tensor x) { return net(x.relu_()).tanh(); };
  const auto x = sequences();
  const auto message = message_of<UsageError>([&] { checkpoint(region, x); });
  expect_parts(message, {this_file_at(__LINE__ - 1), "changes its input 0", "in place", "clone()"});
}

TEST(CheckpointErrors, AnInputThatIsChangedInPlaceAfterwardsIsAnErrorOfTheBackwardPass) {
  torch::nn::Linear net(8, 8);
  auto x = sequences();
  const auto loss = checkpoint([&](const torch::Tensor& y) { return net(y.sin()).tanh(); }, x).sum();
  const int line = __LINE__ - 1;
  x.mul_(2);
  expect_parts(message_of<UsageError>([&] { loss.backward(); }),
               {this_file_at(line), "changed in place", "Float [2, 5, 8] on cpu"});
}

TEST(CheckpointErrors, AWeightThatIsSteppedBeforeTheBackwardPassIsAnError) {
  torch::nn::Linear net(8, 8);
  auto x = sequences().requires_grad_();
  const auto loss = checkpoint(net, x * 1).sum();
  {
    const torch::NoGradGuard no_grad;
    net->weight.mul_(2);
  }
  expect_parts(message_of<UsageError>([&] { loss.backward(); }), {"changed in place", "Float [8, 8] on cpu"});
}

}  // namespace
