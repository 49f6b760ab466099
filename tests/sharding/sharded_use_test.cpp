#include <array>

#include "sharding/sharded_model.h"
#include "sharding/sharded_pair.h"
#include "support/error_text.h"

namespace {

using namespace sharded_nets;
using accelerate::Accelerator;
using accelerate::FsdpOptions;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

class TogetherShardedUse : public Together {};

TEST_F(TogetherShardedUse, EachRankHoldsItsShardAndAtMostTwoUnitsMore) {
  Pair run;
  const double share = static_cast<double>(run.model.total_parameter_bytes()) / world();
  int64_t largest = 0, padding = 0;
  if (const auto* sharded = run.model.core()->sharded()) {
    for (const auto& unit : sharded->units()) {
      largest = std::max(largest, unit->full_bytes());
      int64_t elements = 0;
      for (const auto& gap : unit->layout.gaps()) elements += gap.length;
      padding += elements * 4;
    }
    EXPECT_LE(run.model.local_parameter_bytes(), share * 1.02 + static_cast<double>(padding) / world() + 1);
    for (int step = 0; step < 3; ++step) {
      run.accelerator.backward(Pair::loss_of(run.model(run.ids(step))));
      run.optimizer.step();
      run.optimizer.zero_grad();
      EXPECT_EQ(sharded->gatherer().held_bytes(), 0U) << "between steps";
    }
    EXPECT_LE(sharded->gatherer().peak_bytes(), static_cast<uint64_t>(2 * largest));
  } else {
    EXPECT_EQ(world(), 1);
    EXPECT_EQ(run.model.local_parameter_bytes(), run.model.total_parameter_bytes());
  }
}

TEST_F(TogetherShardedUse, AStepGathersNoUnitThatItOutdatesOrThatIsStillThere) {
  accelerate::Accelerator accelerator(
      {.fsdp = accelerate::FsdpOptions{.transformer_layer_classes = {"Linear"}}, .timeout = std::chrono::seconds(60)});
  using torch::nn::Linear;
  // Four units of one size: the first is not needed in backward passes, and two of them are held at once.
  torch::nn::Sequential net(torch::nn::Embedding(9, 8), Linear(8, 8), Linear(8, 8), Linear(8, 8));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto* sharded = model.core()->sharded();
  if (sharded == nullptr) {
    EXPECT_EQ(world(), 1);
    return;
  }
  for (int step = 0; step < 4; ++step) {
    const int64_t before = sharded->gatherer().gathers();
    accelerator.backward(model(torch::arange(4, accelerator.device())).pow(2).sum());
    optimizer.step();
    optimizer.zero_grad();
    if (step > 0) {
      EXPECT_EQ(sharded->gatherer().gathers() - before, 4 + 1) << "step " << step;
    }
  }
}

TEST_F(TogetherShardedUse, WeightsAndGradientsCanBeReadAndChangedAsIfTheyWereWhole) {
  Pair run;
  const auto weight = run.net->blocks[1]->as<AttentionBlock>()->down->weight;
  const auto same = run.twin->blocks[1]->as<AttentionBlock>()->down->weight;
  EXPECT_TRUE(torch::equal(weight.detach() + 0, same.detach()));
  {
    torch::NoGradGuard no_grad;
    weight.mul_(0.5);
    same.mul_(0.5);
    weight[0].zero_();
    same[0].zero_();
  }
  run.accelerator.backward(Pair::loss_of(run.model(run.ids(0))));
  Pair::loss_of(run.twin->forward(run.ids(0))).backward();
  run.average_twin();
  EXPECT_TRUE(torch::allclose(weight.grad() * 1, same.grad(), 1e-5, 1e-7));
  // Clipping by somebody who knows nothing of shards.
  const auto norm = torch::nn::utils::clip_grad_norm_(run.model.parameters(), 0.01);
  EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(run.twin->parameters(), 0.01), 1e-6);
  run.optimizer.step();
  run.twin_sgd.step();
  run.expect_equal_weights();
}

TEST_F(TogetherShardedUse, GradientsThatTheModuleItselfDropsAreDropped) {
  Pair run;
  for (int step = 0; step < 3; ++step) {
    run.net->zero_grad();
    run.accelerator.backward(Pair::loss_of(run.model(run.ids(step))));
    run.optimizer.step();
    run.twin_step(step);
  }
  run.expect_equal_weights();
}

TEST_F(TogetherShardedUse, EvaluationBetweenPassesAndStepsChangesNothing) {
  Pair run;
  for (int step = 0; step < 3; ++step) {
    const auto evaluate = [&] {
      torch::NoGradGuard no_grad;
      EXPECT_TRUE(torch::allclose(run.model(run.ids(7)), run.twin->forward(run.ids(7)), 1e-5, 1e-6));
    };
    evaluate();
    const auto loss = Pair::loss_of(run.model(run.ids(step)));
    evaluate();
    run.accelerator.backward(loss);
    evaluate();  // what it gathers is outdated by the step
    run.optimizer.step();
    run.optimizer.zero_grad();
    run.twin_step(step);
  }
  run.expect_equal_weights();
}

TEST_F(TogetherShardedUse, SeveralForwardPassesAndCallsAroundTheModelAreSynchronised) {
  Pair run;
  for (int step = 0; step < 2; ++step) {
    const auto loss = Pair::loss_of(run.model(run.ids(step))) + Pair::loss_of(run.net->forward(run.ids(step + 4)));
    run.accelerator.backward(loss);
    run.optimizer.step();
    run.optimizer.zero_grad();
    run.twin->zero_grad();
    (Pair::loss_of(run.twin->forward(run.ids(step))) + Pair::loss_of(run.twin->forward(run.ids(step + 4)))).backward();
    run.average_twin();
    run.twin_sgd.step();
  }
  run.expect_equal_weights();
}

TEST_F(TogetherShardedUse, AnExceptionInAPassLeavesTheNextOnesAsTheyWere) {
  Pair run;
  struct Fails : torch::autograd::Function<Fails> {
    static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
      throw std::runtime_error("on purpose");
    }
  };
  for (int step = 0; step < 2; ++step) {
    EXPECT_THROW(run.model(torch::ones({1, 3}, run.accelerator.device())), std::exception);
    const auto loss = Pair::loss_of(Fails::apply(run.model(run.ids(step))) + run.model(run.ids(step)));
    EXPECT_THROW(run.accelerator.backward(loss), std::exception);
    run.optimizer.zero_grad();
    run.model.zero_grad();
    run.accelerator.backward(Pair::loss_of(run.model(run.ids(step))));
    run.optimizer.step();
    run.optimizer.zero_grad();
    run.twin_step(step);
  }
  run.expect_equal_weights();
}

TEST_F(TogetherShardedUse, SumsUnderNoSyncAreThoseOfThisRankAndCanBeReadAndDropped) {
  Pair run;
  const auto weight = run.net->blocks[1]->as<AttentionBlock>()->down->weight;
  const auto same = run.twin->blocks[1]->as<AttentionBlock>()->down->weight;
  for (const auto& drop : std::vector<std::function<void()>>{[&] { run.optimizer.zero_grad(); }, [&] { run.net->zero_grad(); },
                                                             [&] { run.model.zero_grad(); }}) {
    {
      auto scope = run.accelerator.no_sync(run.model);
      for (const int step : {1, 2}) run.accelerator.backward(Pair::loss_of(run.model(run.ids(step))));
    }
    run.twin->zero_grad();
    for (const int step : {1, 2}) Pair::loss_of(run.twin->forward(run.ids(step))).backward();
    EXPECT_TRUE(torch::allclose(weight.grad(), same.grad(), 1e-5, 1e-7));
    drop();
    run.accelerator.backward(Pair::loss_of(run.model(run.ids(3))));
    run.optimizer.step();
    run.optimizer.zero_grad();
    run.twin_step(3);
  }
  run.expect_equal_weights();
}

TEST_F(TogetherShardedUse, RanksMayUseDifferentParametersOfAUnitWhenUnusedOnesAreLookedFor) {
  // The main rank completes a unit in the middle of its backward pass, the others never do.
  struct ExpertsImpl : torch::nn::Module {
    ExpertsImpl() {
      for (int i = 0; i < 2; ++i) experts.push_back(register_module("expert" + std::to_string(i), torch::nn::Linear(4, 4)));
    }
    torch::Tensor forward(const torch::Tensor& x, int expert) {
      return rank() == 0 ? experts[0](x) + experts[1](x) : experts[static_cast<size_t>(expert)](x);
    }
    std::vector<torch::nn::Linear> experts;
  };
  struct LayersImpl : torch::nn::Module {
    LayersImpl() {
      for (int i = 0; i < 3; ++i) layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<ExpertsImpl>()));
    }
    torch::Tensor forward(torch::Tensor x, int expert, bool reversed) {
      // In another order than was learned, units are prefetched that are not needed, and others evicted for them.
      for (const int i : reversed ? std::array{0, 2, 1} : std::array{0, 1, 2})
        x = torch::tanh(layers[static_cast<size_t>(i)]->forward(x, expert));
      return x;
    }
    std::vector<std::shared_ptr<ExpertsImpl>> layers;
  };
  const auto weights_of = [](const std::optional<FsdpOptions>& fsdp) {
    Accelerator accelerator({.ddp = {.find_unused_parameters = true}, .fsdp = fsdp, .timeout = std::chrono::seconds(60)});
    torch::manual_seed(2);
    auto net = std::make_shared<LayersImpl>();
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(model(torch::ones({2, 4}, accelerator.device()), (rank() + step) % 2, step % 2 == 1).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerate::TensorDict weights;
    for (const auto& [name, tensor] : accelerator.get_state_dict(model)) weights[name] = tensor.cpu().clone();
    return weights;
  };
  const auto expected = weights_of(std::nullopt);
  for (const auto& [name, tensor] : weights_of(FsdpOptions{.transformer_layer_classes = {"ExpertsImpl"}}))
    if (rank() == 0) {
      EXPECT_TRUE(torch::allclose(tensor, expected.at(name), 1e-5, 1e-6)) << name;
    }
}

TEST_F(TogetherShardedUse, AParameterThatNoRankUsedIsLeftAlone) {
  struct TwoHeadsImpl : torch::nn::Module {
    TwoHeadsImpl() {
      body = register_module("body", torch::nn::Linear(4, 8));
      left = register_module("left", torch::nn::Linear(8, 2));
      right = register_module("right", torch::nn::Linear(8, 2));
      nobody = register_module("nobody", torch::nn::Linear(8, 2));
    }
    torch::Tensor forward(const torch::Tensor& x, bool uses_right) { return (uses_right ? right : left)(torch::tanh(body(x))); }
    torch::nn::Linear body{nullptr}, left{nullptr}, right{nullptr}, nobody{nullptr};
  };
  auto accelerator = sharding_accelerator(FsdpOptions{});
  auto net = std::make_shared<TwoHeadsImpl>();
  const auto before = accelerate::state_dict(*net).at("nobody.weight").clone(), right = net->right->weight.detach().clone();
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.5));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (int step = 0; step < 2; ++step) {
    accelerator.backward(model(torch::ones({3, 4}, accelerator.device()), rank() == 1).sum());  // only one rank uses that head
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto whole = accelerator.get_state_dict(model);
  if (rank() != 0) return;
  EXPECT_TRUE(torch::equal(whole.at("nobody.weight").cpu(), before));
  EXPECT_EQ(torch::equal(whole.at("right.weight").cpu(), right), world() == 1);
}

TEST_F(TogetherShardedUse, AModelMadeWithoutWeightsIsInitialisedShardByShard) {
  auto accelerator = sharding_accelerator();
  torch::manual_seed(5);
  auto net = [] {
    accelerate::InitEmptyWeights empty;
    return TinyGpt();
  }();
  torch::manual_seed(5);
  auto model = accelerator.prepare_model(net);
  const auto whole = accelerator.get_state_dict(model);
  EXPECT_EQ(whole.empty(), rank() != 0);
  for (const auto& [name, tensor] : whole) {
    EXPECT_FALSE(tensor.is_meta()) << name;
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  }
  torch::NoGradGuard no_grad;
  EXPECT_TRUE(model(batch(accelerator, 0)).isfinite().all().item<bool>());
}

TEST_F(TogetherShardedUse, EachRankReadsItsOwnPartsOfACheckpoint) {
  const CommonFolder folder(accelerator());
  torch::manual_seed(9);
  TinyGpt saved;
  if (rank() == 0) accelerate::save_weights(accelerate::state_dict(*saved), folder.path().string(), {.max_shard_size = "4KB"});
  accelerator().wait_for_everyone();
  Pair run;
  accelerate::load_checkpoint_in_model(run.net, folder.path().string(), {.strict = true});
  const auto expected = accelerate::state_dict(*saved);
  for (const auto& [name, tensor] : run.accelerator.get_state_dict(run.model))
    EXPECT_TRUE(torch::equal(tensor.cpu(), expected.at(name))) << name;
  torch::NoGradGuard no_grad;
  saved->to(run.accelerator.device());
  EXPECT_TRUE(torch::allclose(run.model(run.ids(0)), saved->forward(run.ids(0)), 1e-6, 1e-6));
  if (world() == 1) return;
  expect_parts(message_of<accelerate::UsageError>(
                   [&] { accelerate::load_checkpoint_in_model(run.net, folder.path().string(), {.device_map = "auto"}); }),
               {"device_map"});
  const auto renamed = [](const std::string& name) { return name == "norm.bias" ? "norm.offset" : name; };
  expect_parts(message_of<accelerate::CheckpointError>([&] {
                 accelerate::load_checkpoint_in_model(run.net, folder.path().string(), {.strict = true, .key_mapping = renamed});
               }),
               {"norm.bias"});
}

TEST_F(TogetherShardedUse, AShardedModelTrainsBesideAReplicatedAndAFrozenOne) {
  Pair run;
  torch::manual_seed(3);
  torch::nn::Linear critic(23, 1), critic_twin(23, 1);
  accelerate::load_state_dict(*critic_twin, accelerate::state_dict(*critic));
  critic_twin->to(run.accelerator.device());
  auto prepared = run.accelerator.prepare_model(critic, {.evaluation_mode = true});
  for (int step = 0; step < 3; ++step) {
    run.accelerator.backward(prepared(run.model(run.ids(step))).square().mean());
    run.optimizer.step();
    run.optimizer.zero_grad();
    run.twin->zero_grad();
    critic_twin(run.twin->forward(run.ids(step))).square().mean().backward();
    run.average_twin();
    run.twin_sgd.step();
  }
  run.expect_equal_weights(1e-5);
}

// --- What a user writes who has not read the guide ------------------------------------------------------------------------

TEST_F(TogetherShardedUse, MistakesAreErrorsThatSayWhatToDo) {
  if (world() == 1) return;  // nothing is sharded
  {
    Pair run;
    auto scope = run.accelerator.no_sync(run.model);
    run.accelerator.backward(Pair::loss_of(run.model(run.ids(0))));
    expect_parts(message_of<accelerate::UsageError>([&] { run.optimizer.step(); }), {"no_sync"});
  }
  {
    auto accelerator = sharding_accelerator();
    TinyGpt net;
    torch::optim::SGD sgd(net->parameters(), 0.1);  // never prepared
    auto model = accelerator.prepare(net);
    accelerator.backward(Pair::loss_of(model(batch(accelerator, 0))));
    expect_parts(message_of<accelerate::UsageError>([&] { model(batch(accelerator, 0)); }), {"no prepared optimizer steps it"});
  }
  {
    Pair run;
    run.net->to(torch::kDouble);
    expect_parts(message_of<accelerate::UsageError>([&] { run.model(run.ids(0)); }), {"Convert the module before prepare"});
  }
  {
    auto accelerator = sharding_accelerator();
    TinyGpt net;
    torch::optim::LBFGS lbfgs(net->parameters());
    expect_parts(message_of<accelerate::UsageError>([&] { accelerator.prepare(net, lbfgs); }), {"LBFGS"});
  }
  {
    auto accelerator = sharding_accelerator(FsdpOptions{.transformer_layer_classes = {"Blok"}});
    TinyGpt net;
    expect_parts(message_of<accelerate::UsageError>([&] { accelerator.prepare(net); }), {"AttentionBlockImpl"});
  }
  {
    Pair run;
    const auto loss = Pair::loss_of(run.model(run.ids(0)));
    loss.backward({}, /*retain_graph=*/true);
    const auto once = run.net->norm->weight.grad().clone();
    loss.backward();  // is added, as without shards
    EXPECT_TRUE(torch::allclose(run.net->norm->weight.grad(), 2 * once));
  }
}

}  // namespace
