#include "parallel/parallel_nets.h"

namespace {

using namespace parallel_nets;

class TogetherModel : public TogetherParallel {};

TEST_F(TogetherModel, TwoModelsTrainInTurns) {
  // As in a GAN: each step of one goes through the other.
  torch::nn::Sequential maker(torch::nn::Linear(4, 4), torch::nn::Tanh()),
      judge(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
  auto generator = prepared(maker), discriminator = prepared(judge);
  for (int step = 0; step < 4; ++step) {
    discriminator.zero_grad();
    backward(loss_of(discriminator(rows()) - 1));
    backward(loss_of(discriminator(generator(rows()).detach())));
    expect_same_everywhere(gradients(*judge));
    take_step(*judge);
    generator.zero_grad();
    backward(loss_of(discriminator(generator(rows())) - 1));
    expect_same_everywhere(gradients(*maker));
    take_step(*maker);
  }
  expect_same_everywhere(maker->parameters());
  expect_same_everywhere(judge->parameters());
}

TEST_F(TogetherModel, PartsFrozenForAStepAreLeftAlone) {
  Plain a, b;
  auto first = prepared(a), second = prepared(b);
  for (int step = 0; step < 4; ++step) {
    const bool freezes = step % 2 == 1;
    for (auto& parameter : second.parameters()) parameter.requires_grad_(!freezes);
    first.zero_grad();
    second.zero_grad();
    backward(loss_of(second(first(rows()).repeat({1, 2}))));
    expect_same_everywhere(gradients(*a));
    EXPECT_EQ(b->first->weight.grad().defined(), !freezes);
    expect_same_everywhere(gradients(*b));
  }
}

TEST_F(TogetherModel, IsUsedTwiceBeforeOneBackwardPass) {
  for (const DdpOptions& options : {DdpOptions{}, DdpOptions{.find_unused_parameters = true}, DdpOptions{.static_graph = true}}) {
    Plain net;
    auto model = prepared(net, options);
    for (int step = 0; step < 3; ++step) {
      const auto expected = gradients_alone(
          net, [](auto& twin) { return loss_of(twin.forward(rows_of_all())) + loss_of(twin.forward(rows_of_all().cos())); });
      model.zero_grad();
      const auto first = loss_of(model(rows()));
      backward(first + loss_of(model(rows().cos())));
      expect_close(gradients(*net), expected);
    }
  }
}

TEST_F(TogetherModel, BuffersThatAGraphHasSavedMayBeSentAgain) {
  Normalised net;
  auto model = prepared(net);
  model.eval();
  const auto first = loss_of(model(rows()));
  backward(first + loss_of(model(rows().cos())));
  expect_same_everywhere(gradients(*net));
}

TEST_F(TogetherModel, BackwardPassesThatEachReachAPartSynchroniseWhenAllAreDone) {
  struct ApartImpl : HeadsImpl {
    std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x) {
      return {left(torch::tanh(body(x))), right(torch::ones({1, 8}))};
    }
  };
  const torch::nn::ModuleHolder<ApartImpl> net(std::make_shared<ApartImpl>());
  auto model = prepared(net);
  for (int step = 0; step < 3; ++step) {
    const auto expected = gradients_alone(net, [](auto& twin) {
      const auto [by_data, by_ones] = twin.forward(rows_of_all());
      return loss_of(by_data) + loss_of(by_ones);
    });
    model.zero_grad();
    const auto outputs = model(rows());
    backward(loss_of(outputs.second));
    backward(loss_of(outputs.first));
    expect_close(gradients(*net), expected);
  }
}

TEST_F(TogetherModel, EvaluatesBetweenTrainingStepsAndTrainsInEvaluationMode) {
  Normalised net;
  auto model = prepared(net);
  for (int step = 0; step < 3; ++step) {
    model.train();
    model.zero_grad();
    backward(loss_of(model(rows())));
    expect_same_everywhere(gradients(*net));
    {
      torch::NoGradGuard no_grad;
      model.eval();
      for (int batch = 0; batch <= step; ++batch) EXPECT_FALSE(model(rows()).requires_grad());
    }
    model.zero_grad();
    backward(loss_of(model(rows())));
    expect_same_everywhere(gradients(*net));
    EXPECT_FALSE(net->is_training());
  }
}

TEST_F(TogetherModel, WithoutParametersOrWithFrozenOnesIsCalledLikeAnyOther) {
  torch::nn::ReLU none;
  auto relu = prepared(none);
  EXPECT_TRUE(torch::equal(relu(torch::tensor({-1.0, 2.0})), torch::tensor({0.0, 2.0})));
  EXPECT_TRUE(relu.parameters().empty());
  torch::manual_seed(rank());
  Plain frozen;
  for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  auto model = prepared(frozen);
  expect_same_everywhere(frozen->parameters());
  EXPECT_FALSE(model(rows()).requires_grad());
}

TEST_F(TogetherModel, PreparedForEvaluationRunsNoCollective) {
  if (!accelerator().is_main_process()) return;  // alone
  Normalised net;
  Model<NormalisedImpl> model(net.ptr(), state(), {.evaluation_mode = true}, std::source_location::current());
  loss_of(model(rows())).backward();
  EXPECT_TRUE(net->linear->weight.grad().defined());
}

struct ReferringImpl : torch::nn::Module {
  ReferringImpl() : kept(std::make_unique<torch::Tensor>(torch::ones({2}))) {}
  const torch::Tensor& forward() { return *kept; }
  std::unique_ptr<torch::Tensor> forward(int) { return std::move(kept); }
  void forward(const std::string&) { ++calls; }
  std::unique_ptr<torch::Tensor> kept;
  int calls = 0;
};

TEST_F(TogetherModel, ReturnsWhatForwardReturnsAlsoReferencesThingsThatMoveAndNothing) {
  auto net = std::make_shared<ReferringImpl>();
  Model<ReferringImpl> model(net, state(), {}, std::source_location::current());
  EXPECT_EQ(model().sum().item<int>(), 2);
  model(std::string("nothing"));
  EXPECT_EQ(model->calls, 1);
  EXPECT_EQ(model(1)->sum().item<int>(), 2);
}

TEST_F(TogetherModel, NestedResultsComeBackWholeFromModulesOfTheLibrary) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 3));
  for (const DdpOptions& options : {DdpOptions{}, DdpOptions{.find_unused_parameters = true}, DdpOptions{.static_graph = true}}) {
    auto model = prepared(lstm, options);
    for (int step = 0; step < 2; ++step) {
      auto [output, hidden] = model(rows().unsqueeze(1));
      backward(output.sum() + std::get<0>(hidden).sum() + std::get<1>(hidden).sum());
      expect_same_everywhere(gradients(*lstm));
    }
  }
}

struct ManyFields {
  torch::Tensor a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q;
};

TEST_F(TogetherModel, AStructOfManyFieldsIsAResultLikeAnyOther) {
  struct ManyImpl : HeadsImpl {
    ManyFields forward(const torch::Tensor& x) {
      ManyFields result;
      result.q = left(torch::tanh(body(x))) + right(torch::sin(body(x)));
      return result;
    }
  };
  const torch::nn::ModuleHolder<ManyImpl> net(std::make_shared<ManyImpl>());
  auto model = prepared(net);
  backward(loss_of(model(rows()).q));
  expect_same_everywhere(gradients(*net));
}

TEST_F(TogetherModel, NamesItsParametersAndForgetsTheirGradients) {
  Plain net;
  auto model = prepared(net);
  const auto named = model.named_parameters();
  EXPECT_EQ(named.size(), 4U);
  EXPECT_EQ(named.at("second.bias").unsafeGetTensorImpl(), net->second->bias.unsafeGetTensorImpl());
  backward(loss_of(model(rows())));
  model.zero_grad(false);
  EXPECT_EQ(net->first->weight.grad().abs().sum().item<float>(), 0);
  model.zero_grad();
  EXPECT_FALSE(net->first->weight.grad().defined());
}

TEST_F(TogetherModel, ItsGraphMayOutliveIt) {
  for (const DdpOptions& options : {DdpOptions{}, DdpOptions{.find_unused_parameters = true}, DdpOptions{.static_graph = true}}) {
    Plain net;
    torch::Tensor loss;
    {
      auto model = prepared(net, options);
      loss = loss_of(model(rows()));
    }
    loss.backward();
    expect_close(gradients(*net), gradients_alone(net, [](auto& twin) { return loss_of(twin.forward(rows())); }));
  }
}

}  // namespace
