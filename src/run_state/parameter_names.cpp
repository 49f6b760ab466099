#include "run_state/parameter_names.h"

#include <accelerate/core/error.h>
#include <accelerate/parallel/model.h>
#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>

#include "run_state/checkpoint_files.h"
#include "run_state/checkpoint_reader.h"
#include "run_state/run_parts.h"

namespace accelerate::detail {
namespace {

using NamesByParameter = std::unordered_map<const void*, std::string>;

NamesByParameter names_by_parameter(const RunParts& parts) {
  NamesByParameter names;
  for (size_t i = 0; i < parts.models.size(); ++i) {
    for (const auto& [name, parameter] : parts.models[i]->named_stepped_parameters()) {
      names.emplace(parameter.unsafeGetTensorImpl(), parameter_key(i, name));
    }
  }
  return names;
}

/// "0.fc.weight" in words.
std::string parameter_text(const Value& key) {
  if (key.is_none()) return "a parameter of no prepared model";
  const auto text = key.get<std::string>();
  const auto dot = text.find('.');
  return fmt::format("{} of model {}", text.substr(dot + 1), text.substr(0, dot));
}

}  // namespace

Value::List parameter_names(const RunParts& parts) {
  const auto names = names_by_parameter(parts);
  Value::List optimizers;
  for (const auto& optimizer : parts.optimizers) {
    Value::List own;
    for (const auto& parameter : optimizer.parameters()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      own.push_back(found == names.end() ? Value() : Value(found->second));
    }
    optimizers.emplace_back(std::move(own));
  }
  return optimizers;
}

void check_parameter_names(const RunParts& parts, const LoadedRun& loaded) {
  if (!loaded.own || !loaded.own->contains("parameter_names")) return;
  std::unordered_set<std::string> known;
  for (const auto& item : names_by_parameter(parts)) known.insert(item.second);
  const auto now = parameter_names(parts);
  const auto& saved = loaded.own->at("parameter_names").as<Value::List>();
  for (size_t i = 0; i < std::min(saved.size(), now.size()); ++i) {
    const auto &before = saved[i].as<Value::List>(), &present = now[i].as<Value::List>();
    for (size_t j = 0; j < std::min(before.size(), present.size()); ++j) {
      // A name that no model has any more was changed, and whether its weights fit was decided when they were loaded.
      if (before[j] == present[j] || before[j].is_none() || !known.contains(before[j].get<std::string>())) continue;
      throw CheckpointError(fmt::format(
          "{} does not fit this run: parameter {} of optimizer {} was {} when the checkpoint was saved, and is {} now: it would "
          "get the state of another parameter. Give the optimizer its parameters in the same order as in the saved run.",
          loaded.file(kOwnState), j, i, parameter_text(before[j]), parameter_text(present[j])));
    }
  }
}

}  // namespace accelerate::detail
