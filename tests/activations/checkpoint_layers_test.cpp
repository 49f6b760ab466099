#include "activations/checkpoint_layers.h"

#include "activations/checkpoint_nets.h"
#include "rendezvous/torch_private_access.h"
#include "support/error_text.h"

namespace {

using namespace checkpoint_nets;
using accelerate::UsageError;
using accelerate::detail::checkpoint_layers;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

/// Returns several tensors, and takes what it returns.
struct LoopImpl : torch::nn::Module {
  LoopImpl() { linear = register_module("linear", torch::nn::Linear(8, 8)); }
  std::tuple<torch::Tensor, torch::Tensor> forward(std::tuple<torch::Tensor, torch::Tensor> state) {
    ++calls;
    auto [x, y] = state;
    x = torch::tanh(linear(x) * y);
    return {x, torch::sigmoid(x + y)};
  }
  torch::nn::Linear linear{nullptr};
  int calls = 0;
};
TORCH_MODULE(Loop);

/// A Sequential somewhere inside.
struct LayeredModelImpl : torch::nn::Module {
  LayeredModelImpl() {
    body = register_module("body", torch::nn::Sequential(AttentionBlock(8), torch::nn::Tanh(), AttentionBlock(8)));
    head = register_module("head", torch::nn::Linear(8, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(body->forward(x)); }
  int calls() const { return body->ptr(0)->as<AttentionBlock>()->calls + body->ptr(2)->as<AttentionBlock>()->calls; }
  torch::nn::Sequential body{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(LayeredModel);

std::vector<std::string> names_of_parts(const torch::nn::Module& module) {
  auto names = module.named_parameters().keys();
  for (const auto& name : module.named_modules("", false).keys()) names.push_back(name);
  return names;
}

TEST(CheckpointLayers, ChildrenOfSequentialsAreRecomputedByAnyNameOfTheirClass) {
  LayeredModel model;
  const auto x = sequences();
  const TrainingPass plain(*model, [&] { return model->forward(x).pow(2).sum(); });
  EXPECT_EQ(model->calls(), 2);
  for (const std::string name : {"AttentionBlock", "AttentionBlockImpl", "checkpoint_nets::AttentionBlock"}) {
    LayeredModel twin;
    for (const auto& [key, value] : model->named_parameters().pairs()) twin->named_parameters()[key].set_data(value.clone());
    const auto names = names_of_parts(*twin);
    checkpoint_layers(*twin, {name});
    EXPECT_EQ(names_of_parts(*twin), names);
    expect_same_pass(TrainingPass(*twin, [&] { return twin->forward(x).pow(2).sum(); }), plain);
    EXPECT_EQ(twin->calls(), 4) << name;
  }
}

TEST(CheckpointLayers, CallingItTwiceWrapsOnce) {
  LayeredModel model;
  const auto content = [&] { return accelerate::torch_private::content_of(*model->body->begin()).get(); };
  const auto* plain = content();
  checkpoint_layers(*model, {"AttentionBlock"});
  const auto* once = content();
  EXPECT_NE(once, plain);
  checkpoint_layers(*model, {"AttentionBlock"});
  EXPECT_EQ(content(), once);
  model->forward(sequences()).sum().backward();
  EXPECT_EQ(model->calls(), 4);
}

TEST(CheckpointLayers, OtherSignaturesThanOfTensorsWork) {
  torch::nn::Sequential net((Loop()), Loop());
  const auto state = std::tuple(sequences(), sequences().cos());
  const auto loss_of = [&] {
    const auto [x, y] = net->forward<std::tuple<torch::Tensor, torch::Tensor>>(state);
    return (x * y).sum();
  };
  const TrainingPass plain(*net, loss_of);
  checkpoint_layers(*net, {"Loop"});
  expect_same_pass(TrainingPass(*net, loss_of), plain);
  EXPECT_EQ(net->ptr(0)->as<Loop>()->calls, 3);
}

TEST(CheckpointLayers, ClonesAreCheckpointedToo) {
  torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::Tanh());
  checkpoint_layers(*net, {"Linear", "Tanh"});
  const torch::nn::Sequential twin(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone()));
  const TrainingPass plain(*net, [&] { return net->forward(sequences()).sum(); });
  expect_same_pass(TrainingPass(*twin.ptr(), [&] { return twin.ptr()->forward(sequences()).sum(); }), plain);
  EXPECT_FALSE(twin.ptr()->parameters()[0].is_alias_of(net->parameters()[0]));
  EXPECT_THROW(twin.ptr()->at<torch::nn::LinearImpl>(0), c10::Error);
}

TEST(CheckpointLayers, EvaluationCallsLayersOnce) {
  LayeredModel model;
  checkpoint_layers(*model, {"AttentionBlock"});
  const torch::NoGradGuard no_grad;
  model->forward(sequences());
  EXPECT_EQ(model->calls(), 2);
}

TEST(CheckpointLayers, TheTypeOfAChildIsRefusedAndItsPointerGiven) {
  torch::nn::Sequential net(AttentionBlock(8));
  checkpoint_layers(*net, {"AttentionBlock"});
  EXPECT_THROW(net->at<AttentionBlockImpl>(0), c10::Error);
  EXPECT_NE(net->ptr(0)->as<AttentionBlock>(), nullptr);
}

TEST(CheckpointLayers, AModelThatCallsItsLayersItselfIsToldWhatToWrite) {
  BlockStack stack(8, 2);
  expect_parts(message_of<UsageError>([&] { checkpoint_layers(*stack, {"AttentionBlock"}); }),
               {"AttentionBlock", "'blocks.0'", "x = accelerate::checkpoint(block, x);", "Sequential"});
  LayeredModel model;
  expect_parts(message_of<UsageError>([&] {
                 checkpoint_layers(*model, {"AttentionBlock", "Linear"});
               }),
               {"class Linear", "'body.0.qkv'", "AttentionBlockImpl", "x = accelerate::checkpoint(qkv, x);"});
  model->forward(sequences()).sum().backward();
  EXPECT_EQ(model->calls(), 2) << "it has changed the model";
}

TEST(CheckpointLayers, AClassThatTheModelLacksIsAnErrorWithThoseItHas) {
  LayeredModel model;
  expect_parts(message_of<UsageError>([&] { checkpoint_layers(*model, {"LlamaDecoderLayer"}); }),
               {"LlamaDecoderLayer", "checkpoint_nets::AttentionBlockImpl", "torch::nn::LinearImpl"});
}

TEST(CheckpointLayers, ALayerThatIsNotDeterministicIsNamed) {
  LayeredModel model;
  checkpoint_layers(*model, {"AttentionBlock"});
  const auto loss = model->forward(sequences()).sum();
  model->eval();
  expect_parts(message_of<UsageError>([&] { loss.backward(); }),
               {"AttentionBlockImpl", "is not deterministic", "train() and eval()"});
}

}  // namespace
