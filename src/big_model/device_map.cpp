#include <accelerate/big_model/device_map.h>
#include <accelerate/checkpoint/module_state.h>
#include <accelerate/core/error.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>

#include "core/closest_name.h"

namespace accelerate {

using namespace detail;
namespace {

constexpr std::array<const char*, 4> kMapRules = {"auto", "balanced", "balanced_low_0", "sequential"};

/// The entries of a map as a tree of the components of their names, in the order in which they came.
struct MapNode {
  std::string name;
  std::optional<Place> own = std::nullopt;
  std::vector<std::unique_ptr<MapNode>> children = {};
  std::map<std::string, MapNode*, std::less<>> by_component = {};

  MapNode& child(const std::string& component) {
    MapNode*& found = by_component[component];
    if (found == nullptr) {
      children.push_back(std::make_unique<MapNode>(MapNode{.name = name.empty() ? component : name + "." + component}));
      found = children.back().get();
    }
    return *found;
  }
};

MapNode map_tree(const DeviceMap& device_map) {
  MapNode root;
  for (const auto& [name, place] : device_map) {
    MapNode* node = &root;
    for (size_t begin = 0; begin < name.size();) {
      const size_t dot = std::min(name.find('.', begin), name.size());
      node = &node->child(name.substr(begin, dot - begin));
      begin = dot + 1;
    }
    node->own = place;
  }
  return root;
}

/// Places of the entries below a node.
void collect_places(const MapNode& node, std::vector<Place>& places) {
  for (const auto& child : node.children) {
    if (child->own) places.push_back(*child->own);
    collect_places(*child, places);
  }
}

void add_cleaned(const MapNode& node, DeviceMap& cleaned) {
  std::vector<Place> places;
  collect_places(node, places);
  // The whole model's own entry counts among those it stands for, that of another module does not: so it is in Python.
  if (node.name.empty() && node.own) places.push_back(*node.own);
  const bool agree = places.size() > 1 && std::all_of(places.begin(), places.end(), [&](auto p) { return p == places.front(); });
  if (agree) {
    cleaned[node.name] = places.front();
    return;
  }
  if (node.own) cleaned[node.name] = *node.own;
  for (const auto& child : node.children) add_cleaned(*child, cleaned);
}

void collect_module_names(const torch::nn::Module& module, const std::string& prefix, std::vector<std::string>& names) {
  for (const auto& child : module.named_children()) {
    names.push_back(prefix + child.key());
    collect_module_names(*child.value(), names.back() + ".", names);
  }
}

void check_names(const torch::nn::Module& model, const DeviceMap& device_map, const TensorDict& tensors) {
  std::vector<std::string> names;
  collect_module_names(model, "", names);
  for (const auto& tensor : tensors) names.push_back(tensor.first);
  const std::set<std::string> known(names.begin(), names.end());
  for (const auto& entry : device_map) {
    if (entry.first.empty() || known.contains(entry.first)) continue;
    const std::string advice = names.empty() ? "; the model has none" : closest_hint(entry.first, names, "'", "'");
    throw UsageError("The device map has an entry for '" + entry.first + "', but the model has no module or tensor of that name" +
                     advice + ".");
  }
}

}  // namespace

std::optional<Place> DeviceMap::place_of(const std::string& name) const {
  for (std::string prefix = name;;) {
    if (const Place* place = find(prefix)) return *place;
    if (prefix.empty()) return std::nullopt;
    const size_t dot = prefix.rfind('.');
    prefix.resize(dot == std::string::npos ? 0 : dot);
  }
}

DeviceMapChoice::DeviceMapChoice(const std::string& text) {
  if (std::find(kMapRules.begin(), kMapRules.end(), text) != kMapRules.end()) {
    choice_ = text;
    return;
  }
  try {
    choice_ = DeviceMap{{"", Place(text)}};
  } catch (const UsageError&) {
    throw UsageError(
        "device_map is '" + text +
        "'. Give auto, balanced, balanced_low_0 or sequential, one place for the whole model (cpu, disk, 0, cuda:0), or "
        "a map of names to places.");
  }
}

DeviceMapChoice::DeviceMapChoice(const char* text) : DeviceMapChoice(std::string(text == nullptr ? "" : text)) {}

DeviceMap clean_device_map(const DeviceMap& device_map) {
  DeviceMap cleaned;
  add_cleaned(map_tree(device_map), cleaned);
  return cleaned;
}

void check_device_map(const torch::nn::Module& model, const DeviceMap& device_map) {
  const TensorDict tensors = state_dict(model);
  std::string missing;
  for (const auto& tensor : tensors) {
    if (!device_map.place_of(tensor.first)) missing += (missing.empty() ? "" : ", ") + tensor.first;
  }
  if (!missing.empty()) {
    throw UsageError("The device map gives no device for: " + missing +
                     ". Add entries for them or for modules that contain them; \"\" is the whole model.");
  }
  check_names(model, device_map, tensors);
}

}  // namespace accelerate
