// Programs that only look like training which goes wrong: no guard may take them for it. On 1 to 4 processes.
#include "accelerator/guards.h"
#include "support/error_text.h"

namespace {

using accelerate::Accelerator;
using accelerate::Precision;
using accelerate::UsageError;
using accelerate::testing::message_of;
using guards::GuardedNet;
using guards::TogetherGuards;

TEST_F(TogetherGuards, ProgramsThatAreRightHearNothing) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    Accelerator a(with(precision));
    GuardedNet net, judge;
    torch::optim::AdamW adamw(net->parameters()), other(judge->parameters());
    auto [model, optimizer, critic, critic_optimizer] = a.prepare(net, adamw, judge, other);
    const auto step = [&, &optimizer = optimizer] {
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_TRUE(same_everywhere(net->parameters()));
    };
    const auto run = [&, &model = model, &critic = critic, &critic_optimizer = critic_optimizer] {
      // Two forward passes before one backward pass.
      const auto early = loss_of(model(rows()));
      a.backward(early + loss_of(model(rows().cos())));
      step();
      // The forward pass under no_sync, its backward pass outside; then one that synchronises.
      torch::Tensor local;
      {
        auto scope = a.no_sync(model);
        local = loss_of(model(rows()));
      }
      a.backward(local);
      a.backward(loss_of(model(rows().cos())));
      step();
      // Evaluation around the prepared model, and a penalty of weights in the same loss.
      {
        torch::NoGradGuard no_grad;
        net->forward(rows());
        model->forward(rows());
      }
      a.backward(loss_of(model(rows())) + 1e-3 * net->first->weight.square().sum());
      step();
      // A penalty of gradients with respect to inputs, whose backward pass goes around the outputs.
      const auto inputs = rows().requires_grad_(true);
      const auto slopes = torch::autograd::grad({model(inputs).sum()}, {inputs}, {}, true, true)[0];
      a.backward(slopes.square().mean() + 0 * net->second->bias.sum());
      step();
      // One model through the other, each stepped in its turn.
      a.backward(loss_of(critic(torch::cat({model(rows()).detach(), rows().narrow(1, 0, 2)}, 1))));
      critic_optimizer.step();
      critic_optimizer.zero_grad();
      a.backward(loss_of(critic(torch::cat({model(rows()), rows().narrow(1, 0, 2)}, 1))));
      step();
      critic_optimizer.zero_grad();
      EXPECT_TRUE(same_everywhere(judge->parameters()));
      // A graph that is kept, gone through twice on one process.
      if (world() == 1) {
        const auto loss = loss_of(model(rows()));
        a.backward(loss, {.retain_graph = true});
        a.backward(loss);
        step();
      }
    };
    EXPECT_EQ(message_of<UsageError>(run), "no error");
  }
}

TEST_F(TogetherGuards, AModuleAndAPartOfItMayBothBePrepared) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    Accelerator a(with(precision));
    GuardedNet net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, part, optimizer] = a.prepare(net, net->first, sgd);
    EXPECT_EQ(message_of<UsageError>([&, &model = model, &part = part, &optimizer = optimizer] {
                for (int step = 0; step < 3; ++step) {
                  a.backward(loss_of(part(rows())));
                  a.backward(loss_of(model(rows())));
                  EXPECT_TRUE(same_everywhere(gradients(*net)));
                  optimizer.step();
                  optimizer.zero_grad();
                }
              }),
              "no error");
  }
}

TEST_F(TogetherGuards, ModelsMayTakeTurnsInAnAccumulation) {
  for (const int accumulation : {2, 3}) {
    Accelerator a(with(Precision::no, accumulation));
    GuardedNet net, other;
    torch::optim::SGD sgd(net->parameters(), 0.1), second(other->parameters(), 0.1);
    auto [model, optimizer, judge, judge_optimizer] = a.prepare(net, sgd, other, second);
    EXPECT_EQ(
        message_of<UsageError>([&, &model = model, &optimizer = optimizer, &judge = judge, &judge_optimizer = judge_optimizer] {
          for (int batch = 0; batch < 12; ++batch) {
            auto& now = batch % 2 == 0 ? model : judge;
            auto scope = a.accumulate(now);
            const auto loss = loss_of(model(rows())) + loss_of(judge(rows()));
            a.backward(loss);
            if (batch % 2 == 0) {
              optimizer.step();
              optimizer.zero_grad();
            } else {
              judge_optimizer.step();
              judge_optimizer.zero_grad();
            }
          }
        }),
        "no error");
  }
}

TEST_F(TogetherGuards, AStepMayComeBetweenTwoLossesOfOneForwardPass) {
  if (world() > 1) return;  // gradients are averaged once for each forward pass
  Accelerator a(with(Precision::bf16));
  GuardedNet net;
  torch::optim::SGD first(net->first->parameters(), 0.1), second(net->second->parameters(), 0.1);
  auto [model, of_first, of_second] = a.prepare(net, first, second);
  EXPECT_EQ(message_of<UsageError>([&, &model = model, &of_first = of_first, &of_second = of_second] {
              for (int i = 0; i < 3; ++i) {
                const auto output = model(rows());
                const auto loss = loss_of(output), penalty = net->second->weight.square().sum();
                a.backward(loss);
                of_first.step();
                a.backward(penalty);
                of_second.step();
                of_first.zero_grad();
                of_second.zero_grad();
              }
            }),
            "no error");
}

TEST_F(TogetherGuards, EmbeddingsThatAreRenormalisedByAForwardPassAreNoStep) {
  Accelerator a(with(Precision::no, 2));
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(8, 4).max_norm(0.1));
  torch::optim::SGD sgd(table->parameters(), 0.1);
  auto [model, optimizer] = a.prepare(table, sgd);
  EXPECT_EQ(message_of<UsageError>([&, &model = model, &optimizer = optimizer] {
              for (int batch = 0; batch < 4; ++batch) {
                auto scope = a.accumulate(model);
                a.backward(loss_of(model(torch::arange(4) + batch)));
                optimizer.step();
                optimizer.zero_grad();
              }
            }),
            "no error");
}

TEST_F(TogetherGuards, WeightsThatAreSwappedForAnEvaluationInAnAccumulationAreNoStep) {
  Accelerator a(with(Precision::no, 2));
  GuardedNet net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = a.prepare(net, sgd);
  EXPECT_EQ(message_of<UsageError>([&, &model = model, &optimizer = optimizer] {
              for (int batch = 0; batch < 4; ++batch) {
                auto scope = a.accumulate(model);
                a.backward(loss_of(model(rows())));
                optimizer.step();
                optimizer.zero_grad();
                torch::NoGradGuard no_grad;
                for (auto& parameter : net->parameters()) {
                  const auto kept = parameter.clone();
                  parameter.zero_();
                  parameter.copy_(kept);
                }
              }
            }),
            "no error");
}

TEST_F(TogetherGuards, HeadsWithOptimizersOfTheirOwnMayBeSteppedOneAfterTheOther) {
  if (world() > 1) return;  // gradients are averaged once for each forward pass
  Accelerator a(with(Precision::bf16));
  GuardedNet net;
  torch::optim::SGD first(net->first->parameters(), 0.1), second(net->second->parameters(), 0.1);
  auto [model, of_first, of_second] = a.prepare(net, first, second);
  EXPECT_EQ(message_of<UsageError>([&, &model = model, &of_first = of_first, &of_second = of_second] {
              for (int i = 0; i < 3; ++i) {
                model(rows());
                a.backward(net->first->weight.square().sum());
                of_first.step();
                of_first.zero_grad();
                a.backward(net->second->weight.square().sum());
                of_second.step();
                of_second.zero_grad();
              }
            }),
            "no error");
}

TEST_F(TogetherGuards, PartsOfAModelMayBeCalledInsideOfAutocast) {
  if (world() > 1) return;  // their gradients would not be averaged
  Accelerator a(with(Precision::bf16));
  GuardedNet net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = a.prepare(net, sgd);
  EXPECT_EQ(message_of<UsageError>([&, &model = model, &optimizer = optimizer] {
              for (int i = 0; i < 3; ++i) {
                torch::Tensor part;
                {
                  auto scope = a.autocast();
                  part = model->first(rows());
                }
                EXPECT_EQ(part.scalar_type(), torch::kBFloat16);
                a.backward(loss_of(part));
                optimizer.step();
                optimizer.zero_grad();
              }
            }),
            "no error");
}

TEST_F(TogetherGuards, AStepInsideOfNoSyncWithGradientsThatWereSynchronisedIsNotTold) {
  CommonFolder folder(accelerator());
  Accelerator a(with(Precision::no));
  GuardedNet net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = a.prepare(net, sgd);
  EXPECT_EQ(said_by([&, &model = model, &optimizer = optimizer] {
              auto outer = a.no_sync(model);
              const auto loss = loss_of(model(rows()));
              {
                auto sync = a.trigger_sync_in_backward(model);
                a.backward(loss);
              }
              optimizer.step();
              optimizer.zero_grad();
            }),
            "");
  EXPECT_TRUE(same_everywhere(net->parameters()));
  if (world() == 1) return;
  if (rank() == 1) net->second->bias.data().add_(1e-3);
  EXPECT_THROW(a.save_state((folder / "diverged").string()), accelerate::CheckpointError) << "replicas are still compared";
}

TEST_F(TogetherGuards, DebugModeTrainsOnAfterUnevenInputs) {
  ::setenv("ACCELERATE_DEBUG_MODE", "1", 1);
  Accelerator a(with(Precision::no));
  ::unsetenv("ACCELERATE_DEBUG_MODE");
  GuardedNet net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = a.prepare(net, sgd);
  const auto steps = [&, &model = model, &optimizer = optimizer](int count) {
    for (int i = 0; i < count; ++i) {
      a.backward(loss_of(model(rows())));
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  EXPECT_EQ(message_of<UsageError>([&, &model = model] {
              {
                auto scope = a.join_uneven_inputs({}, model);
                steps(7 + 3 * rank());
                scope.finish();
              }
              steps(25);
            }),
            "no error");
  EXPECT_TRUE(same_everywhere(net->parameters()));
}

TEST_F(TogetherGuards, BuffersMayDifferAndRanksThatSteppedAloneMaySave) {
  CommonFolder folder(accelerator());
  auto options = with(Precision::no);
  options.ddp.broadcast_buffers = false;
  Accelerator a(options);
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = a.prepare(net, sgd);
  const auto step = [&, &model = model, &optimizer = optimizer] {
    a.backward(loss_of(model(rows()) + rank()));
    optimizer.step();
    optimizer.zero_grad();
  };
  step();
  EXPECT_EQ(same_everywhere(net->buffers()), world() == 1);
  EXPECT_NO_THROW(a.save_state((folder / "buffers").string()));
  said_by([&, &model = model] {
    auto scope = a.no_sync(model);
    step();
  });
  EXPECT_EQ(same_everywhere(net->parameters()), world() == 1);
  EXPECT_NO_THROW(a.save_state((folder / "alone").string()));
}

TEST_F(TogetherGuards, RanksThatTrainApartOnPurposeMaySave) {
  CommonFolder folder(accelerator());
  Accelerator a(with(Precision::no));
  GuardedNet net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = a.prepare(net, sgd);
  const auto step = [&, &model = model, &optimizer = optimizer] {
    a.backward(loss_of(model(rows())));
    optimizer.step();
    optimizer.zero_grad();
  };
  accelerate::LocalSGD local(a, model, 4);
  EXPECT_EQ(said_by([&] {
              for (int i = 0; i < 3; ++i) {
                step();
                local.step();
              }
            }),
            "");
  EXPECT_EQ(same_everywhere(net->parameters()), world() == 1);
  EXPECT_NO_THROW(a.save_state((folder / "apart").string()));
  local.finish();
  step();
  EXPECT_TRUE(same_everywhere(net->parameters()));
  EXPECT_NO_THROW(a.save_state((folder / "together").string()));
}

}  // namespace
