// What a checkpointed run computes: the same as the plain one, to the bit.
#include <thread>

#include "activations/checkpoint_nets.h"
#include "support/error_text.h"

namespace {

using namespace checkpoint_nets;
using accelerate::checkpoint;

torch::nn::Sequential dropout_mlp() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Dropout(0.5), torch::nn::Linear(16, 8));
}

TEST(ActivationCheckpoint, GradientsOfAnMlpWithDropoutAreThoseOfThePlainRun) {
  auto net = dropout_mlp();
  const auto x = sequences();
  const TrainingPass plain(*net, [&] { return net->forward(x).pow(2).sum(); });
  expect_same_pass(TrainingPass(*net, [&] { return checkpoint(net, x).pow(2).sum(); }), plain);
}

TEST(ActivationCheckpoint, GradientsOfAttentionBlocksAreThoseOfThePlainRunWhateverTheOptions) {
  BlockStack net(8, 3);
  const auto x = sequences();
  const TrainingPass plain(*net, [&] { return net->forward(x).pow(2).sum(); });
  net->is_checkpointed = true;
  for (const bool offload : {false, true}) {
    net->options = {.offload = offload};
    expect_same_pass(TrainingPass(*net, [&] { return net->forward(x).pow(2).sum(); }), plain);
  }
}

TEST(ActivationCheckpoint, GradientsUnderAutocastAreThoseOfThePlainRunAlsoOfAWeightThatTwoRegionsUse) {
  AttentionBlock net(8);
  const auto x = sequences();
  for (const bool cached : {true, false}) {
    const auto loss_of = [&](bool is_checkpointed) {
      const accelerate::AutocastScope casting(c10::DeviceType::CPU, torch::kBFloat16, {.cache_enabled = cached});
      auto y = x;
      for (int i = 0; i < 2; ++i) y = is_checkpointed ? checkpoint(net, y) : net(y);
      return y.pow(2).sum();
    };
    const TrainingPass plain(*net, [&] { return loss_of(false); });
    expect_same_pass(TrainingPass(*net, [&] { return loss_of(true); }), plain);
  }
}

TEST(ActivationCheckpoint, AutocastOfTheRerunIsThatOfTheForwardPassAndEndsWithIt) {
  torch::nn::Linear net(8, 8);
  std::vector<torch::ScalarType> dtypes;
  const auto region = [&](const torch::Tensor& x) {
    auto y = net(x).tanh();
    dtypes.push_back(y.scalar_type());
    return net(y).sin();
  };
  torch::Tensor loss;
  {
    const accelerate::AutocastScope casting(c10::DeviceType::CPU, torch::kBFloat16);
    loss = checkpoint(region, sequences()).sum();
  }
  loss.backward();
  EXPECT_EQ(dtypes, (std::vector{torch::kBFloat16, torch::kBFloat16}));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
  {
    const accelerate::AutocastScope casting(c10::DeviceType::CPU, torch::kHalf);
    auto x = sequences().requires_grad_();
    torch::ScalarType after = torch::kFloat;
    x.register_hook([&](const torch::Tensor&) { after = at::autocast::get_autocast_dtype(torch::kCPU); });
    loss = checkpoint(region, x).sum();
    const accelerate::AutocastScope none(c10::DeviceType::CPU, torch::kBFloat16, {.enabled = false});
    loss.backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
    EXPECT_EQ(after, torch::kBFloat16) << "the rest of the backward pass";
  }
  EXPECT_EQ(dtypes.back(), torch::kHalf);
}

TEST(ActivationCheckpoint, CastsThatARerunMakesAreNotThoseOfTheNextForwardPass) {
  AttentionBlock net(8, 0);
  const auto call = [&](bool is_checkpointed) {
    const accelerate::AutocastScope casting(c10::DeviceType::CPU, torch::kBFloat16);
    return (is_checkpointed ? checkpoint(net, sequences()) : net(sequences())).sum();
  };
  call(true).backward();
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.mul_(0.5);
  }
  const auto mine = call(false);
  at::autocast::clear_cache();
  EXPECT_TRUE(torch::equal(mine, call(false)));
}

struct TwoParts {
  torch::Tensor left;
  std::vector<torch::Tensor> rest;
};

TEST(ActivationCheckpoint, TensorsInNestedInputsAndOutputsHaveTheGradientsOfThePlainRun) {
  torch::nn::Linear net(8, 8);
  auto a = sequences().requires_grad_(), b = sequences().cos().requires_grad_(), c = torch::ones({8}).requires_grad_();
  auto region = [net](const TwoParts& pair, std::map<std::string, torch::Tensor> more, double factor,
                      std::optional<torch::Tensor> none) mutable {
    EXPECT_FALSE(none);
    auto left = torch::tanh(net(pair.left)) * factor;
    return std::tuple(TwoParts{left, {torch::sigmoid(pair.rest[0] * left)}}, more.at("c").exp());
  };
  auto plain_region = region;
  const auto gradients = [&](bool is_checkpointed) {
    const TwoParts pair{a * 2, {b.sin()}};
    const std::map<std::string, torch::Tensor> more = {{"c", c}};
    auto [out, scale] = is_checkpointed ? checkpoint(region, pair, more, 0.5, std::optional<torch::Tensor>())
                                        : plain_region(pair, more, 0.5, std::optional<torch::Tensor>());
    return torch::autograd::grad({((out.left + out.rest[0]) * scale).sum()}, {a, b, c, net->weight});
  };
  const auto plain = gradients(false), mine = gradients(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(mine[i], plain[i])) << i;
}

TEST(ActivationCheckpoint, EverythingThatCanBeCalledIsTaken) {
  AttentionBlock net(8, 0);
  const auto x = sequences();
  const TrainingPass plain(*net, [&] { return net(x).sum(); });
  const auto expect_same = [&](const std::function<torch::Tensor()>& call) {
    expect_same_pass(TrainingPass(*net, [&] { return call().sum(); }), plain);
  };
  expect_same([&] { return checkpoint(net, x); });
  expect_same([&] { return checkpoint(net.ptr(), x); });
  expect_same([&] { return checkpoint(*net, x); });
  expect_same([&] { return checkpoint([net](auto y) mutable { return net(y); }, x); });
  expect_same([&] { return checkpoint([net, x]() mutable { return net(x); }); });
  expect_same([&] { return checkpoint(&AttentionBlockImpl::forward, net.ptr(), x); });
  expect_same([&] { return checkpoint(torch::nn::AnyModule(net), x); });
  expect_same([&] { return checkpoint(std::function<torch::Tensor(torch::Tensor)>([&](auto y) { return net(y); }), x); });
  expect_same([&] { return checkpoint([&](at::TensorList list) { return net(list[0]); }, at::TensorList(x)); });
  torch::Tensor out;
  expect_same([&] {
    checkpoint([&](const torch::Tensor& y) { out = net(y); }, x);
    return out;
  });
  expect_same([&] {
    return checkpoint([&](auto y, int, bool, const char*, std::string) { return net(y); }, x, 1, true, "text",
                      std::string("text"));
  });
}

TEST(ActivationCheckpoint, RegionsInsideRegionsAreRecomputedAsDeepAsTheyAreNested) {
  BlockStack net(8, 3);
  const auto x = sequences();
  const TrainingPass plain(*net, [&] { return net->forward(x).pow(2).sum(); });
  net->is_checkpointed = true;
  expect_same_pass(TrainingPass(*net, [&] { return checkpoint(net, x).pow(2).sum(); }), plain);
  expect_same_pass(TrainingPass(*net, [&] { return checkpoint([&](auto y) { return checkpoint(net, y).pow(2).sum(); }, x); }),
                   plain);
}

TEST(ActivationCheckpoint, InputsNeedNoGradients) {
  AttentionBlock net(8);
  const auto x = sequences().requires_grad_();
  const auto gradients = [&](bool is_checkpointed, bool of_input) {
    torch::manual_seed(5);
    const auto y = of_input ? x : x.detach();
    const auto loss = (is_checkpointed ? checkpoint(net, y) : net(y)).sum();
    return torch::autograd::grad({loss}, of_input ? std::vector{x} : net->parameters());
  };
  for (const bool of_input : {true, false}) {
    const auto plain = gradients(false, of_input), mine = gradients(true, of_input);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(mine[i], plain[i])) << i;
  }
}

TEST(ActivationCheckpoint, AGraphThatIsRetainedIsRecomputedForEachBackwardPass) {
  AttentionBlock net(8);
  const auto loss = checkpoint(net, sequences()).pow(2).sum();
  const auto first = torch::autograd::grad({loss}, net->parameters(), {}, /*retain_graph=*/true);
  EXPECT_EQ(net->calls, 2);
  const auto second = torch::autograd::grad({loss}, net->parameters(), {}, /*retain_graph=*/true);
  EXPECT_EQ(net->calls, 3);
  const auto third = torch::autograd::grad({loss}, net->parameters());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(torch::equal(first[i], second[i]));
    EXPECT_TRUE(torch::equal(first[i], third[i]));
  }
  EXPECT_THROW(torch::autograd::grad({loss}, net->parameters()), c10::Error);  // it is gone, as that of a plain run
}

TEST(ActivationCheckpoint, SecondDerivativesAreThoseOfThePlainRun) {
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  const auto x = sequences().requires_grad_();
  const auto loss_of = [&](bool is_checkpointed) {
    const auto y = (is_checkpointed ? checkpoint(net, x * 2) : net->forward(x * 2)).exp();
    const auto gradient = torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    return y.sum() + gradient[0].pow(2).sum();
  };
  const TrainingPass plain(*net, [&] { return loss_of(false); });
  expect_same_pass(TrainingPass(*net, [&] { return loss_of(true); }), plain);
}

TEST(ActivationCheckpoint, AFunctionMayMakeABackwardPassOfItsOwn) {
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 8));
  const auto penalised = [&](torch::Tensor x) {
    const auto leaf = x.detach().requires_grad_();
    const auto y = net->forward(leaf);
    const auto gradient = torch::autograd::grad({y.pow(2).sum()}, {leaf}, {}, true, true)[0];
    return net->forward(x).sum() + gradient.pow(2).sum();
  };
  const auto x = sequences();
  const TrainingPass plain(*net, [&] { return penalised(x); });
  expect_same_pass(TrainingPass(*net, [&] { return checkpoint(penalised, x); }), plain);
}

TEST(ActivationCheckpoint, WhereNoGraphIsRecordedTheFunctionIsJustCalled) {
  AttentionBlock net(8);
  int kept = 0;
  struct Counted {
    explicit Counted(int& its_copies) : copies(its_copies) {}
    Counted(const Counted& other) : copies(other.copies) { ++copies; }
    int& copies;
  };
  const Counted counted(kept);
  const auto region = [&](const torch::Tensor& x, const Counted&) { return net(x); };
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(checkpoint(region, sequences(), counted).requires_grad());
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(checkpoint(region, sequences(), counted).is_inference());
  }
  EXPECT_EQ(net->calls, 2);
  EXPECT_EQ(kept, 0);
  checkpoint(region, sequences(), counted);
  EXPECT_GT(kept, 0);
}

TEST(ActivationCheckpoint, RandomNumbersOfTheRerunAreItsOwnOnlyWhenTheyNeedNotBeTheSame) {
  const auto x = torch::ones({64}).requires_grad_();
  torch::Tensor mask;
  const auto region = [&](const torch::Tensor& y) { return torch::dropout(y, 0.5, true).exp().sin(); };
  const auto gradient = [&](const accelerate::CheckpointOptions& options) {
    torch::manual_seed(2);
    const auto out = checkpoint(options, region, x);
    torch::rand({3});
    return torch::autograd::grad({out.sum()}, {x})[0];
  };
  torch::manual_seed(2);
  const auto plain = torch::autograd::grad({region(x).sum()}, {x})[0];
  EXPECT_TRUE(torch::equal(gradient({}), plain));
  EXPECT_FALSE(torch::equal(gradient({.preserve_rng_state = false}), plain));
}

TEST(ActivationCheckpoint, BatchNormCountsTheRerunAsABatchAndHasTheGradientsOfThePlainRun) {
  torch::nn::Sequential net(torch::nn::Linear(8, 4), torch::nn::BatchNorm1d(4), torch::nn::Tanh());
  const auto x = sequences().view({-1, 8});
  const TrainingPass plain(*net, [&] { return net->forward(x).pow(2).sum(); });
  const auto batches = [&] { return net->ptr(1)->as<torch::nn::BatchNorm1d>()->num_batches_tracked.item<int64_t>(); };
  EXPECT_EQ(batches(), 1);
  expect_same_pass(TrainingPass(*net, [&] { return checkpoint(net, x).pow(2).sum(); }), plain);
  EXPECT_EQ(batches(), 3);
}

TEST(ActivationCheckpoint, TheBackwardPassMayRunInAnotherThread) {
  AttentionBlock net(8);
  const auto x = sequences();
  const auto in_thread = [](const std::function<void()>& work) { std::thread(work).join(); };
  const TrainingPass plain(*net, [&] { return net(x).sum(); });
  torch::Tensor loss;
  torch::manual_seed(11);
  net->zero_grad();
  in_thread([&] { loss = checkpoint(net, x).sum(); });
  in_thread([&] { loss.backward(); });
  for (const auto& parameter : net->named_parameters()) {
    EXPECT_TRUE(torch::equal(parameter.value().grad(), plain.gradients.at(parameter.key())));
  }
}

TEST(ActivationCheckpoint, SeveralThreadsMakeBackwardPassesThroughOneGraph) {
  AttentionBlock net(8, 0);
  const auto loss = checkpoint(net, sequences()).pow(2).sum();
  const auto expected = torch::autograd::grad({net(sequences()).pow(2).sum()}, net->parameters());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int pass = 0; pass < 20; ++pass) {
        const auto gradients = torch::autograd::grad({loss}, net->parameters(), {}, /*retain_graph=*/true);
        for (size_t j = 0; j < gradients.size(); ++j) wrong += !torch::equal(gradients[j], expected[j]);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
