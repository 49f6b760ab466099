#pragma once

#include <accelerate/big_model/place.h>
#include <accelerate/core/ordered_map.h>

#include <optional>
#include <string>
#include <variant>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// Where each part of a model lives: names of modules, parameters and buffers ("" is the whole model) and their places, in the
/// order in which they were placed.
///
///     DeviceMap map = {{"embedding", 0}, {"blocks", "cpu"}, {"head", "disk"}};
///     for (const auto& [module, place] : map) std::cout << module << " -> " << place << "\n";
class DeviceMap : public OrderedMap<std::string, Place> {
 public:
  using OrderedMap::OrderedMap;

  /// Where the tensor or module `name` lives: what the longest entry says that is `name` itself or contains it; nothing when
  /// there is no such entry.
  std::optional<Place> place_of(const std::string& name) const;
};

/// What `.device_map =` takes: a rule by which the map is made ("auto", "balanced", "balanced_low_0", "sequential"), one place
/// for the whole model (0, "cpu", "disk", a device), a map, or nothing, as when it is left out.
class DeviceMapChoice {
 public:
  DeviceMapChoice() = default;
  DeviceMapChoice(DeviceMap map) : choice_(std::move(map)) {}
  DeviceMapChoice(std::initializer_list<DeviceMap::Item> items) : choice_(DeviceMap(items)) {}
  DeviceMapChoice(Place place) : choice_(DeviceMap{{"", place}}) {}
  DeviceMapChoice(c10::Device device) : DeviceMapChoice(Place(device)) {}
  DeviceMapChoice(c10::DeviceType type) : DeviceMapChoice(Place(type)) {}
  DeviceMapChoice(int accelerator) : DeviceMapChoice(Place(accelerator)) {}
  /// UsageError when it is neither a rule nor a place.
  DeviceMapChoice(const std::string& text);
  DeviceMapChoice(const char* text);

  /// Was anything chosen?
  bool has_value() const { return !std::holds_alternative<std::monostate>(choice_); }
  /// The map, where it was given, or that of the one place; otherwise nullptr.
  const DeviceMap* map() const { return std::get_if<DeviceMap>(&choice_); }
  /// The rule, where one was given; otherwise nullptr.
  const std::string* rule() const { return std::get_if<std::string>(&choice_); }

 private:
  std::variant<std::monostate, std::string, DeviceMap> choice_;
};

/// The same map with as few entries as possible: where all entries below a module have one place, the module takes theirs.
DeviceMap clean_device_map(const DeviceMap& device_map);

/// UsageError when the map leaves a parameter or a buffer of the model without a place (all such are named), or has a name that
/// the model lacks.
void check_device_map(const torch::nn::Module& model, const DeviceMap& device_map);

}  // namespace accelerate
