#include <accelerate/checkpoint/optimizer_state.h>
#include <accelerate/core/error.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include "support/error_text.h"

namespace {

using accelerate::load_state_dict;
using accelerate::state_dict;
using accelerate::StateDict;
using accelerate::UsageError;
using accelerate::Value;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

/// Two groups with other learning rates, over weights that are the same each time.
struct OptimizerRun {
  std::vector<at::Tensor> weights;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  template <class Optimizer, class Options>
  static OptimizerRun make(const Options& options) {
    OptimizerRun run;
    torch::manual_seed(1);
    for (int i = 0; i < 3; ++i) run.weights.push_back(torch::randn({2, 3}).requires_grad_());
    if constexpr (std::same_as<Optimizer, torch::optim::LBFGS>) {  // which takes one group
      run.optimizer = std::make_unique<Optimizer>(run.weights, options);
    } else {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<at::Tensor>{run.weights[0], run.weights[1]});
      auto slower = options;
      slower.lr(options.lr() / 2);
      groups.emplace_back(std::vector<at::Tensor>{run.weights[2]}, std::make_unique<Options>(slower));
      run.optimizer = std::make_unique<Optimizer>(groups, options);
    }
    return run;
  }

  void step() {
    optimizer->step([&] {
      optimizer->zero_grad();
      at::Tensor loss = torch::zeros({});
      for (const auto& weight : weights) loss = loss + (weight * weight * torch::arange(1.0, 7.0).view({2, 3})).sum();
      loss.backward();
      return loss;
    });
  }
};

/// Five steps, the last three of them by another optimizer that was given the state of the first.
template <class Optimizer, class Options>
void expect_continued(const Options& options) {
  auto whole = OptimizerRun::make<Optimizer>(options);
  for (int i = 0; i < 5; ++i) whole.step();
  auto first = OptimizerRun::make<Optimizer>(options);
  for (int i = 0; i < 2; ++i) first.step();
  auto second = OptimizerRun::make<Optimizer>(Options(options).lr(77));
  for (size_t i = 0; i < 3; ++i) second.weights[i].data().copy_(first.weights[i].data());
  load_state_dict(*second.optimizer, state_dict(*first.optimizer));
  for (int i = 0; i < 3; ++i) {
    first.step();  // must not move what the second was given
    second.step();
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(second.weights[i], whole.weights[i])) << "weight " << i;
}

TEST(OptimizerState, AnotherOptimizerGoesOnFromIt) {
  namespace optim = torch::optim;
  expect_continued<optim::AdamW>(optim::AdamWOptions(0.1));
  expect_continued<optim::AdamW>(optim::AdamWOptions(0.1).amsgrad(true));
  expect_continued<optim::Adam>(optim::AdamOptions(0.1).weight_decay(0.01));
  expect_continued<optim::SGD>(optim::SGDOptions(0.1));
  expect_continued<optim::SGD>(optim::SGDOptions(0.01).momentum(0.9).nesterov(true));
  expect_continued<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  expect_continued<optim::Adagrad>(optim::AdagradOptions(0.1));
  expect_continued<optim::LBFGS>(optim::LBFGSOptions(0.1).max_iter(3).line_search_fn("strong_wolfe"));
}

TEST(OptimizerState, HasPythonsNamesAndNumbers) {
  auto run = OptimizerRun::make<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1).weight_decay(0));
  run.step();
  const StateDict state = state_dict(*run.optimizer);
  EXPECT_TRUE(state.at("state").as<StateDict>().is_numbered());
  EXPECT_EQ(state.at("state").as<StateDict>().size(), 3U);
  EXPECT_EQ(state.at("state")["2"]["step"], Value(torch::tensor(1.0F)));
  const auto& groups = state.at("param_groups").as<Value::List>();
  EXPECT_EQ(groups.size(), 2U);
  EXPECT_EQ(
      to_string(groups[1]),
      "{'lr': 0.05, 'betas': (0.9, 0.999), 'eps': 1e-08, 'weight_decay': 0, 'amsgrad': False, 'maximize': False, 'foreach': "
      "None, 'capturable': False, 'differentiable': False, 'fused': None, 'decoupled_weight_decay': True, 'params': [2]}");
}

TEST(OptimizerState, WhatDoesNotFitIsRefusedAndChangesNothing) {
  auto run = OptimizerRun::make<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  run.step();
  const StateDict before = state_dict(*run.optimizer);
  const auto refused = [&](const std::function<void(StateDict&)>& change) -> std::string {
    StateDict state = before;
    change(state);
    const auto text = message_of<UsageError>([&] { load_state_dict(*run.optimizer, state); });
    EXPECT_EQ(Value(state_dict(*run.optimizer)), Value(before));
    return text;
  };
  const auto group = [](StateDict& state, size_t i) -> StateDict& {
    return state.at("param_groups").as<Value::List>()[i].as<StateDict>();
  };
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  auto said = refused([](StateDict& state) { state.at("param_groups").as<Value::List>().pop_back(); });
  EXPECT_TRUE(contains(said, "1 parameter groups; this optimizer has 2")) << said;
  said = refused([&](StateDict& state) { group(state, 0)["params"] = Value::List{0}; });
  EXPECT_TRUE(contains(said, "Group 0") && contains(said, "1 parameters")) << said;
  said = refused([&](StateDict& state) { group(state, 1)["maximize"] = true; });
  EXPECT_TRUE(contains(said, "maximize")) << said;
  said = refused([&](StateDict& state) { group(state, 1)["decoupled_weight_decay"] = false; });
  EXPECT_TRUE(contains(said, "decoupled_weight_decay is false")) << said;
  said = refused([&](StateDict& state) { group(state, 1)["betas"] = 3; });
  EXPECT_TRUE(contains(said, "betas")) << said;
  said = refused([](StateDict& state) { state.at("state").as<StateDict>().at("1").as<StateDict>()["exp_avg"] = "text"; });
  EXPECT_TRUE(contains(said, "exp_avg")) << said;
}

TEST(OptimizerState, GoesToTheDtypeOfItsParameters) {
  auto single = OptimizerRun::make<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  single.step();
  auto run = OptimizerRun::make<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  for (auto& weight : run.weights) weight.set_data(weight.data().to(torch::kDouble));
  load_state_dict(*run.optimizer, state_dict(*single.optimizer));
  EXPECT_EQ(state_dict(*run.optimizer).at("state")["0"]["exp_avg"].as<at::Tensor>().scalar_type(), torch::kDouble);
}

/// Where the first average of the first weight lies.
const void* memory_of_average(const torch::optim::Optimizer& optimizer) {
  return state_dict(optimizer).at("state")["0"]["exp_avg"].as<at::Tensor>().const_data_ptr();
}

TEST(OptimizerState, AStateThatIsGivenAwayIsKeptUnlessSomebodyElseHasItsTensors) {
  auto run = OptimizerRun::make<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  run.step();
  auto other = OptimizerRun::make<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  load_state_dict(*other.optimizer, state_dict(*run.optimizer));
  EXPECT_NE(memory_of_average(*other.optimizer), memory_of_average(*run.optimizer)) << "two optimizers in the same memory";
  auto state = state_dict(*run.optimizer);
  const void* memory = memory_of_average(*run.optimizer);
  run.optimizer->state().clear();
  load_state_dict(*other.optimizer, std::as_const(state));
  EXPECT_NE(memory_of_average(*other.optimizer), memory);
  load_state_dict(*other.optimizer, std::move(state));
  EXPECT_EQ(memory_of_average(*other.optimizer), memory);
}

struct OwnOptions : torch::optim::OptimizerOptions {
  std::unique_ptr<OptimizerOptions> clone() const override { return std::make_unique<OwnOptions>(*this); }
};
struct OwnOptimizer : torch::optim::Optimizer {
  explicit OwnOptimizer(std::vector<at::Tensor> weights)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(weights))}, std::make_unique<OwnOptions>()) {}
  at::Tensor step(LossClosure = nullptr) override { return {}; }
};

TEST(OptimizerState, AnOptimizerOfAnUnknownKindIsNamed) {
  const OwnOptimizer optimizer({torch::zeros({1})});
  expect_parts(message_of<UsageError>([&] { state_dict(optimizer); }), {"OwnOptimizer"});
}

}  // namespace
