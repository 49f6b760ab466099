// What programs do with gradients that know nothing of shards.
#include "sharding/sharded_pair.h"
#include "support/error_text.h"

namespace {

using namespace sharded_nets;
using accelerate::UsageError;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

class TogetherShardedGradients : public Together {
 protected:
  /// Steps of which each begins with `before_backward`, called between forward and backward pass.
  static void train(Pair& run, const std::function<void()>& before_backward,
                    const std::function<void(torch::nn::Module&)>& before_step = {}) {
    for (int step = 0; step < 3; ++step) {
      const auto loss = Pair::loss_of(run.model(run.ids(step)));
      before_backward();
      run.accelerator.backward(loss);
      run.twin->zero_grad();
      Pair::loss_of(run.twin->forward(run.ids(step))).backward();
      run.average_twin();
      if (before_step) before_step(*run.net), before_step(*run.twin);
      run.optimizer.step();
      run.twin_sgd.step();
    }
    run.expect_equal_weights();
  }
};

TEST_F(TogetherShardedGradients, ThoseThatAreDroppedBetweenForwardAndBackwardPassAreGone) {
  for (int way = 0; way < 4; ++way) {
    SCOPED_TRACE(way);
    Pair run;
    train(run, [&] {
      if (way == 0) run.net->zero_grad();
      if (way == 1) run.net->zero_grad(/*set_to_none=*/false);
      if (way == 2) run.sgd.zero_grad();
      if (way != 3) return;
      for (auto& parameter : run.net->parameters()) {
        if (parameter.grad().defined()) parameter.mutable_grad().zero_();
      }
    });
  }
}

TEST_F(TogetherShardedGradients, TheyStayWhereTheyAreInAnotherForwardPass) {
  Pair run;
  train(
      run, [&] { run.optimizer.zero_grad(); },
      [&](torch::nn::Module& net) {
        if (&net == run.net.get()) run.model(run.ids(7));  // somebody forgot the NoGradGuard
        torch::nn::utils::clip_grad_norm_(net.parameters(), 0.1);
      });
}

TEST_F(TogetherShardedGradients, ThoseOfAnOptimizerStayWhenAnotherDropsItsOwn) {
  auto accelerator = sharding_accelerator();
  auto net = Pair::seeded(), twin = Pair::seeded();
  using torch::optim::SGD;
  SGD first(net->blocks->parameters(), 0.1), second({net->norm->weight, net->norm->bias, net->scale}, 0.1);
  SGD twin_first(twin->blocks->parameters(), 0.1), twin_second({twin->norm->weight, twin->norm->bias, twin->scale}, 0.1);
  auto [model, prepared] = accelerator.prepare(net, first);
  for (int step = 0; step < 3; ++step) {
    const auto ids = batch(accelerator, step);
    prepared.zero_grad();
    second.zero_grad();
    accelerator.backward(Pair::loss_of(model(ids)));
    prepared.step();
    second.step();  // nobody prepared it: it steps the module's parameters
    twin->zero_grad();
    Pair::loss_of(twin->forward(ids)).backward();
    for (auto& parameter : twin->parameters())
      parameter.mutable_grad() = accelerator.reduce(parameter.grad(), accelerate::Reduction::mean);
    twin_first.step();
    twin_second.step();
  }
  const auto expected = accelerate::state_dict(*twin);
  for (const auto& [name, tensor] : accelerator.get_state_dict(model))
    EXPECT_TRUE(torch::allclose(tensor.cpu(), expected.at(name).cpu(), 2e-6, 2e-6)) << name;
}

TEST_F(TogetherShardedGradients, ThoseThatAProgramAssignsAreStepped) {
  Pair run;
  for (int step = 0; step < 2; ++step) {
    run.twin->zero_grad();
    Pair::loss_of(run.twin->forward(run.ids(step))).backward();
    run.average_twin();
    run.optimizer.zero_grad();
    const auto parameters = run.net->parameters(), twins = run.twin->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) at::Tensor(parameters[i]).mutable_grad() = twins[i].grad().clone();
    const auto norm = run.accelerator.clip_grad_norm_(run.model.parameters(), 0.01);
    EXPECT_NEAR(norm.item<double>(), torch::nn::utils::clip_grad_norm_(twins, 0.01), 1e-5);
    run.optimizer.step();
    run.twin_sgd.step();
  }
  run.expect_equal_weights();
}

TEST_F(TogetherShardedGradients, ThoseFromBeforePrepareAreDroppedWithTheOthers) {
  auto accelerator = sharding_accelerator();
  auto net = Pair::seeded();
  const auto ids = batch(accelerator, 0);
  Pair::loss_of(net->forward(ids)).backward();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  optimizer.zero_grad();
  accelerator.backward(Pair::loss_of(model(ids)));
  Pair run;
  run.accelerator.backward(Pair::loss_of(run.model(ids)));
  EXPECT_TRUE(torch::allclose(net->norm->weight.grad(), run.net->norm->weight.grad()));
}

TEST_F(TogetherShardedGradients, SumsOfThisRankFollowAveragedOnes) {
  Pair run;
  const auto pass = [&](bool syncs) {
    std::optional<decltype(run.accelerator.no_sync(run.model))> alone;
    if (!syncs) alone.emplace(run.accelerator.no_sync(run.model));
    run.accelerator.backward(Pair::loss_of(run.model(run.ids(0))));
  };
  for (const bool syncs : {true, false, true}) pass(syncs);
  for (int i = 0; i < 3; ++i) Pair::loss_of(run.twin->forward(run.ids(0))).backward();
  run.average_twin();
  EXPECT_TRUE(torch::allclose(run.net->norm->weight.grad(), run.twin->norm->weight.grad(), 1e-4, 1e-6));
  run.optimizer.step();
  run.twin_sgd.step();
  run.expect_equal_weights(1e-5);
}

TEST_F(TogetherShardedGradients, MemoryThatShardsWouldNotFollowIsRefusedByName) {
  if (world() == 1) return;  // nothing is sharded
  const CommonFolder folder(accelerator());
  {
    Pair run;
    const std::string file = folder / ("net_" + std::to_string(rank()));
    torch::save(run.twin, file);
    torch::load(run.net, file);
    expect_parts(message_of<UsageError>([&] { run.model(run.ids(0)); }),
                 {"other memory", "torch::load", "load_checkpoint_in_model"});
  }
  {
    auto accelerator = sharding_accelerator();
    TinyGpt net;
    net->register_buffer("alias", net->norm->weight.detach());
    expect_parts(message_of<UsageError>([&] { accelerator.prepare(net); }), {"buffer alias", "norm.weight"});
  }
  Pair run;
  if (rank() == 0) accelerate::save_file(accelerate::state_dict(*run.twin), folder / "weights.safetensors");
  accelerator().wait_for_everyone();
  expect_parts(message_of<accelerate::DistributedError>([&] {
                 if (rank() == 0) accelerate::load_checkpoint_in_model(run.net, folder / "weights.safetensors");
                 run.accelerator.wait_for_everyone();
                 run.accelerator.wait_for_everyone();
               }),
               {"load_checkpoint_in_model"});
}

}  // namespace
