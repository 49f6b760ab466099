// Training that would go wrong without a word. On 1 to 4 processes.
#include "accelerator/guards.h"
#include "support/error_text.h"

namespace {

using accelerate::Accelerator;
using accelerate::Precision;
using accelerate::UsageError;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;
using guards::GuardedNet;
using guards::TogetherGuards;

TEST_F(TogetherGuards, AForwardPassAroundThePreparedModelIsAnErrorAtItsBackwardPass) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    for (const bool by_arrow : {true, false}) {
      Accelerator a(with(precision));
      GuardedNet net;
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = a.prepare(net, sgd);
      for (int step = 0; step < 2; ++step) {  // after a step as before it
        const auto loss = loss_of(by_arrow ? model->forward(rows()) : net(rows()));
        const std::string message = message_of<UsageError>([&] { a.backward(loss); });
        if (!expects_bypass(precision)) {
          EXPECT_EQ(message, "no error");
        } else {
          expect_parts(message, {"GuardedNetImpl", "guards_test.cpp:", "model(inputs)", "model->forward(inputs)"});
        }
        optimizer.zero_grad();
        a.backward(loss_of(model(rows())));
        EXPECT_TRUE(same_everywhere(gradients(*net))) << "the prepared model can still be used";
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_TRUE(same_everywhere(net->parameters()));
    }
  }
}

TEST_F(TogetherGuards, ABackwardPassWithoutTheAcceleratorIsFoundByTheNextStep) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    Accelerator a(with(precision));
    GuardedNet net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = a.prepare(net, sgd);
    loss_of(net(rows())).backward();
    const auto message = message_of<UsageError>([&, &optimizer = optimizer] { optimizer.step(); });
    if (world() > 1) expect_parts(message, {"GuardedNetImpl", "model(inputs)"});
    optimizer.zero_grad();
    // Gradients that are dropped do no harm, and those that stay are averaged with those of a prepared pass.
    loss_of(net(rows())).backward();
    optimizer.zero_grad();
    a.backward(loss_of(model(rows())));
    const auto once = net->first->weight.grad().clone();
    optimizer.zero_grad();
    loss_of(net(rows())).backward();
    a.backward(loss_of(model(rows())));
    const double tolerance = precision == Precision::no ? 1e-5 : 3e-2;
    EXPECT_TRUE(torch::allclose(net->first->weight.grad(), 2 * once, tolerance, tolerance / 100));
    EXPECT_TRUE(same_everywhere(gradients(*net)));
    EXPECT_EQ(message_of<UsageError>([&, &optimizer = optimizer] { optimizer.step(); }), "no error");
  }
}

TEST_F(TogetherGuards, ASecondBackwardPassOfPassesMadeBeforeTheFirstIsAnErrorOnSeveralProcesses) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    Accelerator a(with(precision));
    GuardedNet net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = a.prepare(net, sgd);
    const auto one = loss_of(model(rows())), two = loss_of(model(rows().cos()));
    a.backward(one);
    const auto message = message_of<UsageError>([&] { a.backward(two); });
    if (world() == 1) {
      EXPECT_EQ(message, "no error");
    } else {
      expect_parts(message, {"Several forward passes", "need one backward pass", "no_sync(model)"});
    }
  }
}

TEST_F(TogetherGuards, StepsNeedGradientsThatWereSynchronised) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    Accelerator a(with(precision));
    GuardedNet net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = a.prepare(net, sgd);
    const auto local_pass = [&, &model = model] {
      auto scope = a.no_sync(model);
      a.backward(loss_of(model(rows())));
    };
    local_pass();
    const auto message = message_of<UsageError>([&, &optimizer = optimizer] { optimizer.step(); });
    if (world() == 1) {
      EXPECT_EQ(message, "no error");
    } else {
      expect_parts(message, {"not averaged over the ranks", "no_sync"});
    }
    optimizer.zero_grad();
    local_pass();
    a.backward(loss_of(model(rows())));
    EXPECT_EQ(message_of<UsageError>([&, &optimizer = optimizer] { optimizer.step(); }), "no error");
    optimizer.zero_grad();
    EXPECT_TRUE(same_everywhere(net->parameters()));
    // A pass that reached a part of the parameters was not synchronised either.
    const auto output = model(rows());
    a.backward(loss_of(net->second->weight * output.detach().sum()));
    const auto partly = message_of<UsageError>([&, &optimizer = optimizer] { optimizer.step(); });
    if (world() > 1) expect_parts(partly, {"first.weight", "find_unused_parameters"});
    // In the scope each rank may step for itself: that is what it says.
    optimizer.zero_grad();
    GuardedNet alone;
    torch::optim::SGD own(alone->parameters(), 0.1);
    auto [local_model, local_optimizer] = a.prepare(alone, own);
    auto scope = a.no_sync(local_model);
    a.backward(loss_of(local_model(rows())));
    EXPECT_EQ(message_of<UsageError>([&, &local_optimizer = local_optimizer] { local_optimizer.step(); }), "no error");
  }
}

TEST_F(TogetherGuards, AnOptimizerThatWasNotPreparedIsFoundInTheMiddleOfAnAccumulation) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    for (const bool by_sgd : {true, false}) {
      for (const bool guarded : {true, false}) {
        Accelerator a(with(precision, 4));
        GuardedNet net;
        std::unique_ptr<torch::optim::Optimizer> raw;
        if (by_sgd) {
          raw = std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
        } else {
          raw = std::make_unique<torch::optim::AdamW>(net->parameters());
        }
        auto model = a.prepare(net);
        int batches = 0;
        const auto message = message_of<UsageError>([&] {
          for (; batches < 8; ++batches) {
            auto scope = a.accumulate(model);
            a.backward(loss_of(model(rows())));
            if (guarded && !a.sync_gradients()) continue;
            raw->step();
            raw->zero_grad();
          }
        });
        if (guarded) {
          EXPECT_EQ(message, "no error");
          EXPECT_TRUE(same_everywhere(net->parameters()));
        } else {
          expect_parts(message, {"GuardedNetImpl", "during gradient accumulation", "guards_test.cpp:", "sync_gradients()"});
          EXPECT_EQ(batches, 1) << "before a second batch is added up";
        }
      }
    }
  }
}

TEST_F(TogetherGuards, ALoaderThatWasNotPreparedIsToldOnce) {
  Accelerator a(with(Precision::no));
  GuardedNet net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  accelerate::DataLoader data(accelerate::TensorDataset(torch::ones({8, 3}), torch::ones({8, 1})), {.batch_size = 2});
  auto [model, optimizer, loader] = a.prepare(net, sgd, data);
  const auto said = [&](const std::function<void()>& loop) {
    testing::internal::CaptureStderr();
    loop();
    return testing::internal::GetCapturedStderr();
  };
  const auto train = [&, &model = model](auto& batches) {
    for (auto& [x, y] : batches) a.backward(torch::mse_loss(model(x), y));
  };
  EXPECT_EQ(said([&, &loader = loader] { train(loader); }), "");
  EXPECT_EQ(said([&, &model = model] {
              torch::NoGradGuard no_grad;
              for (auto& [x, y] : data) model(x);
            }),
            "")
      << "evaluation";
  EXPECT_EQ(said([&, &loader = loader] {
              for (auto& outer : data) {
                (void)outer;
                train(loader);
                break;
              }
            }),
            "")
      << "the inner loop is over a prepared one";
  const auto text = said([&] { train(data); });
  if (world() > 1 && rank() == 0) {
    expect_parts(text, {"guards_test.cpp:", "was not prepared", "each rank sees every sample"});
    EXPECT_EQ(text.find("was not prepared"), text.rfind("was not prepared"));
  } else {
    EXPECT_EQ(text, "");
  }
  EXPECT_EQ(said([&] { train(data); }), "") << "once";
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(6, 4));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 6).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& ids) { return head(embedding(ids)); }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Tied);

TEST_F(TogetherGuards, WeightsTiedByMemoryAreRefusedAndTiedByNameTrainAsOne) {
  Accelerator a(with(Precision::no));
  Tied wrong;
  wrong->head->weight.set_data(wrong->embedding->weight);
  expect_parts(message_of<UsageError>([&] { a.prepare(wrong); }), {"embedding.weight", "head.weight", "tie_weights(*head"});
  EXPECT_EQ(message_of<UsageError>([&] { a.prepare_model(wrong, {.evaluation_mode = true}); }), "no error")
      << "it is not trained";

  Tied right;
  accelerate::tie_weights(*right->head, right->head->weight, right->embedding->weight);
  EXPECT_TRUE(right->head->weight.is_same(right->embedding->weight));
  EXPECT_EQ(accelerate::find_tied_parameters(*right),
            (std::vector<std::vector<std::string>>{{"embedding.weight", "head.weight"}}));
  auto once = right->embedding->weight.detach().clone().requires_grad_(true);  // used twice by a plain function
  torch::optim::AdamW adamw(right->parameters(), torch::optim::AdamWOptions(0.1)),
      reference({once}, torch::optim::AdamWOptions(0.1));
  auto [model, optimizer] = a.prepare(right, adamw);
  const auto ids = torch::tensor({0, 1, 2, 5});
  for (int step = 0; step < 5; ++step) {
    a.backward(model(ids).square().mean());
    const auto norm = a.clip_grad_norm_(model.parameters(), 0.5);
    optimizer.step();
    optimizer.zero_grad();
    torch::matmul(torch::embedding(once, ids), once.t()).square().mean().backward();
    EXPECT_NEAR(norm.item<double>(), torch::nn::utils::clip_grad_norm_({once}, 0.5), 1e-5);
    reference.step();
    reference.zero_grad();
  }
  EXPECT_TRUE(torch::allclose(right->embedding->weight, once, 1e-5, 1e-6));
  expect_parts(message_of<UsageError>([&] { accelerate::tie_weights(*right, right->head->weight, once); }),
               {"TiedImpl", "registered"});
}

TEST_F(TogetherGuards, ParametersThatAreUnfrozenOrConvertedAfterPrepareAreSynchronised) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    for (const bool all_frozen : {true, false}) {
      Accelerator a(with(precision));
      torch::manual_seed(rank());
      GuardedNet net;
      for (auto& parameter : (all_frozen ? net->parameters() : net->first->parameters())) parameter.requires_grad_(false);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = a.prepare(net, sgd);
      const auto step = [&, &model = model, &optimizer = optimizer](torch::Dtype dtype) {
        a.backward(loss_of(model(rows().to(dtype))));
        EXPECT_TRUE(same_everywhere(gradients(*net)));
        optimizer.step();
        optimizer.zero_grad();
      };
      const auto before = net->first->weight.clone();
      if (!all_frozen) {
        step(torch::kFloat);
        step(torch::kFloat);
      }
      for (auto& parameter : net->parameters()) parameter.requires_grad_(true);
      step(torch::kFloat);
      step(torch::kFloat);
      EXPECT_FALSE(torch::equal(net->first->weight, before));
      net->to(torch::kDouble);
      for (int i = 0; i < 3; ++i) step(torch::kDouble);
      EXPECT_TRUE(same_everywhere(net->parameters()));
    }
  }
}

TEST_F(TogetherGuards, ParametersThatAreFrozenAfterPrepareAreNotWaitedFor) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    for (const bool finds_unused : {true, false}) {
      auto options = with(precision);
      options.ddp.find_unused_parameters = finds_unused;
      Accelerator a(options);
      GuardedNet net;
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = a.prepare(net, sgd);
      const auto step = [&, &model = model, &optimizer = optimizer] {
        a.backward(loss_of(model(rows())));
        EXPECT_TRUE(same_everywhere(gradients(*net)));
        optimizer.step();
        optimizer.zero_grad();
      };
      EXPECT_EQ(message_of<UsageError>([&] {
                  for (const bool trained : {true, false, true}) {
                    for (auto& parameter : net->first->parameters()) parameter.requires_grad_(trained);
                    for (int i = 0; i < 3; ++i) step();
                  }
                }),
                "no error");
      EXPECT_TRUE(same_everywhere(net->parameters()));
    }
  }
}

TEST_F(TogetherGuards, ParametersThatNobodySynchronisesAreTold) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    Accelerator a(with(precision));
    GuardedNet net;
    const auto temperature = torch::ones({}, torch::requires_grad());
    torch::optim::SGD sgd(net->parameters(), 0.1);
    sgd.param_groups()[0].params().push_back(temperature);
    auto [model, optimizer] = a.prepare(net, sgd);
    const auto step = [&, &model = model, &optimizer = optimizer] {
      a.backward(loss_of(model(rows()) * temperature));
      optimizer.step();
      optimizer.zero_grad();
    };
    const auto said = said_by([&] {
      step();
      step();
    });
    if (world() > 1 && rank() == 0) {
      expect_parts(said, {"1 of 5 parameters", "no prepared model"});
      EXPECT_EQ(said.find("1 of 5"), said.rfind("1 of 5")) << "once";
    } else {
      EXPECT_EQ(said, "");
    }
    // A new head, after the old one was prepared.
    net->second = net->replace_module("second", torch::nn::Linear(8, 1));
    sgd.add_param_group(torch::optim::OptimizerParamGroup(net->second->parameters()));
    std::string message;
    said_by([&] { message = message_of<UsageError>(step); });
    if (world() > 1) {
      expect_parts(message, {"got parameters after it was prepared", "second.weight, second.bias"});
    } else {
      EXPECT_EQ(message, "no error");
    }
  }
}

TEST_F(TogetherGuards, AStepInsideOfNoSyncIsToldOnce) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    Accelerator a(with(precision));
    GuardedNet net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = a.prepare(net, sgd);
    const auto said = said_by([&, &model = model, &optimizer = optimizer] {
      for (int i = 0; i < 3; ++i) {
        auto scope = a.no_sync(model);
        a.backward(loss_of(model(rows())));
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    if (world() > 1 && rank() == 0) {
      expect_parts(said, {"GuardedNetImpl", "guards_test.cpp:", "inside no_sync", "LocalSGD"});
      EXPECT_EQ(said.find("no_sync"), said.rfind("no_sync")) << "once";
    } else {
      EXPECT_EQ(said, "");
    }
  }
}

TEST_F(TogetherGuards, AnOptimizerThatIsGoneIsToldWhenItIsNeeded) {
  Accelerator a(with(Precision::no));
  GuardedNet net;
  auto model = a.prepare(net);
  const auto prepared_from_a_local = [&]<class Raw>(std::type_identity<Raw>) {
    Raw raw(net->parameters());
    return a.prepare(raw);
  };
  for (const auto& optimizer : {prepared_from_a_local(std::type_identity<torch::optim::AdamW>()),
                                prepared_from_a_local(std::type_identity<torch::optim::Adagrad>()),
                                prepared_from_a_local(std::type_identity<torch::optim::LBFGS>())}) {
    auto gone = optimizer;
    for (const auto& use : std::initializer_list<std::function<void()>>{[&] { gone.step(); }, [&] { gone.zero_grad(); },
                                                                        [&] { gone.state_dict(); }, [&] { gone.parameters(); }})
      expect_parts(message_of<UsageError>(use), {"destroyed", "std::shared_ptr", "free_memory()"});
  }
  // Whoever does not need it hears nothing: a second phase has an optimizer and a scheduler of its own.
  torch::optim::SGD second_phase(net->parameters(), 0.1);
  torch::optim::StepLR decay(second_phase, 1);
  EXPECT_EQ(message_of<UsageError>([&] {
              auto [next, scheduler] = a.prepare(second_phase, decay);
              a.backward(loss_of(model(rows())));
              a.clip_grad_norm_(net->parameters(), 1.0);
              next.step();
              a.optimizer_step_was_skipped();
            }),
            "no error");
  expect_parts(message_of<accelerate::CheckpointError>([&] { a.save_state("nowhere"); }), {"destroyed"});
  a.free_memory();
  torch::optim::SGD left(net->parameters(), 0.1);
  auto model_again = a.prepare(net);
  auto of_left = a.prepare(left);
  torch::optim::SGD taken(std::move(left));
  expect_parts(message_of<UsageError>([&] { of_left.step(); }), {"moved", "std::shared_ptr"});
  a.free_memory();
  auto shared = a.prepare(net);
  auto kept = [&] {
    auto raw = std::make_shared<torch::optim::AdamW>(net->parameters());
    return a.prepare(raw);
  }();
  a.backward(loss_of(shared(rows())));
  EXPECT_EQ(message_of<UsageError>([&] { kept.step(); }), "no error");
  // Groups that are added later get plain options, and an optimizer may be prepared again.
  torch::optim::AdamW raw(net->first->parameters());
  auto first = a.prepare(raw), again = a.prepare(raw);
  raw.add_param_group(torch::optim::OptimizerParamGroup(net->second->parameters()));
  EXPECT_EQ(typeid(raw.param_groups()[1].options()), typeid(torch::optim::AdamWOptions));
  EXPECT_EQ(again.parameters().size(), 4U);
}

TEST_F(TogetherGuards, InAnAccumulationABypassIsFoundAtTheBatchThatSynchronises) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    Accelerator a(with(precision, 2));
    GuardedNet net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = a.prepare(net, sgd);
    int batches = 0;
    const auto message = message_of<UsageError>([&, &model = model, &optimizer = optimizer] {
      for (; batches < 4; ++batches) {
        auto scope = a.accumulate(model);
        a.backward(loss_of(model->forward(rows())));
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    if (!expects_bypass(precision)) {
      EXPECT_EQ(message, "no error");
    } else {
      expect_parts(message, {"GuardedNetImpl", "guards_test.cpp:", "model(inputs)"});
      EXPECT_EQ(batches, world() > 1 ? 1 : 0);
    }
  }
}

TEST_F(TogetherGuards, UnderNoSyncTheModelMayBeBypassed) {
  if (world() == 1) return;  // there no_sync says nothing about precision
  for (const auto precision : {Precision::no, Precision::bf16}) {
    for (const bool by_arrow : {true, false}) {
      Accelerator a(with(precision));
      GuardedNet net;
      auto model = a.prepare(net);
      EXPECT_EQ(message_of<UsageError>([&] {
                  auto scope = a.no_sync(model);
                  a.backward(loss_of(by_arrow ? model->forward(rows()) : net(rows())));
                }),
                "no error");
    }
  }
}

TEST_F(TogetherGuards, MistakesInCapturedStepsAreFound) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    for (const bool bypasses : {true, false}) {
      Accelerator a(with(precision));
      GuardedNet net;
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = a.prepare(net, sgd);
      auto step = a.capture([&, &model = model, &optimizer = optimizer](torch::Tensor& x) {
        std::optional<accelerate::NoSyncScope> local;
        if (!bypasses) local.emplace(a.no_sync(model));
        a.backward(loss_of(bypasses ? model->forward(x) : model(x)));
        local.reset();
        optimizer.step();
        optimizer.zero_grad();
      });
      const auto message = message_of<UsageError>([&] { step(rows()); });
      if (bypasses && expects_bypass(precision)) {
        expect_parts(message, {"GuardedNetImpl", "model(inputs)"});
      } else if (!bypasses && world() > 1) {
        expect_parts(message, {"not averaged over the ranks", "no_sync"});
      } else {
        EXPECT_EQ(message, "no error");
      }
    }
  }
}

TEST_F(TogetherGuards, WeightsOfSeveralModulesTiedByMemoryAreRefusedByTheFirstStep) {
  for (const int kind : {0, 1, 2}) {
    Accelerator a(with(Precision::no));
    torch::nn::Linear one(4, 4), two(4, 4);
    if (kind == 0) two->weight.set_data(one->weight);
    auto [first, second] = a.prepare(one, two);
    if (kind == 1) two->weight.set_data(one->weight);
    if (kind == 2) two->bias.set_data(one->weight.detach()[1]);  // a part of it
    auto parameters = one->parameters();
    for (const auto& parameter : two->parameters()) parameters.push_back(parameter);
    torch::optim::AdamW adamw(parameters);
    auto optimizer = a.prepare(adamw);
    a.backward(loss_of(second(first(torch::ones({2, 4})))));
    const auto message = message_of<UsageError>([&] { optimizer.step(); });
    expect_parts(message, {"weight of ", "share memory", "tie_weights("});
  }
  // Pieces of one memory that do not overlap are parameters like any others.
  Accelerator a(with(Precision::no));
  torch::nn::Linear net(4, 4);
  const auto flat = torch::ones({20});
  net->weight.set_data(flat.narrow(0, 0, 16).view({4, 4}));
  net->bias.set_data(flat.narrow(0, 16, 4));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  EXPECT_EQ(message_of<UsageError>([&] {
              auto [model, optimizer] = a.prepare(net, sgd);
              a.backward(loss_of(model(torch::ones({2, 4}))));
              optimizer.step();
            }),
            "no error");
}

TEST_F(TogetherGuards, AJoinThatIsLeftWithoutItsEndIsAnErrorOnAllRanks) {
  if (world() == 1) return;
  Accelerator a(with(Precision::no));
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
  const auto message = message_of<accelerate::DistributedError>([&, &model = model] {
    {
      auto scope = a.join_uneven_inputs({}, model);
      steps(4 + 3 * rank());  // neither a prepared loader nor scope.finish()
    }
    steps(10);
  });
  expect_parts(message, {"is not the same on all ranks", "backward in join_uneven_inputs at "});
}

TEST_F(TogetherGuards, ReplicasThatHaveDriftedApartAreNotSavedAndAreFoundInDebugMode) {
  CommonFolder folder(accelerator());
  for (const bool debugs : {false, true}) {
    if (debugs) ::setenv("ACCELERATE_DEBUG_MODE", "1", 1);
    Accelerator a(with(Precision::no));
    ::unsetenv("ACCELERATE_DEBUG_MODE");
    GuardedNet net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = a.prepare(net, sgd);
    const auto step = [&, &model = model, &optimizer = optimizer] {
      a.backward(loss_of(model(rows())));
      optimizer.step();
      optimizer.zero_grad();
    };
    step();
    a.save_state((folder / "whole").string());
    if (rank() == world() - 1) {
      torch::NoGradGuard no_grad;
      net->second->bias.add_(1e-3);
    }
    std::string problem;
    try {
      if (debugs) {
        for (int i = 0; i < 10; ++i) step();
      } else {
        a.save_state((folder / "diverged").string());
      }
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (world() == 1) {
      EXPECT_EQ(problem, "");
    } else {
      expect_parts(problem, {"replicas have diverged", "second.bias", "rank 0"});
    }
    a.wait_for_everyone();
    EXPECT_EQ(std::filesystem::exists(folder / "diverged"), world() == 1);
    EXPECT_NO_THROW(a.save_state((folder / "all the same").string(), {.check_replicas = false}));
  }
}

}  // namespace
