#include "sharding/unit_plan.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <regex>
#include <set>
#include <unordered_set>

#include "core/class_name.h"

namespace accelerate::detail {
namespace {

using torch::nn::Module;

std::string joined_name(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

/// The modules that are units of their own under SIZE_BASED_WRAP: from the leaves up, whatever has enough parameters outside of
/// the units below it. As in PyTorch, an attention module is never divided, and a mere container is never a unit.
class SizePolicy {
 public:
  explicit SizePolicy(int64_t least) : least_(least) {}

  std::unordered_set<const Module*> units_of(const Module& module) {
    wrap(module);
    return units_;
  }

 private:
  /// How many parameters of `module` are in units.
  int64_t wrap(const Module& module) {
    int64_t all = 0;
    for (const auto& parameter : module.parameters()) all += parameter.numel();
    if (all < least_) return 0;
    int64_t wrapped = 0;
    if (module.as<torch::nn::MultiheadAttention>() == nullptr) {
      for (const auto& child : module.children()) wrapped += wrap(*child);
    }
    const bool container = module.as<torch::nn::ModuleList>() != nullptr || module.as<torch::nn::ModuleDict>() != nullptr;
    if (all - wrapped < least_ || container) return wrapped;
    units_.insert(&module);
    return all;
  }

  const int64_t least_;
  std::unordered_set<const Module*> units_;
};

/// Walks through a module in the order of its parameters.
class Planner {
 public:
  Planner(const Module& module, const FsdpOptions& options) : options_(options) {
    for (const auto& pattern : options.ignored_modules) ignored_.push_back({pattern, std::regex(pattern), false});
    if (options.transformer_layer_classes.empty() && options.min_num_params > 0)
      by_size_ = SizePolicy(options.min_num_params).units_of(module);
    walk(module, "", nullptr);
  }

  ShardingPlan take(const Module& module) {
    check_classes(module);
    for (const auto& pattern : ignored_) {
      if (!pattern.matched)
        throw UsageError(fmt::format("FSDP: ignored_modules has '{}', which matches the name of no module of {}.", pattern.text,
                                     module.name()));
    }
    return std::move(plan_);
  }

 private:
  struct Pattern {
    std::string text;
    std::regex regex;
    bool matched;
  };

  bool is_ignored(const std::string& path) {
    bool ignored = false;
    for (auto& pattern : ignored_) {
      if (!std::regex_match(path, pattern.regex)) continue;
      ignored = pattern.matched = true;
    }
    return ignored;
  }

  bool is_unit(const Module& module) {
    const std::string name = module.name();
    seen_classes_.insert(name);
    if (by_size_.contains(&module)) return true;
    bool named = false;
    for (const auto& written : options_.transformer_layer_classes) {
      if (!names_class(written, name)) continue;
      found_classes_.insert(written);
      named = true;
    }
    return named;
  }

  /// `owner`: the name of the unit that the module is in, or null outside of all.
  void walk(const Module& module, const std::string& path, const std::string* owner) {
    if (!path.empty() && is_ignored(path)) {
      for (const auto& item : module.named_parameters()) add_whole(joined_name(path, item.key()), item.value());
      return;
    }
    const bool begins = is_unit(module) && !path.empty();
    if (begins) owner = &path;
    for (const auto& item : module.named_parameters(/*recurse=*/false))
      add(owner ? *owner : "", joined_name(path, item.key()), item.value());
    for (const auto& child : module.named_children()) walk(*child.value(), joined_name(path, child.key()), owner);
    // What follows outside is gathered later than what came before: a unit of its own.
    if (begins) open_ = SIZE_MAX;
  }

  void add(const std::string& owner, const std::string& name, const at::Tensor& parameter) {
    if (!parameter.defined() || !seen_.insert(parameter.unsafeGetTensorImpl()).second) return;
    const auto fits = [&](const UnitPlan& unit) {
      return unit.weights.front().parameter.scalar_type() == parameter.scalar_type();
    };
    if (owner.empty()) {
      if (open_ == SIZE_MAX || !fits(plan_.units[open_])) open_ = begin_unit(name);
      plan_.units[open_].weights.push_back({name, parameter});
      return;
    }
    auto unit = std::find_if(plan_.units.begin(), plan_.units.end(),
                             [&](const UnitPlan& each) { return each.name == owner && fits(each); });
    const size_t number = unit == plan_.units.end() ? begin_unit(owner) : static_cast<size_t>(unit - plan_.units.begin());
    plan_.units[number].weights.push_back({name, parameter});
  }

  size_t begin_unit(const std::string& name) {
    plan_.units.push_back({name, {}});
    return plan_.units.size() - 1;
  }

  void add_whole(const std::string& name, const at::Tensor& parameter) {
    if (parameter.defined() && seen_.insert(parameter.unsafeGetTensorImpl()).second) plan_.whole.push_back({name, parameter});
  }

  void check_classes(const Module& module) const {
    for (const auto& written : options_.transformer_layer_classes) {
      if (found_classes_.contains(written)) continue;
      throw UsageError(
          fmt::format("FSDP: transformer_layer_classes has {}, but {} has no module of that class. Its classes are {}.", written,
                      module.name(), fmt::join(seen_classes_, ", ")));
    }
  }

  const FsdpOptions& options_;
  std::vector<Pattern> ignored_;
  std::unordered_set<const Module*> by_size_;
  std::set<std::string> seen_classes_, found_classes_;
  std::unordered_set<const void*> seen_;
  size_t open_ = SIZE_MAX;  // the unit that parameters outside of all wrapped modules go to
  ShardingPlan plan_;
};

}  // namespace

ShardingPlan plan_units(const Module& module, const FsdpOptions& options) {
  try {
    return Planner(module, options).take(module);
  } catch (const std::regex_error& error) {
    throw UsageError(fmt::format("FSDP: ignored_modules holds an invalid regular expression ({}).", error.what()));
  }
}

}  // namespace accelerate::detail
