#include "run_state/named_optimizer_state.h"

#include <accelerate/core/error.h>
#include <accelerate/parallel/model.h>
#include <accelerate/training/accelerated_optimizer.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <set>
#include <unordered_map>

#include "core/escaped.h"
#include "run_state/checkpoint_files.h"
#include "run_state/run_parts.h"

namespace accelerate::detail {
namespace {

struct ParameterOwner {
  size_t model;
  std::string name;
};

std::unordered_map<const void*, ParameterOwner> owners_of_parameters(const RunParts& parts) {
  std::unordered_map<const void*, ParameterOwner> owners;
  const auto& models = parts.stepped_models();
  for (size_t i = 0; i < models.size(); ++i) {
    for (const auto& [name, parameter] : models[i]->named_stepped_parameters())
      owners.try_emplace(parameter.unsafeGetTensorImpl(), ParameterOwner{i, name});
  }
  return owners;
}

/// Whether the groups list parameters by name.
bool has_names(const StateDict& state) {
  for (const auto& group : state.at("param_groups").as<Value::List>()) {
    for (const auto& parameter : group["params"].as<Value::List>()) return parameter.kind() == Value::Kind::text;
  }
  return false;
}

/// Gives each group the numbers of its parameters for their names, which may come in another order.
void number_groups(Value::List& groups, const GroupNames& names) {
  if (groups.size() != names.size())
    throw CheckpointError(
        fmt::format("The state of an optimizer has {} parameter groups; this optimizer has {}.", groups.size(), names.size()));
  int64_t number = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    std::set<std::string> saved;
    for (const auto& name : groups[i]["params"].as<Value::List>()) saved.insert(name.get<std::string>());
    Value::List numbers;
    for (const auto& name : names[i]) {
      if (saved.erase(name) == 0)
        throw CheckpointError(fmt::format("The state of an optimizer lacks the parameter {} in group {}.", escaped(name), i));
      numbers.emplace_back(number++);
    }
    if (!saved.empty())
      throw CheckpointError(fmt::format("The state of an optimizer has the parameter {} in group {}; this optimizer has not.",
                                        escaped(*saved.begin()), i));
    groups[i].as<StateDict>().at("params") = std::move(numbers);
  }
}

}  // namespace

GroupNames group_names(const RunParts& parts, const AcceleratedOptimizer& optimizer) {
  const auto owners = owners_of_parameters(parts);
  std::set<size_t> models;
  bool has_strangers = false;
  for (const auto& parameter : optimizer.parameters()) {
    const auto owner = owners.find(parameter.unsafeGetTensorImpl());
    owner == owners.end() ? void(has_strangers = true) : void(models.insert(owner->second.model));
  }
  const bool one_model = models.size() <= 1 && !has_strangers;
  GroupNames names;
  size_t number = 0;
  for (const auto& group : optimizer.param_groups()) {
    auto& own = names.emplace_back();
    for (const auto& parameter : group.params()) {
      const auto owner = owners.find(parameter.unsafeGetTensorImpl());
      own.push_back(owner == owners.end() ? fmt::format("parameter.{}", number)
                    : one_model           ? owner->second.name
                                          : parameter_key(owner->second.model, owner->second.name));
      ++number;
    }
  }
  return names;
}

StateDict named_state(StateDict numbered, const GroupNames& names) {
  auto& states = numbered.at("state").as<StateDict>();
  auto& groups = numbered.at("param_groups").as<Value::List>();
  std::unordered_map<std::string, std::string> names_by_number;
  size_t number = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    for (const auto& name : names[i]) names_by_number.emplace(std::to_string(number++), name);
    groups[i].as<StateDict>().at("params") = Value::List(names[i].begin(), names[i].end());
  }
  StateDict named;
  for (auto& [key, fields] : states) named[names_by_number.at(key)] = std::move(fields);
  states = std::move(named);
  return numbered;
}

StateDict numbered_state(StateDict state, const GroupNames& names) {
  if (!has_names(state)) return state;
  number_groups(state.at("param_groups").as<Value::List>(), names);
  std::unordered_map<std::string, Value*> saved;
  for (auto& [name, fields] : state.at("state").as<StateDict>()) saved.emplace(name, &fields);
  StateDict numbered;
  numbered.set_numbered(true);
  int64_t number = 0;
  for (const auto& group : names) {
    for (const auto& name : group) {
      const auto found = saved.find(name);
      if (found != saved.end()) numbered[std::to_string(number)] = std::move(*found->second);
      ++number;
    }
  }
  state.at("state") = std::move(numbered);
  return state;
}

}  // namespace accelerate::detail
