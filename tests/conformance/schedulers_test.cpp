#include <accelerate/training/composed_schedulers.h>
#include <accelerate/training/one_cycle_lr.h>
#include <accelerate/training/torch_schedulers.h>
#include <accelerate/training/warmup_schedulers.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>

#include "conformance/golden.h"
#include "support/paths.h"

// tests/golden/schedulers.json is ours, made by make_schedulers.py beside this file; ACCELERATE_GOLDEN_DIR has no part in it.
namespace {

using accelerate::LRScheduler;
using nlohmann::json;

json scheduler_cases() {
  std::ifstream file(std::string(kProjectFolder) + "/tests/golden/schedulers.json");
  return json::parse(file).at("cases");
}

/// A parameter group for each rate.
template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> golden_optimizer_with(const json& recipe) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double lr : recipe.at("lrs")) {
    groups.emplace_back(std::vector<torch::Tensor>{torch::zeros(1)}, std::make_unique<Options>(Options(lr)));
  }
  return std::make_unique<Optimizer>(groups, Options(recipe.at("default_lr").get<double>()));
}

std::unique_ptr<torch::optim::Optimizer> golden_optimizer(const json& recipe) {
  using namespace torch::optim;
  if (recipe.at("kind") == "AdamW") return golden_optimizer_with<AdamW, AdamWOptions>(recipe);
  if (recipe.at("kind") == "Adam") return golden_optimizer_with<Adam, AdamOptions>(recipe);
  if (recipe.at("kind") == "RMSprop") return golden_optimizer_with<RMSprop, RMSpropOptions>(recipe);
  return golden_optimizer_with<SGD, SGDOptions>(recipe);
}

double golden_factor(const std::string& name, int64_t step) {
  if (name == "tenths") return 1 - static_cast<double>(step) / 10;
  if (name == "decay") return std::pow(0.95, static_cast<double>(step));
  return 0.5 + static_cast<double>(step % 3) / 4;
}

template <class T>
void take_option(const json& options, const char* name, T& variable) {
  if (options.contains(name)) variable = options.at(name).get<T>();
}

void take_option(const json& options, const char* name, std::optional<int64_t>& variable) {
  if (options.contains(name)) variable = options.at(name).get<int64_t>();
}

void take_option(const json& options, const char* name, accelerate::PerGroup& variable) {
  if (!options.contains(name)) return;
  if (options.at(name).is_array()) {
    variable = options.at(name).get<std::vector<double>>();
  } else {
    variable = options.at(name).get<double>();
  }
}

using GoldenSchedulers = std::vector<std::shared_ptr<LRScheduler>>;
std::shared_ptr<LRScheduler> golden_scheduler(torch::optim::Optimizer& optimizer, const json& recipe);

template <class Scheduler>
std::shared_ptr<LRScheduler> scheduler_of_functions(torch::optim::Optimizer& optimizer, const json& names) {
  std::vector<accelerate::LambdaLR::Factor> factors;
  for (const auto& name : names) {
    factors.push_back([name = name.get<std::string>()](int64_t step) { return golden_factor(name, step); });
  }
  if (factors.size() == 1) return std::make_shared<Scheduler>(optimizer, factors.front());
  return std::make_shared<Scheduler>(optimizer, factors);
}

std::shared_ptr<LRScheduler> composed_scheduler(torch::optim::Optimizer& optimizer, const json& recipe) {
  GoldenSchedulers schedulers(recipe.at("schedulers").size());
  for (const size_t i : recipe.at("order")) schedulers[i] = golden_scheduler(optimizer, recipe.at("schedulers").at(i));
  if (recipe.at("kind") == "ChainedScheduler") return std::make_shared<accelerate::ChainedScheduler>(schedulers);
  const auto milestones = recipe.at("options").at("milestones").get<std::vector<int64_t>>();
  return std::make_shared<accelerate::SequentialLR>(optimizer, schedulers, milestones);
}

std::shared_ptr<LRScheduler> warmup_scheduler(torch::optim::Optimizer& optimizer, const std::string& kind, const json& given) {
  using namespace accelerate;
  const auto fill = [&](auto options) {
    take_option(given, "warmup_steps", options.warmup_steps);
    if constexpr (requires { options.total_steps; }) take_option(given, "total_steps", options.total_steps);
    if constexpr (requires { options.num_cycles; }) take_option(given, "num_cycles", options.num_cycles);
    if constexpr (requires { options.lr_end; }) take_option(given, "lr_end", options.lr_end);
    if constexpr (requires { options.power; }) take_option(given, "power", options.power);
    return options;
  };
  if (kind == "ConstantWithWarmup") return std::make_shared<ConstantWithWarmup>(optimizer, fill(ConstantWithWarmupOptions()));
  if (kind == "LinearWithWarmup") return std::make_shared<LinearWithWarmup>(optimizer, fill(LinearWithWarmupOptions()));
  if (kind == "CosineWithWarmup") return std::make_shared<CosineWithWarmup>(optimizer, fill(CosineWithWarmupOptions()));
  if (kind == "PolynomialWithWarmup")
    return std::make_shared<PolynomialWithWarmup>(optimizer, fill(PolynomialWithWarmupOptions()));
  if (kind != "CosineWithHardRestartsWithWarmup") throw std::logic_error("no scheduler " + kind);
  return std::make_shared<CosineWithHardRestartsWithWarmup>(optimizer, fill(CosineWithHardRestartsWithWarmupOptions()));
}

std::shared_ptr<LRScheduler> one_cycle_scheduler(torch::optim::Optimizer& optimizer, const json& given) {
  accelerate::OneCycleLROptions options;
  take_option(given, "max_lr", options.max_lr);
  take_option(given, "total_steps", options.total_steps);
  take_option(given, "epochs", options.epochs);
  take_option(given, "steps_per_epoch", options.steps_per_epoch);
  take_option(given, "pct_start", options.pct_start);
  if (given.value("anneal_strategy", "cos") == "linear") options.anneal_strategy = accelerate::AnnealStrategy::linear;
  take_option(given, "cycle_momentum", options.cycle_momentum);
  take_option(given, "base_momentum", options.base_momentum);
  take_option(given, "max_momentum", options.max_momentum);
  take_option(given, "div_factor", options.div_factor);
  take_option(given, "final_div_factor", options.final_div_factor);
  take_option(given, "three_phase", options.three_phase);
  return std::make_shared<accelerate::OneCycleLR>(optimizer, options);
}

template <class Scheduler, class Options>
std::shared_ptr<LRScheduler> torch_scheduler(torch::optim::Optimizer& optimizer, const json& given) {
  Options options;
  if constexpr (requires { options.step_size; }) take_option(given, "step_size", options.step_size);
  if constexpr (requires { options.milestones; }) take_option(given, "milestones", options.milestones);
  if constexpr (requires { options.gamma; }) take_option(given, "gamma", options.gamma);
  if constexpr (requires { options.factor; }) take_option(given, "factor", options.factor);
  if constexpr (requires { options.start_factor; }) take_option(given, "start_factor", options.start_factor);
  if constexpr (requires { options.end_factor; }) take_option(given, "end_factor", options.end_factor);
  if constexpr (requires { options.total_iters; }) take_option(given, "total_iters", options.total_iters);
  if constexpr (requires { options.power; }) take_option(given, "power", options.power);
  if constexpr (requires { options.T_max; }) take_option(given, "T_max", options.T_max);
  if constexpr (requires { options.T_0; }) take_option(given, "T_0", options.T_0);
  if constexpr (requires { options.T_mult; }) take_option(given, "T_mult", options.T_mult);
  if constexpr (requires { options.eta_min; }) take_option(given, "eta_min", options.eta_min);
  return std::make_shared<Scheduler>(optimizer, options);
}

std::shared_ptr<LRScheduler> golden_scheduler(torch::optim::Optimizer& optimizer, const json& recipe) {
  using namespace accelerate;
  const std::string kind = recipe.at("kind");
  const json options = recipe.value("options", json::object());
  if (kind == "LambdaLR") return scheduler_of_functions<LambdaLR>(optimizer, recipe.at("functions"));
  if (kind == "MultiplicativeLR") return scheduler_of_functions<MultiplicativeLR>(optimizer, recipe.at("functions"));
  if (kind == "SequentialLR" || kind == "ChainedScheduler") return composed_scheduler(optimizer, recipe);
  if (kind == "OneCycleLR") return one_cycle_scheduler(optimizer, options);
  if (kind == "ExponentialLR") return std::make_shared<ExponentialLR>(optimizer, options.at("gamma"));
  if (kind == "ConstantSchedule") return std::make_shared<ConstantSchedule>(optimizer);
  if (kind == "StepLR") return torch_scheduler<StepLR, StepLROptions>(optimizer, options);
  if (kind == "MultiStepLR") return torch_scheduler<MultiStepLR, MultiStepLROptions>(optimizer, options);
  if (kind == "ConstantLR") return torch_scheduler<ConstantLR, ConstantLROptions>(optimizer, options);
  if (kind == "LinearLR") return torch_scheduler<LinearLR, LinearLROptions>(optimizer, options);
  if (kind == "PolynomialLR") return torch_scheduler<PolynomialLR, PolynomialLROptions>(optimizer, options);
  if (kind == "CosineAnnealingLR") return torch_scheduler<CosineAnnealingLR, CosineAnnealingLROptions>(optimizer, options);
  if (kind == "CosineAnnealingWarmRestarts") {
    return torch_scheduler<CosineAnnealingWarmRestarts, CosineAnnealingWarmRestartsOptions>(optimizer, options);
  }
  return warmup_scheduler(optimizer, kind, options);
}

bool near_python(double ours, double theirs) { return std::abs(ours - theirs) <= 1e-12 * std::max(std::abs(theirs), 1e-3); }

bool near_python(const std::vector<double>& ours, const json& theirs) {
  return std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                    [](double a, const json& b) { return near_python(a, b); });
}

std::vector<double> golden_rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

std::vector<double> golden_momenta_of(torch::optim::Optimizer& optimizer) {
  std::vector<double> momenta;
  for (auto& group : optimizer.param_groups()) {
    auto* options = &group.options();
    if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(options)) momenta.push_back(std::get<0>(adam->betas()));
    if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(options)) momenta.push_back(std::get<0>(adamw->betas()));
    if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(options)) momenta.push_back(sgd->momentum());
    if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(options)) momenta.push_back(rmsprop->momentum());
  }
  return momenta;
}

void set_golden_rates(torch::optim::Optimizer& optimizer, const json& rates) {
  for (size_t i = 0; i < rates.size(); ++i) optimizer.param_groups()[i].options().set_lr(rates.at(i));
}

/// One step of a case, and whatever is done before it.
void take_golden_step(const json& c, int step, torch::optim::Optimizer& optimizer, LRScheduler& scheduler) {
  const auto set = c.value("set_lr", json::object());
  if (set.contains(std::to_string(step))) set_golden_rates(optimizer, set.at(std::to_string(step)));
  if (c.contains("epochs")) {
    scheduler.step(c.at("epochs").at(static_cast<size_t>(step - 1)).get<double>());
  } else {
    scheduler.step();
  }
}

/// Equal kinds and names, numbers to 1e-12.
bool same_scheduler_state(const accelerate::Value& ours, const json& theirs) {
  using Kind = accelerate::Value::Kind;
  switch (ours.kind()) {
    case Kind::real:
      return theirs.is_number_float() && near_python(ours.get<double>(), theirs);
    case Kind::list: {
      const auto& list = ours.as<accelerate::Value::List>();
      return theirs.is_array() && std::equal(list.begin(), list.end(), theirs.begin(), theirs.end(), same_scheduler_state);
    }
    case Kind::dict: {
      const auto& dict = ours.as<accelerate::StateDict>();
      const auto same_item = [&](const auto& item) {
        return theirs.contains(item.first) && same_scheduler_state(item.second, theirs.at(item.first));
      };
      return theirs.is_object() && dict.size() == theirs.size() && std::all_of(dict.begin(), dict.end(), same_item);
    }
    // A function of transformers is an object without variables in Python, {} in the file; none here.
    case Kind::none:
      return theirs.is_null() || theirs.empty();
    case Kind::boolean:
      return theirs.is_boolean() && theirs == ours.get<bool>();
    case Kind::integer:
      return theirs.is_number_integer() && theirs == ours.get<int64_t>();
    case Kind::text:
      return theirs.is_string() && theirs == ours.get<std::string>();
    default:
      return false;
  }
}

accelerate::Value scheduler_state_from(const json& node) {
  if (node.is_boolean()) return node.get<bool>();
  if (node.is_number_integer()) return node.get<int64_t>();
  if (node.is_number()) return node.get<double>();
  if (node.is_string()) return node.get<std::string>();
  if (node.is_array()) {
    accelerate::Value::List list;
    for (const auto& item : node) list.push_back(scheduler_state_from(item));
    return list;
  }
  if (node.is_null()) return nullptr;
  accelerate::StateDict dict;
  for (const auto& [name, item] : node.items()) dict[name] = scheduler_state_from(item);
  return dict;
}

TEST(Golden, SchedulersSetTheRatesOfPython) {
  golden::Tally tally("schedulers.json, rates");
  for (const auto& c : scheduler_cases()) {
    const auto optimizer = golden_optimizer(c.at("optimizer"));
    const auto scheduler = golden_scheduler(*optimizer, c.at("scheduler"));
    std::string wrong;
    for (int step = 0; step <= c.at("steps"); ++step) {
      const auto at = static_cast<size_t>(step);
      if (step > 0) take_golden_step(c, step, *optimizer, *scheduler);
      const bool held = near_python(golden_rates_of(*optimizer), c.at("lrs").at(at)) &&
                        near_python(scheduler->get_last_lr(), c.at("lrs").at(at)) &&
                        (!c.contains("momenta") || near_python(golden_momenta_of(*optimizer), c.at("momenta").at(at)));
      if (!held) wrong += " step " + std::to_string(step) + ": " + json(golden_rates_of(*optimizer)).dump();
    }
    tally.judge(c.at("scheduler").dump() + c.at("lrs").dump(), wrong.empty(), wrong);
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, StatesOfSchedulersAreThoseOfPython) {
  golden::Tally tally("schedulers.json, states");
  for (const auto& c : scheduler_cases()) {
    const auto optimizer = golden_optimizer(c.at("optimizer"));
    const auto scheduler = golden_scheduler(*optimizer, c.at("scheduler"));
    for (int step = 0; step <= c.at("steps"); ++step) {
      if (step > 0) take_golden_step(c, step, *optimizer, *scheduler);
      if (!c.at("states").contains(std::to_string(step))) continue;
      const auto& theirs = c.at("states").at(std::to_string(step));
      const accelerate::Value ours = scheduler->state_dict();
      tally.judge(c.at("scheduler").dump() + theirs.dump(), same_scheduler_state(ours, theirs), to_string(ours));
    }
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, SchedulersContinueFromStatesOfPython) {
  golden::Tally tally("schedulers.json, continued");
  for (const auto& c : scheduler_cases()) {
    for (const auto& [saved_after, state] : c.at("states").items()) {
      const auto optimizer = golden_optimizer(c.at("optimizer"));
      const auto scheduler = golden_scheduler(*optimizer, c.at("scheduler"));
      const int first = std::stoi(saved_after);
      scheduler->load_state_dict(scheduler_state_from(state).as<accelerate::StateDict>());
      // The rates come with the optimizer's own state.
      set_golden_rates(*optimizer, c.at("lrs").at(static_cast<size_t>(first)));
      std::string wrong;
      for (int step = first + 1; step <= c.at("steps"); ++step) {
        take_golden_step(c, step, *optimizer, *scheduler);
        if (near_python(golden_rates_of(*optimizer), c.at("lrs").at(static_cast<size_t>(step)))) continue;
        wrong += " step " + std::to_string(step) + ": " + json(golden_rates_of(*optimizer)).dump();
      }
      tally.judge(c.at("scheduler").dump() + state.dump() + c.at("lrs").dump(), wrong.empty(), wrong);
    }
  }
  EXPECT_GT(tally.cases(), 0);
}

}  // namespace
