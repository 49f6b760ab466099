#pragma once

#include <ATen/core/TensorBase.h>

#include <memory>
#include <vector>

#include "residency/weight_pager.h"

namespace accelerate::detail {

/// Weights that somebody uses, in memory while this lives.
class Pins {
 public:
  Pins() = default;
  /// What was pinned and not finished has failed: its changes are dropped.
  ~Pins();
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;

  /// Adds a tensor's storage, if it is a managed one, to those that `pin` loads.
  void add(const at::TensorBase& tensor, bool writes);
  bool empty() const { return groups_.empty(); }
  /// Loads all of them at once: one that is loaded alone might be evicted for the next.
  void pin();
  /// Unpins them; changes are written back.
  void finish();

 private:
  struct Group {
    std::shared_ptr<WeightPager> pager;
    std::vector<WeightPager::WeightAccess> accesses;
  };

  std::vector<Group> groups_;
  size_t pinned_ = 0;  // the first of them
};

}  // namespace accelerate::detail
