#pragma once

#include <span>

namespace accelerate::detail {

/// Pages the weights of managed storages in when operators need them: from files or host memory (Pager), or from the shards of
/// all ranks (ShardGatherer). Units are weights that come and go together.
class WeightPager {
 public:
  /// A storage of which an operator uses the bytes.
  struct WeightAccess {
    int unit, weight;
    bool writes;
  };

  virtual ~WeightPager() = default;
  /// Loads the units, waiting as long as it takes, and pins them. What it throws leaves nothing pinned.
  virtual void pin(std::span<const WeightAccess> accesses) = 0;
  /// After `pin`. Changes are written back when the operator has succeeded, and discarded otherwise.
  virtual void unpin(std::span<const WeightAccess> accesses, bool succeeded) = 0;
};

}  // namespace accelerate::detail
