#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "big_model/described_model.h"

/// The rules of device maps once more, written to be obvious: names are texts, and every size is added up when it is needed.
namespace reference_maps {

using Names = std::vector<std::string>;
/// Places by name, in filling order, with their limits. The disk has none and comes last.
using Limits = std::vector<std::pair<std::string, double>>;
using Map = std::map<std::string, std::string>;

inline bool within(const std::string& module, const std::string& name) {
  return module.empty() || name == module || name.starts_with(module + ".");
}

/// A model as lists of names.
struct Listing {
  struct Tensor {
    std::string name;
    double bytes;
  };
  /// A parameter that is tied counts under the first of its names.
  std::vector<Tensor> tensors;
  std::map<std::string, Names> parameters, buffers, children;
  std::map<std::string, std::string> classes;
  std::vector<Names> ties;

  Listing(const described::Tree& tree, const std::vector<Names>& tied) : ties(tied) {
    list(tree, "", /*buffers_now=*/false);
    list(tree, "", /*buffers_now=*/true);
  }

  double size(const std::string& name) const {
    double sum = 0;
    for (const auto& tensor : tensors) sum += within(name, tensor.name) ? tensor.bytes : 0;
    return sum;
  }
  bool is_module(const std::string& name) const { return classes.contains(name); }
  Names split(const std::string& module) const {
    Names parts = parameters.at(module);
    parts.insert(parts.end(), children.at(module).begin(), children.at(module).end());
    return parts;
  }

 private:
  bool counts_elsewhere(const std::string& name) const {
    return std::any_of(ties.begin(), ties.end(), [&](const auto& group) {
      return std::find(group.begin(), group.end(), name) != group.end() &&
             std::any_of(tensors.begin(), tensors.end(),
                         [&](const auto& tensor) { return std::find(group.begin(), group.end(), tensor.name) != group.end(); });
    });
  }

  void list(const described::Tree& tree, const std::string& name, bool buffers_now) {
    const std::string prefix = name.empty() ? "" : name + ".";
    auto& own = buffers_now ? buffers[name] : parameters[name];
    for (const auto& one : buffers_now ? tree.buffers : tree.parameters) {
      own.push_back(prefix + one.name);
      double bytes = one.dtype == at::kBool ? 0.125 : static_cast<double>(at::elementSize(one.dtype));
      for (const int64_t length : one.shape) bytes *= static_cast<double>(length);
      if (!counts_elsewhere(own.back())) tensors.push_back({own.back(), bytes});
    }
    classes[name] = tree.class_name;
    children[name].clear();
    for (const auto& [child_name, child] : tree.children) {
      children[name].push_back(prefix + child_name);
      list(child, prefix + child_name, buffers_now);
    }
  }
};

/// One run of the rules.
class Rules {
 public:
  Rules(const Listing& model, Limits limits, std::set<std::string> unsplit, bool fallback)
      : model_(model), limits_(std::move(limits)), unsplit_(std::move(unsplit)), fallback_(fallback) {
    const bool has_gpu = !limits_.empty() && limits_.front().first != "cpu" && limits_.front().first != "disk";
    keepers_ = has_gpu ? std::set<std::string>{limits_.front().first, "cpu"} : std::set<std::string>{"cpu"};
    limits_.emplace_back("disk", 0);
    for (const auto* own : {&model.parameters, &model.children, &model.buffers}) {
      queue_.insert(queue_.end(), own->at("").begin(), own->at("").end());
    }
    remember_largest(queue_);
  }

  Map run() {
    while (!queue_.empty()) step();
    return map_;
  }

 private:
  bool is_layer(const std::string& name) const {
    return !model_.is_module(name) || model_.children.at(name).empty() || unsplit_.contains(model_.classes.at(name));
  }
  Names layers(const Names& names) const {
    Names found;
    for (const auto& name : names) {
      const Names inner = is_layer(name) ? Names{name} : layers(model_.children.at(name));
      found.insert(found.end(), inner.begin(), inner.end());
    }
    return found;
  }
  void remember_largest(const Names& names) {
    largest_ = 0;
    for (const auto& layer : layers(names)) largest_ = std::max(largest_, model_.size(layer));
    largest_names_.clear();
    for (const auto& layer : layers(names)) {
      if (model_.size(layer) == largest_) largest_names_.push_back(layer);
    }
  }
  void remember_largest_module() {
    Names modules;
    for (const auto& name : queue_) {
      if (model_.is_module(name)) modules.push_back(name);
    }
    remember_largest(modules);
  }
  /// Entries of `candidates` that share a parameter with `part`, or with another of them that does.
  Names tied_to(const std::string& part, const Names& candidates) const {
    Names owners;
    for (const auto& group : model_.ties) {
      for (const auto& name : group) {
        const auto owner = std::find_if(candidates.begin(), candidates.end(), [&](const auto& one) { return within(one, name); });
        if (owner == candidates.end() || std::find(owners.begin(), owners.end(), *owner) != owners.end()) continue;
        if (within(part, name) || !shares(group, part)) continue;
        owners.push_back(*owner);
      }
    }
    Names all = owners;
    for (const auto& owner : owners) {
      Names others = candidates;
      std::erase_if(others, [&](const auto& one) { return std::find(all.begin(), all.end(), one) != all.end(); });
      const Names further = tied_to(owner, others);
      all.insert(all.end(), further.begin(), further.end());
    }
    return all;
  }
  static bool shares(const Names& group, const std::string& part) {
    return std::any_of(group.begin(), group.end(), [&](const auto& name) { return within(part, name); });
  }
  double size_with(const std::string& part, const Names& owners) const {
    double sum = model_.size(part);
    for (const auto& owner : owners) sum += model_.size(owner);
    return sum;
  }
  void replace(const std::string& module) {
    const auto at = std::find(queue_.begin(), queue_.end(), module);
    const Names parts = model_.split(module);
    queue_.insert(queue_.erase(at), parts.begin(), parts.end());
  }

  void step() {
    const std::string part = queue_.front();
    queue_.erase(queue_.begin());
    std::erase_if(largest_names_, [&](const auto& name) { return within(part, name); });
    if (largest_names_.empty()) remember_largest_module();
    const std::string place = limits_[at_].first;
    const bool endless = place == "disk";
    const double kept = keepers_.contains(place) ? largest_ : 0, limit = limits_[at_].second - kept;
    const Names owners = tied_to(part, queue_);
    const double needed = size_with(part, owners);
    double& used = used_[place];
    if (endless || used + needed <= limit) return put(part, owners, needed, place);
    const auto divisible = std::find_if(owners.begin(), owners.end(), [&](const auto& one) { return !is_layer(one); });
    if (used + model_.size(part) <= limit && divisible != owners.end()) {
      replace(*divisible);
      queue_.insert(queue_.begin(), part);
      return remember_largest_module();
    }
    if (used + model_.size(part) >= limit && !is_layer(part)) {
      queue_.insert(queue_.begin(), part);
      replace(part);
      return remember_largest_module();
    }
    if (used == 0 && fallback_ && part != found_ && try_fallback(part, limits_[at_].second - std::max(largest_, needed))) return;
    used += kept;
    ++at_;
    queue_.insert(queue_.begin(), part);
  }

  void put(const std::string& part, const Names& owners, double needed, const std::string& place) {
    used_[place] += needed;
    map_[part] = place;
    for (const auto& owner : owners) {
      map_[owner] = place;
      std::erase(queue_, owner);
    }
    if (part == found_) found_.reset();
  }

  bool try_fallback(const std::string& part, double room) {
    Names search = queue_, passed = {part};
    while (room >= 0 && !search.empty()) {
      const std::string one = search.front();
      search.erase(search.begin());
      Names others = search;
      others.insert(others.end(), passed.begin(), passed.end());
      if (size_with(one, tied_to(one, others)) <= room) {
        bring_forward(one, part);
        return true;
      }
      const Names parts = is_layer(one) ? Names{} : model_.split(one);
      search.insert(search.begin(), parts.begin(), parts.end());
      if (parts.empty()) passed.push_back(one);
    }
    return false;
  }
  void bring_forward(const std::string& one, const std::string& part) {
    while (std::find(queue_.begin(), queue_.end(), one) == queue_.end()) {
      replace(*std::find_if(queue_.begin(), queue_.end(), [&](const auto& entry) { return within(entry, one); }));
    }
    std::erase(queue_, one);
    queue_.insert(queue_.begin(), {one, part});
    found_ = one;
  }

  const Listing& model_;
  Limits limits_;
  std::set<std::string> unsplit_, keepers_;
  bool fallback_;
  Names queue_, largest_names_;
  double largest_ = 0;
  size_t at_ = 0;
  std::map<std::string, double> used_;
  std::optional<std::string> found_;
  Map map_;
};

/// Joins what can be joined, top down.
inline Map cleaned(Map map, const std::string& module = "") {
  std::set<std::string> places, components;
  Names below;
  for (const auto& [name, place] : map) {
    const bool counts = module.empty() || name.starts_with(module + ".");
    if (!counts) continue;
    below.push_back(name);
    places.insert(place);
  }
  if (places.size() == 1 && below.size() > 1) {
    for (const auto& name : below) map.erase(name);
    map[module] = *places.begin();
    return map;
  }
  const size_t skipped = module.empty() ? 0 : module.size() + 1;
  for (const auto& name : below) components.insert(name.substr(0, name.find('.', skipped)));
  for (const auto& child : components) map = cleaned(map, child);
  return map;
}

}  // namespace reference_maps
