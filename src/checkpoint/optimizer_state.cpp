#include <ATen/ops/scalar_tensor.h>
#include <accelerate/checkpoint/optimizer_state.h>
#include <accelerate/checkpoint/state_fields.h>
#include <accelerate/core/error.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <deque>

namespace accelerate {

using namespace detail;
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

// --- The fields of each optimizer's options, in Python's order ------------------------------------------------------------

/// Zero is a whole number among Python's defaults, and files are compared with Python's byte for byte.
void visit_number(StateFields& fields, std::string_view name, double& variable) {
  fields(
      name, [&] { return variable == 0 ? Value(0) : Value(variable); },
      [&](const Value& value) { return [&variable, number = value.get<double>()] { variable = number; }; });
}

/// An option that Python's optimizer has and LibTorch's has not: written as off, and refused where it is on.
void visit_absent_option(StateFields& fields, std::string_view name) {
  fields(
      name, [] { return Value(false); },
      [name](const Value& value) -> std::function<void()> {
        if (!value.is_none() && value.get<bool>()) {
          throw UsageError(fmt::format("{} is on, which LibTorch's optimizer does not support.", name));
        }
        return [] {};
      });
}

/// What an optimizer of LibTorch does always or never, and Python's by an option.
void visit_fixed_option(StateFields& fields, std::string_view name, bool is_on) {
  fields(
      name, [is_on] { return Value(is_on); },
      [name, is_on](const Value& value) -> std::function<void()> {
        if (value.get<bool>() != is_on) {
          throw UsageError(fmt::format("{} is {}, but LibTorch's optimizer always has {}.", name, !is_on, is_on));
        }
        return [] {};
      });
}

void visit_betas(StateFields& fields, std::tuple<double, double>& betas) {
  fields(
      "betas",
      [&] {
        return Value::Tuple{std::get<0>(betas), std::get<1>(betas)};
      },
      [&](const Value& value) {
        const auto& pair = value.kind() == Value::Kind::list ? value.as<Value::List>() : value.as<Value::Tuple>().items;
        if (pair.size() != 2) throw UsageError(fmt::format("expected two numbers, got {}.", pair.size()));
        return [&betas, first = pair[0].get<double>(), second = pair[1].get<double>()] { betas = {first, second}; };
      });
}

template <class Options>
void visit_adam_options(Options& options, StateFields& fields, bool decoupled) {
  fields("lr", options.lr());
  visit_betas(fields, options.betas());
  fields("eps", options.eps());
  visit_number(fields, "weight_decay", options.weight_decay());
  fields("amsgrad", options.amsgrad());
  visit_absent_option(fields, "maximize");
  fields.constant("foreach", {});
  fields.constant("capturable", false);
  fields.constant("differentiable", false);
  fields.constant("fused", {});
  visit_fixed_option(fields, "decoupled_weight_decay", decoupled);
}

void visit_options(torch::optim::AdamOptions& options, StateFields& fields) { visit_adam_options(options, fields, false); }
void visit_options(torch::optim::AdamWOptions& options, StateFields& fields) { visit_adam_options(options, fields, true); }

void visit_options(torch::optim::SGDOptions& options, StateFields& fields) {
  fields("lr", options.lr());
  visit_number(fields, "momentum", options.momentum());
  visit_number(fields, "dampening", options.dampening());
  visit_number(fields, "weight_decay", options.weight_decay());
  fields("nesterov", options.nesterov());
  visit_absent_option(fields, "maximize");
  fields.constant("foreach", {});
  fields.constant("differentiable", false);
  fields.constant("fused", {});
}

void visit_options(torch::optim::RMSpropOptions& options, StateFields& fields) {
  fields("lr", options.lr());
  visit_number(fields, "momentum", options.momentum());
  fields("alpha", options.alpha());
  fields("eps", options.eps());
  fields("centered", options.centered());
  visit_number(fields, "weight_decay", options.weight_decay());
  fields.constant("capturable", false);
  fields.constant("foreach", {});
  visit_absent_option(fields, "maximize");
  fields.constant("differentiable", false);
}

void visit_options(torch::optim::AdagradOptions& options, StateFields& fields) {
  fields("lr", options.lr());
  visit_number(fields, "lr_decay", options.lr_decay());
  fields("eps", options.eps());
  visit_number(fields, "weight_decay", options.weight_decay());
  visit_number(fields, "initial_accumulator_value", options.initial_accumulator_value());
  fields.constant("foreach", {});
  visit_absent_option(fields, "maximize");
  fields.constant("differentiable", false);
  fields.constant("fused", {});
}

void visit_options(torch::optim::LBFGSOptions& options, StateFields& fields) {
  fields("lr", options.lr());
  fields("max_iter", options.max_iter());
  fields(
      "max_eval", [&] { return options.max_eval() ? Value(*options.max_eval()) : Value(); },
      [&](const Value& value) {
        const auto calls = value.is_none() ? std::nullopt : std::optional(value.get<int64_t>());
        return [&options, calls] { options.max_eval(calls); };
      });
  fields("tolerance_grad", options.tolerance_grad());
  fields("tolerance_change", options.tolerance_change());
  fields("history_size", options.history_size());
  fields(
      "line_search_fn", [&] { return options.line_search_fn() ? Value(*options.line_search_fn()) : Value(); },
      [&](const Value& value) {
        const auto search = value.is_none() ? std::nullopt : std::optional(value.get<std::string>());
        return [&options, search] { options.line_search_fn(search); };
      });
}

// --- What they remember of a parameter ------------------------------------------------------------------------------------

/// Python counts in a tensor of one float.
void visit_step(StateFields& fields, int64_t& step) {
  fields(
      "step", [&] { return Value(at::scalar_tensor(static_cast<double>(step), at::kFloat)); },
      [&](const Value& value) {
        const bool is_tensor = value.kind() == Value::Kind::tensor;
        const double count = is_tensor ? value.as<at::Tensor>().item().toDouble() : value.get<double>();
        return [&step, count] { step = static_cast<int64_t>(count); };
      });
}

template <class State>
void visit_adam_state(State& state, StateFields& fields, const at::Tensor& parameter) {
  visit_step(fields, state.step());
  fields("exp_avg", state.exp_avg(), parameter);
  fields("exp_avg_sq", state.exp_avg_sq(), parameter);
  fields("max_exp_avg_sq", state.max_exp_avg_sq(), parameter);
}

void visit_state(torch::optim::AdamParamState& state, StateFields& fields, const at::Tensor& parameter) {
  visit_adam_state(state, fields, parameter);
}
void visit_state(torch::optim::AdamWParamState& state, StateFields& fields, const at::Tensor& parameter) {
  visit_adam_state(state, fields, parameter);
}

void visit_state(torch::optim::SGDParamState& state, StateFields& fields, const at::Tensor& parameter) {
  fields("momentum_buffer", state.momentum_buffer(), parameter);
}

void visit_state(torch::optim::RMSpropParamState& state, StateFields& fields, const at::Tensor& parameter) {
  visit_step(fields, state.step());
  fields("square_avg", state.square_avg(), parameter);
  fields("momentum_buffer", state.momentum_buffer(), parameter);
  fields("grad_avg", state.grad_avg(), parameter);
}

void visit_state(torch::optim::AdagradParamState& state, StateFields& fields, const at::Tensor& parameter) {
  visit_step(fields, state.step());
  fields("sum", state.sum(), parameter);
}

template <class Tensors>
Value list_of(const Tensors& tensors) {
  Value::List list;
  for (const auto& tensor : tensors) list.push_back(tensor.defined() ? Value(tensor) : Value());
  return list;
}

template <class Tensors>
Tensors read_tensors(const Value& value, const at::Tensor& like) {
  Tensors tensors;
  for (const auto& item : value.as<Value::List>()) {
    tensors.push_back(item.is_none() ? at::Tensor()
                                     : item.as<at::Tensor>().to(like.options(), /*non_blocking=*/false, /*copy=*/true));
  }
  return tensors;
}

void visit_tensors(StateFields& fields, std::string_view name, std::deque<at::Tensor>& variable, const at::Tensor& like) {
  fields(
      name, [&] { return list_of(variable); },
      [&](const Value& value) {
        return [&variable, read = read_tensors<std::deque<at::Tensor>>(value, like)] { variable = read; };
      });
}

void visit_al(torch::optim::LBFGSParamState& state, StateFields& fields, const at::Tensor& parameter) {
  fields(
      "al", [&] { return state.al() ? list_of(*state.al()) : Value(); },
      [&](const Value& value) {
        auto read = value.is_none() ? std::nullopt : std::optional(read_tensors<std::vector<at::Tensor>>(value, parameter));
        return [&state, read = std::move(read)] { state.al(read); };
      });
}

/// A tensor of one number, which Python begins with a plain 1 for.
void visit_scalar(StateFields& fields, std::string_view name, at::Tensor& variable, const at::Tensor& like) {
  if (!fields.reads() && !variable.defined()) return;
  fields(
      name, [&] { return Value(variable); },
      [&](const Value& value) {
        const bool is_tensor = value.kind() == Value::Kind::tensor;
        auto read = is_tensor ? value.as<at::Tensor>().to(like.options(), /*non_blocking=*/false, /*copy=*/true)
                              : at::scalar_tensor(value.get<double>(), like.options());
        return [&variable, read] { variable = read; };
      });
}

void visit_state(torch::optim::LBFGSParamState& state, StateFields& fields, const at::Tensor& parameter) {
  fields("func_evals", state.func_evals());
  fields("n_iter", state.n_iter());
  // Python makes it where it is absent, and uses whatever else is there.
  if (fields.reads() || state.al()) visit_al(state, fields, parameter);
  fields("d", state.d(), parameter);
  fields(
      "t", [&] { return Value(state.t()); },
      [&](const Value& value) {
        const double t = value.kind() == Value::Kind::tensor ? value.as<at::Tensor>().item().toDouble() : value.get<double>();
        return [&state, t] { state.t(t); };
      });
  visit_tensors(fields, "old_dirs", state.old_dirs(), parameter);
  visit_tensors(fields, "old_stps", state.old_stps(), parameter);
  visit_tensors(fields, "ro", state.ro(), parameter);
  visit_scalar(fields, "H_diag", state.H_diag(), parameter);
  fields("prev_flat_grad", state.prev_flat_grad(), parameter);
  fields("prev_loss", state.prev_loss());
}

// --- One optimizer --------------------------------------------------------------------------------------------------------

template <class OptionsType, class StateType>
struct Kind {
  using Options = OptionsType;
  using State = StateType;
};

/// Calls `use` with the kind of this optimizer. Options tell it: a class derived from one of LibTorch's keeps to its options.
template <class Use>
auto with_kind_of(const Optimizer& optimizer, Use&& use) {
  namespace optim = torch::optim;
  const auto* options = &optimizer.defaults();
  if (dynamic_cast<const optim::AdamWOptions*>(options)) return use(Kind<optim::AdamWOptions, optim::AdamWParamState>());
  if (dynamic_cast<const optim::AdamOptions*>(options)) return use(Kind<optim::AdamOptions, optim::AdamParamState>());
  if (dynamic_cast<const optim::SGDOptions*>(options)) return use(Kind<optim::SGDOptions, optim::SGDParamState>());
  if (dynamic_cast<const optim::RMSpropOptions*>(options)) return use(Kind<optim::RMSpropOptions, optim::RMSpropParamState>());
  if (dynamic_cast<const optim::AdagradOptions*>(options)) return use(Kind<optim::AdagradOptions, optim::AdagradParamState>());
  if (dynamic_cast<const optim::LBFGSOptions*>(options)) return use(Kind<optim::LBFGSOptions, optim::LBFGSParamState>());
  throw UsageError(
      fmt::format("The state of an optimizer of type {} cannot be saved: the type is unknown. Save it with "
                  "register_for_checkpointing, or derive the type from an optimizer of LibTorch.",
                  c10::demangle(typeid(optimizer).name())));
}

template <class Kind>
StateDict write_state(Optimizer& optimizer) {
  StateDict states, result;
  states.set_numbered(true);
  Value::List groups;
  int64_t number = 0;
  for (auto& group : optimizer.param_groups()) {
    StateFields fields;
    visit_options(dynamic_cast<typename Kind::Options&>(group.options()), fields);
    Value::List numbers;
    for (const auto& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) {
        StateFields of_parameter;
        visit_state(static_cast<typename Kind::State&>(*found->second), of_parameter, parameter);
        states[std::to_string(number)] = of_parameter.take();
      }
      numbers.emplace_back(number++);
    }
    fields.constant("params", std::move(numbers));
    groups.emplace_back(fields.take());
  }
  result["state"] = std::move(states);
  result["param_groups"] = std::move(groups);
  return result;
}

struct NumberedParameter {
  std::string number;
  at::Tensor parameter;
};

/// The parameters of all groups by the numbers that `state` gives them. UsageError when it has other groups.
std::vector<NumberedParameter> number_parameters(const Optimizer& optimizer, const Value::List& saved) {
  const auto& groups = optimizer.param_groups();
  if (saved.size() != groups.size()) {
    throw UsageError(
        fmt::format("The state of an optimizer has {} parameter groups; this optimizer has {}.", saved.size(), groups.size()));
  }
  std::vector<NumberedParameter> numbered;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& numbers = saved[i]["params"].as<Value::List>();
    if (numbers.size() != groups[i].params().size()) {
      throw UsageError(fmt::format("Group {} of the state of an optimizer has {} parameters; in this optimizer it has {}.", i,
                                   numbers.size(), groups[i].params().size()));
    }
    for (size_t j = 0; j < numbers.size(); ++j) {
      numbered.push_back({std::to_string(numbers[j].get<int64_t>()), groups[i].params()[j]});
    }
  }
  return numbered;
}

/// Of a StateDict that is const the tensors are copied.
template <class Kind, class State>
void read_state(Optimizer& optimizer, State& state) {
  const auto& saved = state.at("param_groups").template as<Value::List>();
  auto& states = state.at("state").template as<StateDict>();
  ska::flat_hash_map<void*, std::unique_ptr<OptimizerParamState>> made;
  for (const NumberedParameter& numbered : number_parameters(optimizer, saved)) {
    if (!states.contains(numbered.number)) continue;
    auto one = std::make_unique<typename Kind::State>();
    StateFields fields(std::move(states.at(numbered.number).template as<StateDict>()));
    visit_state(*one, fields, numbered.parameter);
    fields.commit();
    made[numbered.parameter.unsafeGetTensorImpl()] = std::move(one);
  }
  std::vector<StateFields> options;
  for (size_t i = 0; i < saved.size(); ++i) {
    options.emplace_back(saved[i].template as<StateDict>());
    visit_options(dynamic_cast<typename Kind::Options&>(optimizer.param_groups()[i].options()), options.back());
  }
  // All of it fits: from here on nothing can fail.
  for (auto& fields : options) fields.commit();
  optimizer.state() = std::move(made);
}

}  // namespace

StateDict state_dict(const Optimizer& optimizer) {
  // LibTorch gives the options of a group to be written only; nothing is written here.
  return with_kind_of(optimizer, [&](auto kind) { return write_state<decltype(kind)>(const_cast<Optimizer&>(optimizer)); });
}

void load_state_dict(Optimizer& optimizer, const StateDict& state) {
  with_kind_of(optimizer, [&](auto kind) { read_state<decltype(kind)>(optimizer, state); });
}

void load_state_dict(Optimizer& optimizer, StateDict&& state) {
  with_kind_of(optimizer, [&](auto kind) { read_state<decltype(kind)>(optimizer, state); });
}

}  // namespace accelerate
