// What an option says is done, or refused by name.
#include <torch/torch.h>

#include "support/error_text.h"
#include "support/other_device.h"
#include "support/together.h"

namespace {

using accelerate::Accelerator;
using accelerate::UsageError;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

TEST(AcceleratorOptions, WhatNobodyReadsYetIsRefusedByName) {
  expect_parts(message_of<UsageError>([] { Accelerator({.cpu = true, .downcast_bf16 = true}); }), {"downcast_bf16", "XLA"});
  expect_parts(message_of<UsageError>([] { Accelerator({.cpu = true, .project = {.logging_dir = "runs"}}); }),
               {"logging_dir", "'runs'", "trackers"});
}

TEST(AcceleratorOptions, AVariableAboutTpusIsIgnoredElsewhereAsInPython) {
  ::setenv("ACCELERATE_DOWNCAST_BF16", "1", 1);
  EXPECT_EQ(message_of<UsageError>([] { Accelerator({.cpu = true}); }), "no error");
  ::unsetenv("ACCELERATE_DOWNCAST_BF16");
}

/// A model that tells where it was sent, an optimizer whose state is not where its parameters are, and batches of another device.
struct Astray {
  struct SentImpl : torch::nn::LinearImpl {
    SentImpl() : LinearImpl(2, 2) {}
    using torch::nn::LinearImpl::to;
    void to(torch::Device device, bool) override { sent_to = device; }
    std::optional<torch::Device> sent_to;
  };
  struct Elsewhere {
    size_t size() const { return 2; }
    at::Tensor get(size_t) const { return torch::ones({2}).to(other_device()); }
  };

  Astray() {
    // Adagrad makes its state at once; meta stands for a device that the CPU build has.
    for (auto& parameter : net->parameters())
      parameter.unsafeGetTensorImpl()->shallow_copy_from(torch::empty_like(parameter, torch::kMeta).getIntrusivePtr());
  }
  bool model_was_sent() const { return net->sent_to == torch::Device(torch::kCPU); }
  bool state_was_sent() {
    const auto& state = *adagrad.state().at(net->weight.unsafeGetTensorImpl());
    return static_cast<const torch::optim::AdagradParamState&>(state).sum().is_meta();
  }
  static bool batches_are_sent(const accelerate::DataLoader<at::Tensor>& loader) { return (*loader.begin()).is_cpu(); }

  std::shared_ptr<SentImpl> net = std::make_shared<SentImpl>();
  torch::optim::Adagrad adagrad{net->parameters()};
  accelerate::DataLoader<at::Tensor> data{Elsewhere()};
};

TEST(DevicePlacement, IsThatOfTheAccelerator) {
  for (const bool places : {true, false}) {
    Accelerator accelerator({.device_placement = places, .cpu = true});
    Astray astray;
    auto [model, optimizer, loader] = accelerator.prepare(astray.net, astray.adagrad, astray.data);
    EXPECT_EQ(astray.model_was_sent(), places);
    EXPECT_EQ(astray.state_was_sent(), places);
    EXPECT_EQ(Astray::batches_are_sent(loader), places);
  }
}

TEST(DevicePlacement, CanBeSaidOfEachObject) {
  for (size_t placed = 0; placed < 3; ++placed) {
    for (const bool by_default : {true, false}) {
      Accelerator accelerator({.device_placement = by_default, .cpu = true});
      Astray astray;
      auto [model, optimizer, loader] = accelerator.prepare({.device_placement = {placed == 0, placed == 1, placed == 2}},
                                                            astray.net, astray.adagrad, astray.data);
      EXPECT_EQ(astray.model_was_sent(), placed == 0);
      EXPECT_EQ(astray.state_was_sent(), placed == 1);
      EXPECT_EQ(Astray::batches_are_sent(loader), placed == 2);
    }
  }
  Accelerator accelerator({.cpu = true});
  Astray astray;
  accelerator.prepare_model(astray.net, {.device_placement = false});
  accelerator.prepare_optimizer(astray.adagrad, {.device_placement = false});
  EXPECT_FALSE(astray.model_was_sent());
  EXPECT_FALSE(astray.state_was_sent());
  EXPECT_FALSE(Astray::batches_are_sent(accelerator.prepare_data_loader(astray.data, {.device_placement = false})));
}

TEST(GradientAccumulation, ItsStepsCanBeChangedDuringARun) {
  Accelerator accelerator({.cpu = true});
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  torch::optim::SGD sgd(net->parameters(), 0.5);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto start = net->weight.item<float>();
  std::vector<bool> synchronised;
  const auto take_batch = [&, &model = model, &optimizer = optimizer] {
    auto scope = accelerator.accumulate(model);
    accelerator.backward(model(torch::ones({1, 1})).sum());
    optimizer.step();
    optimizer.zero_grad();
    synchronised.push_back(accelerator.sync_gradients());
  };
  take_batch();
  accelerator.set_gradient_accumulation_steps(2);
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 2);
  for (int i = 0; i < 5; ++i) take_batch();
  accelerator.set_gradient_accumulation_steps(1);
  take_batch();
  EXPECT_EQ(synchronised, (std::vector{true, true, false, true, false, true, true})) << "batch 2 is the second one counted";
  EXPECT_FLOAT_EQ(net->weight.item<float>(), start - 0.5f * (1 + 0.5f + 1 + 1 + 1)) << "each step is a mean of its batches";
  expect_parts(message_of<UsageError>([&] { accelerator.set_gradient_accumulation_steps(0); }), {"=0", "at least 1"});
}

TEST(SetSeed, DeterministicMakesOperatorsRefuseWhatTheyCannotDoSo) {
  auto& context = at::globalContext();
  context.setBenchmarkCuDNN(true);
  const auto put = [] { torch::zeros({3}).put_(torch::tensor({1, 1}), torch::tensor({1.f, 2.f})); };
  accelerate::set_seed(3);
  EXPECT_FALSE(context.deterministicAlgorithms());
  EXPECT_TRUE(context.benchmarkCuDNN());
  EXPECT_EQ(message_of<c10::Error>(put), "no error");
  const auto drawn = torch::rand({4});
  accelerate::set_seed(3, {.deterministic = true});
  EXPECT_TRUE(torch::equal(torch::rand({4}), drawn)) << "it is the same seed";
  expect_parts(message_of<c10::Error>(put), {"put_", "deterministic"});
  EXPECT_TRUE(context.deterministicCuDNN());
  EXPECT_FALSE(context.benchmarkCuDNN());
  context.setDeterministicAlgorithms(false, false);
  context.setDeterministicCuDNN(false);
}

}  // namespace
