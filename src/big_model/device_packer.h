#pragma once

#include <accelerate/big_model/device_map.h>
#include <accelerate/big_model/max_memory.h>
#include <accelerate/core/format.h>

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "big_model/module_tree.h"

/// The placement: the rules of infer_auto_device_map, on names and sizes alone.
namespace accelerate::detail {

struct PackingOptions {
  bool verbose = false;
  bool fallback_allocation = false;
};

/// Where the parts went, and what the places hold now.
struct Packing {
  DeviceMap map;
  /// Bytes used at each place, with the room that was kept free for layers that come back.
  std::map<Place, double> used;
  /// Bytes of buffers of the modules at each place.
  std::map<Place, double> buffers;
  /// Places that nothing fitted into, and the bytes that the first part would have needed there.
  std::vector<std::pair<Place, double>> too_small;
};

/// Puts the parts of a model into places, one after the other. Used once.
class DevicePacker {
 public:
  /// `limits` in filling order; the disk comes last and has none, whatever it says. `tied`: groups of names of one parameter.
  DevicePacker(const ModulePart& model, const MaxMemory& limits, std::vector<std::vector<std::string>> tied,
               const PackingOptions& options);

  Packing pack();

 private:
  using Queue = std::deque<const ModulePart*>;

  /// What must go where `part` goes: parts of the queue that have a parameter of its own under another name.
  struct Ties {
    std::vector<const ModulePart*> owners;
    /// Of the part, and what the owners add to it.
    double size = 0;
  };

  const Place& place() const { return places_[current_]; }
  /// Bytes that the current place may hold; nothing on disk.
  std::optional<double> limit() const;
  /// Bytes that the current place keeps free for the largest layer of what is still to be placed.
  double reserved() const;
  Ties ties_of(const ModulePart& part, const std::vector<const Queue*>& among) const;
  void forget_as_largest(const ModulePart& part);
  void find_largest_again();
  void put(const ModulePart& part, const Ties& ties);
  bool split_owner(const ModulePart& part, const Ties& ties);
  bool split(const ModulePart& part);
  bool fall_back(const ModulePart& part, const Ties& ties);
  const ModulePart* find_that_fits(const ModulePart& current, double room) const;
  void take_out(const ModulePart& part);
  void go_on(const ModulePart& part, const Ties& ties);
  template <typename... Args>
  void say(FormatStringFor<Args...> pattern, const Args&... args) const;

  std::vector<Place> places_;
  std::map<Place, double> limits_;
  /// Places that keep room for a layer: the first accelerator and the CPU.
  std::vector<Place> main_places_;
  std::vector<std::vector<std::string>> tied_;
  PackingOptions options_;
  Queue queue_;
  size_t current_ = 0;
  LayerSize largest_;
  /// Found by `fall_back` and not yet placed.
  const ModulePart* fallback_ = nullptr;
  Packing packing_;
};

}  // namespace accelerate::detail
