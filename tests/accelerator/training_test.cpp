// The training loop as a whole, on 1 to 4 processes.
#include <torch/torch.h>

#include <forward_list>

#include "support/together.h"

namespace {

using accelerate::Accelerator;
using accelerate::UsageError;

torch::nn::Sequential small_net(uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
}

class TogetherTraining : public Together {
 protected:
  static accelerate::AcceleratorOptions patient(accelerate::AcceleratorOptions options = {}) {
    options.timeout = std::chrono::seconds(60);
    return options;
  }
  static double sum_of(const std::vector<torch::Tensor>& tensors) {
    double sum = 0;
    for (const auto& tensor : tensors) sum += tensor.abs().sum().item<double>();
    return sum;
  }
};

TEST_F(TogetherTraining, PrepareReturnsEverythingInTheOrderGiven) {
  Accelerator a(patient());
  auto net = small_net(1);
  auto adamw = std::make_shared<torch::optim::AdamW>(net->parameters());
  torch::optim::StepLR step_lr(*adamw, 1, 0.5);
  accelerate::DataLoader data(accelerate::TensorDataset(torch::ones({8, 3}), torch::ones({8, 1})), {.batch_size = 2});
  auto [scheduler, loader, optimizer, model] = a.prepare(step_lr, data, adamw, net);
  static_assert(std::is_same_v<decltype(scheduler), accelerate::AcceleratedScheduler>);
  static_assert(std::is_same_v<decltype(loader), accelerate::DataLoader<accelerate::Example>>);
  static_assert(std::is_same_v<decltype(optimizer), accelerate::AcceleratedOptimizer>);
  static_assert(std::is_same_v<decltype(model), accelerate::Model<torch::nn::SequentialImpl>>);
  static_assert(std::is_same_v<decltype(a.prepare(net)), accelerate::Model<torch::nn::SequentialImpl>>);
  EXPECT_EQ(&optimizer.optimizer(), adamw.get());
  EXPECT_EQ(a.unwrap_model(model), net.ptr());
  EXPECT_TRUE(loader.prepared());
}

TEST_F(TogetherTraining, PreparingTwiceGivesTheSame) {
  Accelerator a(patient());
  auto net = small_net(1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  accelerate::LambdaLR constant(sgd, [](int64_t) { return 1.0; });
  accelerate::DataLoader data(accelerate::TensorDataset(torch::ones({8, 3}), torch::ones({8, 1})), {.batch_size = 2});
  auto [model, optimizer, loader, scheduler] = a.prepare(net, sgd, data, constant);
  auto [model2, optimizer2, loader2, scheduler2] = a.prepare(model, optimizer, loader, scheduler);
  EXPECT_EQ(model.core(), model2.core());
  EXPECT_TRUE(optimizer == optimizer2);
  EXPECT_EQ(loader.core(), loader2.core());
  EXPECT_TRUE(scheduler == scheduler2);
  EXPECT_EQ(a.prepare(net).core(), model.core()) << "the module itself, again";
  EXPECT_NE(a.prepare_model(net, {.evaluation_mode = true}).core(), model.core());
  EXPECT_EQ(a.prepare(net).core(), model.core()) << "evaluating it makes no second model that all-reduces its gradients";
}

TEST_F(TogetherTraining, PointersThatAreConstantArePreparedToo) {
  Accelerator a(patient());
  const auto net = std::make_shared<torch::nn::LinearImpl>(3, 1);
  const auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), 0.5);
  const auto step_lr = std::make_shared<torch::optim::StepLR>(*sgd, 1, 0.5);
  const auto constant = std::make_shared<accelerate::LambdaLR>(*sgd, [](int64_t) { return 1.0; });
  const auto [model, optimizer, scheduler, ours] = a.prepare(net, sgd, step_lr, constant);
  EXPECT_EQ(&optimizer.optimizer(), sgd.get());
  EXPECT_EQ(scheduler.optimizer(), sgd.get());
  const auto again = a.prepare(scheduler);
  EXPECT_TRUE(again == scheduler);
  EXPECT_EQ(a.prepare_scheduler(std::make_shared<torch::optim::StepLR>(*sgd, 1, 0.5)).optimizer(), sgd.get());
}

TEST_F(TogetherTraining, WhatCannotBePreparedIsToldByName) {
  Accelerator a(patient());
  auto net = small_net(1), other = small_net(2);
  torch::optim::SGD sgd(net->parameters(), 0.1), stranger(other->parameters(), 0.1);
  torch::optim::StepLR step_lr(stranger, 1, 0.5);
  EXPECT_THROW(a.prepare(sgd), UsageError) << "its model is not prepared";
  auto [model, optimizer] = a.prepare(net, sgd);
  EXPECT_THROW(a.prepare(stranger), UsageError);
  EXPECT_THROW(a.prepare(step_lr), UsageError);
  EXPECT_THROW(a.prepare(accelerate::PrepareOptions{.device_placement = {true}}, net, sgd), UsageError);
  EXPECT_THROW(a.prepare(std::shared_ptr<torch::nn::LinearImpl>()), UsageError);
  EXPECT_THROW(a.prepare(std::shared_ptr<torch::optim::SGD>()), UsageError);
  EXPECT_THROW(a.backward(torch::Tensor()), UsageError);
}

TEST_F(TogetherTraining, AfterFreeMemoryNothingIsPrepared) {
  Accelerator a(patient());
  auto net = small_net(1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  a.prepare(net, sgd);
  const auto held = net.ptr().use_count();
  a.free_memory();
  EXPECT_LT(net.ptr().use_count(), held);
  EXPECT_THROW(a.prepare(sgd), UsageError);
}

TEST_F(TogetherTraining, AfterFreeMemoryAnAccumulationBeginsAnew) {
  Accelerator a(patient({.gradient_accumulation_steps = 2}));
  { auto scope = a.accumulate(); }
  a.free_memory();
  for (const bool complete : {false, true}) {
    auto scope = a.accumulate();
    EXPECT_EQ(a.sync_gradients(), complete);
  }
}

/// The mean loss of every step, all processes together taking 12 samples a step.
std::vector<double> losses_of_12_a_step(Accelerator& a) {
  torch::manual_seed(5);
  const auto x = torch::randn({60, 3}), y = x.sum(1, true).sin();
  auto net = small_net(7);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  accelerate::DataLoader data(accelerate::TensorDataset(x, y), {.batch_size = 12 / a.num_processes()});
  auto [model, optimizer, loader] = a.prepare(net, sgd, data);
  std::vector<double> losses;
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (auto& [inputs, targets] : loader) {
      const auto loss = torch::mse_loss(model(inputs), targets);
      a.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(a.reduce(loss.detach(), accelerate::Reduction::mean).item<double>());
    }
  }
  return losses;
}

TEST_F(TogetherTraining, TheSameGlobalBatchGivesTheSameLossOnAnyNumberOfProcesses) {
  Accelerator a(patient());
  const auto losses = losses_of_12_a_step(a);
  // The same by hand, on one process.
  torch::manual_seed(5);
  const auto x = torch::randn({60, 3}), y = x.sum(1, true).sin();
  auto net = small_net(7);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  ASSERT_EQ(losses.size(), 20u);
  for (size_t step = 0; step < losses.size(); ++step) {
    const auto start = static_cast<int64_t>(step % 5) * 12;
    const auto loss = torch::mse_loss(net->forward(x.narrow(0, start, 12)), y.narrow(0, start, 12));
    sgd.zero_grad();
    loss.backward();
    sgd.step();
    EXPECT_NEAR(losses[step], loss.item<double>(), 1e-5) << "step " << step;
  }
}

TEST_F(TogetherTraining, TwoModelsAndTwoOptimizersTrainAgainstEachOther) {
  Accelerator a(patient());
  torch::manual_seed(3);
  torch::nn::Linear generator(2, 3), critic(3, 1);
  torch::optim::AdamW for_generator(generator->parameters()), for_critic(critic->parameters());
  auto [g, g_optimizer, c, c_optimizer] = a.prepare(generator, for_generator, critic, for_critic);
  torch::manual_seed(10 + rank());
  for (int step = 0; step < 3; ++step) {
    const auto noise = torch::randn({4, 2});
    c_optimizer.zero_grad();
    a.backward(c(g(noise).detach()).mean() - c(torch::ones({4, 3})).mean());
    c_optimizer.step();
    g_optimizer.zero_grad();
    a.backward(-c(g(noise)).mean());
    g_optimizer.step();
  }
  for (const auto& parameters : {g.parameters(), c.parameters()}) {
    const auto sums = a.gather(torch::tensor({sum_of(parameters)}));
    EXPECT_EQ(sums.max().item<double>(), sums.min().item<double>()) << "the same weights on every process";
  }
}

TEST_F(TogetherTraining, GradientsInBucketsAreSetToNoneOrToZero) {
  Accelerator a(patient({.ddp = {.gradient_as_bucket_view = true}}));
  auto net = small_net(1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = a.prepare(net, sgd);
  const auto weight = net->parameters().front();
  for (bool to_none : {false, true, false}) {
    a.backward(model(torch::ones({2, 3})).sum());
    EXPECT_GT(weight.grad().abs().sum().item<double>(), 0);
    optimizer.step();
    optimizer.zero_grad(to_none);
    EXPECT_EQ(weight.grad().defined(), !to_none);
    if (!to_none) {
      EXPECT_EQ(weight.grad().abs().sum().item<double>(), 0);
    }
  }
  a.backward(model(torch::ones({2, 3})).sum());
  model.zero_grad();
  EXPECT_FALSE(weight.grad().defined());
}

struct PairOfTensors {
  torch::Tensor first, second;
};
struct NestingImpl : torch::nn::Module {
  NestingImpl() { linear = register_module("linear", torch::nn::Linear(2, 2)); }
  std::map<std::string, PairOfTensors> forward(const PairOfTensors& in) {
    return {{"out", {linear(in.first), linear(in.second).detach()}}};
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Nesting);

TEST_F(TogetherTraining, ForwardTakesAndReturnsNestedDataAndItsOutputsAreFloat32) {
  Accelerator a(patient({.mixed_precision = accelerate::Precision::bf16, .ddp = {.find_unused_parameters = true}}));
  Nesting net;
  auto model = a.prepare(net);
  auto out = model(PairOfTensors{torch::ones({3, 2}), torch::ones({3, 2})});
  EXPECT_EQ(out.at("out").first.scalar_type(), torch::kFloat);
  EXPECT_EQ(out.at("out").second.scalar_type(), torch::kFloat);
  a.backward(out.at("out").first.sum() * (rank() + 1));
  EXPECT_NEAR(net->linear->bias.grad()[0].item<double>(), 3 * (world() + 1) / 2.0, 1e-2) << "the mean over processes";
}

TEST_F(TogetherTraining, AccumulatingSeveralModelsEqualsOneLargeBatch) {
  Accelerator a(patient({.gradient_accumulation_steps = 3}));
  torch::nn::Linear first(2, 2), second(2, 1);
  auto [one, two] = a.prepare(first, second);
  torch::manual_seed(20 + rank());
  const auto x = torch::randn({6, 2});
  for (int64_t i = 0; i < 3; ++i) {
    auto scope = a.accumulate(one, two);
    EXPECT_EQ(a.sync_gradients(), i == 2);
    a.backward(two(one(x.narrow(0, 2 * i, 2))).mean());
  }
  const auto all = a.gather(x);
  const auto expected = torch::autograd::grad({second(first(all)).mean()}, {first->weight, second->weight});
  EXPECT_TRUE(torch::allclose(first->weight.grad(), expected[0], 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(second->weight.grad(), expected[1], 1e-5, 1e-6));
}

TEST_F(TogetherTraining, UnevenInputsAreJoinedAtTheEndOfTheLoader) {
  Accelerator a(patient());
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  // 2 batches for each process but the last, which has 1.
  const int64_t batches = 2 * world() - 1;
  accelerate::DataLoader data(accelerate::TensorDataset(torch::ones({2 * batches, 2}), torch::ones({2 * batches, 1})),
                              {.batch_size = 2});
  auto [model, optimizer, loader] = a.prepare(net, sgd, data);
  int64_t taken = 0;
  {
    auto scope = a.join_uneven_inputs({.even_batches = false}, model);
    for (auto& [x, y] : loader) {
      optimizer.zero_grad();
      a.backward(torch::mse_loss(model(x), y));
      optimizer.step();
      ++taken;
    }
  }
  EXPECT_EQ(taken, a.is_last_process() ? 1 : 2);
  const auto sums = a.gather(torch::tensor({sum_of(model.parameters())}));
  EXPECT_EQ(sums.max().item<double>(), sums.min().item<double>()) << "all have the weights of those who had most";
  taken = 0;
  for ([[maybe_unused]] auto& batch : loader) ++taken;
  EXPECT_EQ(taken, world() == 1 ? 1 : 2) << "even again after the scope";
}

TEST_F(TogetherTraining, OneScopeJoinsAllModelsOfALoop) {
  Accelerator a(patient());
  torch::nn::Linear first(2, 1), second(2, 1);
  auto [one, two] = a.prepare(first, second);
  {
    auto scope = a.join_uneven_inputs({}, one);
    EXPECT_THROW(a.join_uneven_inputs({}, two), UsageError);
    scope.finish();
  }
  auto scope = a.join_uneven_inputs({}, one, two);
  if (rank() == 0) a.backward((one(torch::ones({1, 2})) + two(torch::ones({1, 2}))).sum());
  scope.finish();
  EXPECT_EQ(first->bias.grad().defined(), rank() == 0) << "the others give zeros and keep nothing";
}

TEST_F(TogetherTraining, CallsThatTakeAnyNumberOfObjectsNameThePlaceOfTheCall) {
  const auto line_of = [](const accelerate::JoinUnevenInputsOptions& options) { return options.where.line(); };
  EXPECT_EQ(line_of({.even_batches = false}), uint_least32_t{__LINE__});
  const auto where = [](const accelerate::PrepareOptions& options) { return options.where; };
  EXPECT_EQ(where({}).line(), uint_least32_t{__LINE__});
  EXPECT_NE(std::string(where({.device_placement = {true}}).file_name()).find("training_test.cpp"), std::string::npos);
}

struct Verdict {
  torch::Tensor score;
  std::vector<std::string> names;
};

TEST_F(TogetherTraining, MetricsOfStructsCountTensorsAndObjectsOnce) {
  Accelerator a(patient());
  accelerate::DataLoader data(accelerate::TensorDataset(torch::arange(11), torch::arange(11)), {.batch_size = 2});
  auto loader = a.prepare(data);
  int64_t scores = 0;
  size_t names = 0;
  for (auto& [x, y] : loader) {
    Verdict mine{x.to(torch::kFloat), {}};
    for (int64_t i = 0; i < x.size(0); ++i) mine.names.push_back(std::to_string(x[i].item<int64_t>()));
    const auto all = a.gather_for_metrics(mine);
    scores += all.score.size(0);
    names += all.names.size();
    const auto [again, twice] = a.gather_for_metrics(x, std::vector<std::string>(static_cast<size_t>(x.size(0)), "x"));
    EXPECT_EQ(static_cast<size_t>(again.size(0)), twice.size());
  }
  EXPECT_EQ(scores, 11);
  EXPECT_EQ(names, 11u);
}

TEST(Training, ProgressOverALoaderShowsItsLengthWhereItIsKnown) {
  Accelerator a({.cpu = true});
  accelerate::DataLoader unsized(std::forward_list<int64_t>{1, 2, 3}, {.batch_size = 2});
  EXPECT_FALSE(unsized.known_size());
  EXPECT_THROW(unsized.size(), UsageError);
  auto loader = a.prepare(unsized);
  int64_t batches = 0;
  for ([[maybe_unused]] auto& batch : a.progress(loader, {.disable = true})) ++batches;
  EXPECT_EQ(batches, 2);
  accelerate::DataLoader sized(std::vector<int64_t>{1, 2, 3}, {.batch_size = 2});
  EXPECT_EQ(a.prepare(sized).known_size(), 2);
}

TEST(Training, Fp8IsRefusedAndFp16OnACpuCalculatesInFloat32) {
  EXPECT_THROW(Accelerator({.cpu = true, .mixed_precision = accelerate::Precision::fp8}), UsageError);
  Accelerator a({.cpu = true, .mixed_precision = accelerate::Precision::fp16});
  EXPECT_EQ(a.mixed_precision(), accelerate::Precision::fp16);
  EXPECT_EQ(a.grad_scaler(), nullptr);
  auto scope = a.autocast();
  EXPECT_EQ(torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(), torch::kFloat);
}

TEST(Training, TheAutocastScopeCastsAndCanBeSwitchedOffInside) {
  Accelerator a({.cpu = true, .mixed_precision = accelerate::Precision::bf16});
  const auto x = torch::ones({2, 2});
  {
    auto scope = a.autocast();
    EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kBFloat16);
    auto off = a.autocast({.enabled = false});
    EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kFloat);
  }
  EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kFloat);
}

}  // namespace
