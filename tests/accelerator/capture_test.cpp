// Steps that are handed to the device as a whole. A CPU has no graphs: operators that are recorded and called again take their
// place, so that everything around them is tested here; cuda_capture_test.cpp is about the real ones.
#include <torch/torch.h>

#include <thread>

#include "accelerator/captured_training.h"
#include "capture/operator_watch.h"
#include "capture/step_capture.h"
#include "support/host_graphs.h"
#include "support/together.h"

namespace capture {
namespace {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::Precision;

/// Steps are recorded although they run on a CPU.
constexpr accelerate::CaptureOptions kHostGraphs{.graph_device = make_host_graphs};

TEST(Capture, ACapturedRunEqualsAnEagerOneToTheBit) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    for (const bool zero_first : {false, true}) {
      for (const int accumulation : {1, 2, 3}) {
        const auto report = expect_same_run(
            {.accumulation = accumulation, .zero_first = zero_first, .precision = precision, .capture = kHostGraphs}, 30,
            to_string(precision) + std::to_string(accumulation) + (zero_first ? " zero first" : ""));
        EXPECT_GT(report.replayed, 180);
        EXPECT_TRUE(report.reasons.empty()) << report.reasons.front();
      }
    }
  }
}

TEST(Capture, TheLargestMomentsAreKept) {
  const auto report = expect_same_run({.amsgrad = true, .capture = kHostGraphs}, 12, "");
  EXPECT_GT(report.replayed, 80);
  EXPECT_TRUE(report.reasons.empty()) << report.reasons.front();
}

TEST(Capture, AShardedModelIsRecordedWhereItsShardsAreOnTheDevice) {
  for (const int accumulation : {1, 2}) {
    const auto report = expect_same_run({.accumulation = accumulation,
                                         .fsdp = accelerate::FsdpOptions{.min_num_params = 100, .cpu_offload = true},
                                         .capture = kHostGraphs},
                                        12, std::to_string(accumulation));
    EXPECT_GT(report.replayed, 60);
    EXPECT_TRUE(report.reasons.empty()) << report.reasons.front();
  }
}

TEST(Capture, StepsOfSeveralThreadsAreWatchedApart) {
  const auto run = [] {
    const auto x = torch::ones({4}, torch::requires_grad());
    const accelerate::detail::OperatorWatch outer;
    for (int i = 0; i < 200; ++i) {
      const accelerate::detail::OperatorWatch inner;
      (x * 2).sum().backward();
      EXPECT_NE(inner.fingerprint(), 0);
    }
    return outer.fingerprint();
  };
  const auto alone = run();
  std::array<uint64_t, 2> together = {};
  {
    const std::jthread other([&] { together[1] = run(); });
    together[0] = run();
  }
  EXPECT_EQ(together[0], alone);
  EXPECT_EQ(together[1], alone);
}

TEST(Capture, GradientsAreClippedInTheStep) {
  const auto report = expect_same_run({.accumulation = 2, .clips_in_step = true, .capture = kHostGraphs}, 20, "");
  EXPECT_GT(report.replayed, 120);
  EXPECT_TRUE(report.reasons.empty()) << report.reasons.front();
}

TEST(Capture, BatchesOfAnotherSizeAreRecordedApart) {
  for (const int accumulation : {1, 2}) {
    const auto report =
        expect_same_run({.accumulation = accumulation, .samples = 68, .capture = kHostGraphs}, 25, std::to_string(accumulation));
    EXPECT_GE(report.recorded, 2);
    ASSERT_EQ(report.reasons.size(), 1);
    EXPECT_NE(report.reasons.front().find("Float[4, 8], Float[4, 1] and were Float[8, 8], Float[8, 1]"), std::string::npos)
        << report.reasons.front();
  }
}

TEST(Capture, WhatIsChangedBetweenCallsCounts) {
  std::vector<std::vector<torch::Tensor>> values;
  std::vector<std::vector<double>> losses;
  std::vector<accelerate::CaptureReport> reports;
  for (const bool captured : {false, true}) {
    torch::manual_seed(3);
    Training run({.capture = kHostGraphs});
    run.wishes.before = [&](int count) {
      auto& options = static_cast<torch::optim::AdamWOptions&>(run.adamw.param_groups()[0].options());
      if (count == 10) run.net->eval();
      if (count == 20) run.net->train();
      if (count == 30) options.weight_decay(0.3);
      if (count == 40) run.net->ptr(4)->as<torch::nn::Linear>()->bias.set_requires_grad(false);
      if (count == 50) run.net->ptr(0)->as<torch::nn::Linear>()->weight.data().mul_(0.5);
      if (count == 60) run.net->ptr(0)->as<torch::nn::Linear>()->weight.set_data(torch::ones({16, 8}));
    };
    losses.push_back(run.train(10, captured));
    values.push_back(run.values());
    reports.push_back(run.report);
  }
  EXPECT_EQ(losses[1], losses[0]);
  expect_equal(values[1], values[0]);
  EXPECT_GE(reports[1].recorded, 5);
}

TEST(Capture, ACheckpointIsLoadedBetweenCalls) {
  std::vector<std::vector<torch::Tensor>> values;
  for (const bool captured : {false, true}) {
    const TemporaryFolder folder;
    torch::manual_seed(3);
    Training run({.accumulation = 2, .capture = kHostGraphs});
    run.wishes.before = [&](int count) {
      if (count == 33) run.accelerator.save_state(folder / "saved");
      if (count == 47) run.accelerator.load_state(folder / "saved");
    };
    run.train(12, captured);
    values.push_back(run.values());
  }
  expect_equal(values[1], values[0]);
}

/// A small run whose step a test writes.
template <class Optimizer = torch::optim::SGD>
struct Small {
  Accelerator accelerator{AcceleratorOptions{.cpu = true}};
  torch::nn::Linear net{4, 1};
  Optimizer raw{net->parameters(), 0.01};
  accelerate::Model<torch::nn::LinearImpl> model = accelerator.prepare(net);
  accelerate::AcceleratedOptimizer optimizer = accelerator.prepare(raw);

  torch::Tensor train(torch::Tensor& x) {
    optimizer.zero_grad();
    const auto loss = model(x).sum();
    accelerator.backward(loss);
    optimizer.step();
    return loss;
  }

  template <class Body>
  auto capture(const Body& body, accelerate::CaptureOptions options = {}) {
    options.graph_device = make_host_graphs;
    return accelerator.capture(body, options);
  }

  /// The one reason why such a step is never recorded.
  template <class Body, class... More>
  std::string reason(const Body& body, const More&... more) {
    auto step = capture(body);
    for (int i = 0; i < 20; ++i) step(torch::full({2, 4}, double(i)), more...);
    const auto report = step.report();
    EXPECT_EQ(report.eager, 20);
    EXPECT_EQ(report.reasons.size(), 1);
    return report.reasons.empty() ? "none" : report.reasons.front();
  }
};

TEST(Capture, SaysWhyAStepRunsEagerly) {
  using Tensor = torch::Tensor;
  Small small;
  EXPECT_EQ(small.reason([&](Tensor& x) { return small.train(x) * x.sum().item<double>(); }),
            "aten::item (aten::_local_scalar_dense) cannot be recorded: HOST error: not permitted while it is recorded");
  EXPECT_EQ(small.reason([&](Tensor& x) { return small.train(x).item<double>(); }),
            "it returns a double, in which no tensor can be found");
  EXPECT_EQ(small.reason([&](Tensor& x, int factor) { return small.train(x) * factor; }, 3),
            "it is given a value of type int, which would be the same at every replay");
  EXPECT_EQ(small.reason([&](Tensor& x) { return std::pair(small.train(x), 0.5); }),
            "it returns a value of type double, which would be the same at every replay");
  EXPECT_EQ(small.reason([&](Tensor& x) { return x.add_(small.train(x).detach()); }),
            "it writes to an input, which the caller would not see: write to another tensor");
  int calls = 0;
  EXPECT_EQ(small.reason([&](Tensor& x) {
    for (int i = ++calls % 3; i > 0; --i) x = x + 1;
    return small.train(x);
  }),
            "it does not call the same operators every time");
  EXPECT_EQ(small.reason([&](Tensor& x) {
    small.raw.param_groups()[0].options().set_lr(small.raw.param_groups()[0].options().get_lr() * 0.9);
    return small.train(x);
  }),
            "a learning rate is changed in it by something that was not prepared: use a prepared scheduler");
  EXPECT_EQ(small.reason([&](Tensor& x) {
    return small.optimizer.step([&] {
      const auto loss = small.model(x).sum();
      loss.backward();
      return loss;
    });
  }),
            "an optimizer steps with a closure");
  Small<torch::optim::AdamW> adamw;
  EXPECT_EQ(adamw.reason([&](Tensor& x) {
    adamw.optimizer.zero_grad();
    adamw.accelerator.backward(adamw.model(x).sum());
    adamw.raw.step();
  }),
            "parameters of a prepared optimizer are changed in it, and not by the prepared optimizer");
  Small<torch::optim::RMSprop> other;
  EXPECT_EQ(other.reason([&](Tensor& x) { return other.train(x); }),
            "of the optimizers of LibTorch only AdamW, Adam and SGD can be recorded");
}

TEST(Capture, AStepThatCannotBeRecordedLeavesEverythingAsItWas) {
  Small small;
  Small reference;
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 2; ++i) reference.net->parameters()[i].copy_(small.net->parameters()[i]);
  }
  auto step = small.capture([&](torch::Tensor& x) {
    const auto loss = small.train(x);
    static_cast<void>(loss.item<double>());
    return loss;
  });
  for (int i = 0; i < 8; ++i) {
    auto x = torch::full({2, 4}, double(i));
    EXPECT_TRUE(torch::equal(step(x), reference.train(x).detach())) << i;
    EXPECT_EQ(x.sum().item<double>(), 8.0 * i);
  }
  expect_equal({small.net->weight.detach(), small.net->weight.grad()},
               {reference.net->weight.detach(), reference.net->weight.grad()});
}

TEST(Capture, OptionsThatChangeFromCallToCallAreToldAsAReason) {
  Small small;
  auto step = small.capture([&](torch::Tensor& x) { return small.train(x); });
  auto& options = static_cast<torch::optim::SGDOptions&>(small.raw.param_groups()[0].options());
  for (int i = 0; i < 40; ++i) {
    options.momentum(0.9 + 0.001 * i);
    step(torch::ones({2, 4}));
  }
  EXPECT_EQ(step.report().recorded, 3);
  ASSERT_EQ(step.report().reasons.size(), 1);
  EXPECT_NE(step.report().reasons.front().find("change between calls"), std::string::npos);
}

/// Two runs with the same weights: `captured` through a step, and `eager`.
template <class Body>
void expect_same_values(
    const Body& body, const std::function<void(Small<>&)>& after = [](Small<>&) {}) {
  Small captured, eager;
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 2; ++i) eager.net->parameters()[i].copy_(captured.net->parameters()[i]);
  }
  auto step = captured.capture([&](torch::Tensor& x) { return body(captured, x); });
  for (int i = 0; i < 12; ++i) {
    auto x = torch::full({2, 4}, 0.1 * (i + 1));
    EXPECT_TRUE(torch::equal(step(x), body(eager, x).detach())) << i;
    for (auto* run : {&captured, &eager}) after(*run);
  }
  EXPECT_EQ(step.report().replayed, 7);  // the first call begins without gradients, and is of another kind
  expect_equal({captured.net->weight.detach()}, {eager.net->weight.detach()});
}

TEST(Capture, GradientsThatAStepLooksAtBeforeItDropsThemMatter) {
  expect_same_values([](Small<>& small, torch::Tensor& x) {
    const auto& gradient = small.net->weight.grad();
    const auto norm = gradient.defined() ? gradient.norm() : torch::zeros({});
    small.train(x);
    return norm;
  });
}

TEST(Capture, GradientsThatAStepDropsFirstAreNotWrittenTo) {
  Small small;
  auto step = small.capture([&](torch::Tensor& x) { return small.train(x); });
  std::vector<torch::Tensor> kept, copies;
  for (int i = 0; i < 8; ++i) {
    step(torch::full({2, 4}, double(i)));
    if (i >= 4) continue;  // of the steps that run as they are
    kept.push_back(small.net->weight.grad());
    copies.push_back(kept.back().clone());
  }
  EXPECT_EQ(step.report().replayed, 3);
  expect_equal(kept, copies);
}

TEST(Capture, WhatIsClippedInAStepIsSteppedInIt) {
  Small small;
  const auto clip = [&] { small.accelerator.clip_grad_norm_(small.model.parameters(), 0.5, {.in_step = true}); };
  const auto reason = [&](const auto& body, const auto& after) {
    auto step = small.capture(body);
    for (int i = 0; i < 8; ++i) {
      after(torch::full({2, 4}, double(i + 1)), step);
      EXPECT_LT(small.net->weight.abs().max().item<double>(), 10) << "steps are clipped, or weights go far";
    }
    const auto reasons = step.report().reasons;
    return reasons.size() == 1 ? reasons.front() : std::to_string(reasons.size()) + " reasons";
  };
  EXPECT_EQ(reason(
                [&](torch::Tensor& x) {
                  small.optimizer.zero_grad();
                  small.accelerator.backward(1e4 * small.model(x).sum());
                  clip();
                },
                [&](const torch::Tensor& x, auto& step) {
                  step(x);
                  small.optimizer.step();
                }),
            "gradients are clipped in it (in_step), and their optimizer does not step in it");
  EXPECT_EQ(reason([&](torch::Tensor&) { small.optimizer.step(); },
                   [&](const torch::Tensor& x, auto& step) {
                     small.optimizer.zero_grad();
                     small.accelerator.backward(1e4 * small.model(x).sum());
                     clip();
                     step(x);
                   }),
            "gradients were clipped (in_step) before it");
}

TEST(Capture, AStepInsideAStepIsAPartOfIt) {
  expect_same_values([](Small<>& small, torch::Tensor& x) {
    const auto inner = small.capture([&](torch::Tensor& y) { return small.train(y); });
    return inner(x);
  });
}

TEST(Capture, WhatAutocastHasCastIsNotKeptBeyondItsScope) {
  Small captured, eager;
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 2; ++i) eager.net->parameters()[i].copy_(captured.net->parameters()[i]);
  }
  auto step = captured.capture([&](torch::Tensor& x) { return captured.model(x); });
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 6; ++i) {
      const accelerate::AutocastScope casting(Precision::bf16, torch::kCPU, {});
      auto x = torch::full({2, 4}, 0.1 * (i + 1));
      EXPECT_TRUE(torch::equal(step(x), eager.model(x).detach())) << round << ' ' << i;
    }
    auto x = torch::ones({2, 4});
    for (auto* run : {&captured, &eager}) run->train(x);
  }
}

TEST(Capture, ExceptionsOfTheStepComeOut) {
  Small small;
  bool fails = false;
  auto step = small.capture([&](torch::Tensor& x) {
    if (fails) throw std::runtime_error("of the step");
    return small.train(x);
  });
  for (int i = 0; i < 2; ++i) step(torch::ones({2, 4}));
  fails = true;
  for (int i = 0; i < 3; ++i) EXPECT_THROW(step(torch::ones({2, 4})), std::runtime_error);
  EXPECT_THROW(small.capture([] {}, {.warmup_steps = 0}), accelerate::UsageError);
}

TEST(Capture, TooManyKindsRunEagerly) {
  Small small;
  auto step = small.capture([&](torch::Tensor& x) { return small.train(x); }, {.warmup_steps = 1, .max_graphs = 2});
  for (int round = 0; round < 4; ++round) {
    for (const int rows : {1, 2, 3}) step(torch::ones({rows, 4}));
  }
  const auto report = step.report();
  EXPECT_EQ(report.recorded, 2);
  EXPECT_EQ(report.reasons.back(), "there are more than 2 kinds of steps (max_graphs)");
}

/// A run whose factor grows until gradients overflow, again and again. An Accelerator has a scaler on a GPU alone.
struct Scaled {
  // All begin with the same weights.
  struct Seed {
    Seed() { torch::manual_seed(5); }
  } seed;
  torch::nn::Linear net{4, 1};
  torch::optim::AdamW adamw{net->parameters(), torch::optim::AdamWOptions(0.01)};
  std::shared_ptr<accelerate::GradientState> gradients = std::make_shared<accelerate::GradientState>();
  std::shared_ptr<accelerate::GradScaler> scaler = std::make_shared<accelerate::GradScaler>(accelerate::GradScalerOptions{
      .init_scale = 0x1p100, .growth_factor = 256, .backoff_factor = 1.0 / 256, .growth_interval = 3});
  accelerate::AcceleratedOptimizer optimizer{adamw, gradients, scaler};
  accelerate::CosineWithWarmup cosine{adamw, {.warmup_steps = 5, .total_steps = 100}};
  accelerate::AcceleratedScheduler scheduler{
      cosine, {.gradients = gradients, .optimizers = {{&adamw, [this] { return optimizer.step_was_skipped(); }}}}};

  torch::Tensor train(torch::Tensor& x) {
    const auto loss = net(x).square().mean();
    scaler->scale(loss).backward();
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    return loss;
  }
};

std::shared_ptr<accelerate::detail::StepCapture> capture_of(const Accelerator& accelerator, const Scaled& run) {
  const auto parts = [&] {
    return accelerate::detail::RunParts{accelerator.state(), {}, {run.optimizer}, {run.scheduler}, {}, run.scaler,
                                        run.gradients,       {}};
  };
  return std::make_shared<accelerate::detail::StepCapture>(parts, torch::Device(torch::kCPU), kHostGraphs,
                                                           accelerator.get_logger("test"), std::source_location::current());
}

TEST(Capture, TheDeviceDecidesWhichStepsAreSkipped) {
  Accelerator accelerator({.cpu = true});
  Scaled eager, captured;
  const accelerate::CapturedStep step([&](torch::Tensor& x) { return captured.train(x); }, capture_of(accelerator, captured));
  int skipped = 0;
  for (int i = 0; i < 60; ++i) {
    auto x = torch::full({2, 4}, 100.0 * (1 + i % 7));
    EXPECT_TRUE(torch::equal(step(x), eager.train(x).detach())) << i;
    EXPECT_EQ(captured.optimizer.step_was_skipped(), eager.optimizer.step_was_skipped()) << i;
    EXPECT_EQ(captured.scaler->get_scale(), eager.scaler->get_scale()) << i;
    EXPECT_EQ(captured.scheduler.get_last_lr(), eager.scheduler.get_last_lr()) << i;
    skipped += eager.optimizer.step_was_skipped();
  }
  EXPECT_EQ(captured.optimizer.state_dict(), eager.optimizer.state_dict());
  EXPECT_GT(skipped, 5);
  EXPECT_LT(skipped, 30);
  EXPECT_EQ(step.report().replayed, 56);
}

TEST(Capture, GradientsAreUnscaledOutsideOfTheStep) {
  Accelerator accelerator({.cpu = true});
  Scaled eager, captured;
  const auto backward = [](Scaled& run, torch::Tensor& x) {
    const auto loss = run.net(x).square().mean();
    run.scaler->scale(loss).backward();
    return loss;
  };
  const accelerate::CapturedStep step([&](torch::Tensor& x) { return backward(captured, x); }, capture_of(accelerator, captured));
  for (int i = 0; i < 40; ++i) {
    auto x = torch::full({i % 5 == 4 ? 1 : 2, 4}, 100.0 * (1 + i % 7));
    EXPECT_TRUE(torch::equal(step(x), backward(eager, x).detach())) << i;
    for (auto* run : {&captured, &eager}) {
      run->optimizer.step();
      run->optimizer.zero_grad();
    }
  }
  EXPECT_EQ(captured.optimizer.state_dict(), eager.optimizer.state_dict());
  EXPECT_GT(step.report().replayed, 25);
}

class TogetherCapture : public Together {};

/// Why a step that trains is not recorded, when its model is prepared with these options.
std::vector<std::string> reasons_with(const accelerate::DdpOptions& ddp, bool joins = false) {
  Accelerator accelerator({.cpu = true, .ddp = ddp});
  torch::nn::Linear net(8, 8);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto step = accelerator.capture(
      [&, &model = model, &optimizer = optimizer](torch::Tensor& x) {
        accelerator.backward(model(x).mean());
        optimizer.step();
        optimizer.zero_grad();
      },
      kHostGraphs);
  const auto train = [&] {
    for (int i = 0; i < 8; ++i) step(torch::ones({2, 8}, accelerator.device()));
  };
  if (joins) {
    const auto scope = accelerator.join_uneven_inputs({}, model);
    train();
  } else {
    train();
  }
  // As if nothing had been recorded: all processes have the same weights.
  const auto all = accelerate::gather(accelerator.state(), net->weight.detach().reshape({1, -1}));
  EXPECT_TRUE(torch::equal(all, all.narrow(0, 0, 1).expand_as(all)));
  return step.report().reasons;
}

TEST_F(TogetherCapture, CollectivesOnTheHostAreNotRecorded) {
  const auto expect = [](const std::vector<std::string>& reasons, const std::string& words) {
    if (world() == 1) {
      EXPECT_TRUE(reasons.empty()) << words;
    } else {
      EXPECT_EQ(reasons.size(), 1) << words;
      for (const auto& reason : reasons) EXPECT_NE(reason.find(words), std::string::npos) << reason;
    }
  };
  expect(reasons_with({.find_unused_parameters = true}), "find_unused_parameters searches the autograd graph");
  expect(reasons_with({.comm_hook = accelerate::CommHook::power_sgd}), "PowerSGD counts steps on the host");
  expect(reasons_with({}, /*joins=*/true), "join_uneven_inputs announces every collective");
  Accelerator accelerator({.cpu = true});
  auto step = accelerator.capture(
      [&](torch::Tensor& x) {
        accelerator.wait_for_everyone();
        return x + 1;
      },
      kHostGraphs);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(step(torch::ones({1}, accelerator.device())).item<double>(), 2);
  expect(step.report().reasons, "it gathers objects or waits for other processes");
}

TEST(Capture, AReplayAfterItsOptimizerWasDestroyedIsAnError) {
  Accelerator accelerator({.cpu = true});
  torch::nn::Linear net(8, 8);
  auto sgd = std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, *sgd);
  auto step = accelerator.capture(
      [&, &model = model, &optimizer = optimizer](torch::Tensor& x) {
        accelerator.backward(model(x).mean());
        optimizer.step();
        optimizer.zero_grad();
      },
      kHostGraphs);
  for (int i = 0; i < 8; ++i) step(torch::ones({2, 8}));
  EXPECT_GT(step.report().replayed, 0);
  sgd.reset();
  EXPECT_THROW(step(torch::ones({2, 8})), accelerate::UsageError);
}

TEST(Capture, EachStepIsRecordedByItsOwnDevice) {
  Accelerator first({.cpu = true}), second({.cpu = true});
  const auto twice = [](torch::Tensor& x) { return x * 2; };
  auto recorded = first.capture(twice, kHostGraphs), plain = second.capture(twice), neighbour = first.capture(twice);
  for (int i = 0; i < 6; ++i) {
    for (auto* step : {&recorded, &plain, &neighbour})
      EXPECT_TRUE(torch::equal((*step)(torch::full({2}, i)), torch::full({2}, 2 * i)));
  }
  EXPECT_EQ(recorded.report().replayed, 2);
  EXPECT_EQ(plain.report().eager, 6);
  EXPECT_EQ(neighbour.report().eager, 6);
}

TEST(Capture, OnACpuStepsRunAsTheyAre) {
  Accelerator accelerator({.cpu = true});
  auto step = accelerator.capture([](torch::Tensor& x) { return x * 2; });
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(torch::equal(step(torch::full({2}, i)), torch::full({2}, 2 * i)));
  EXPECT_EQ(step.report().eager, 5);
  ASSERT_EQ(step.report().reasons.size(), 1);
  EXPECT_NE(step.report().reasons.front().find("only steps on a GPU can be recorded"), std::string::npos);
}

}  // namespace
}  // namespace capture
