#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <vector>

#include "distributed/communicator.h"
#include "residency/copy_lane.h"
#include "residency/slots.h"
#include "residency/use_order.h"
#include "residency/weight_pager.h"
#include "sharding/sharded_unit.h"

namespace accelerate::detail {

struct GatherOptions {
  /// Evict a unit after its part of a forward pass; else it stays until its gradients are computed.
  bool reshard_after_forward = true;
  bool forward_prefetch = true;
  /// Prefetch in backward passes: before the gradients of a unit are computed, or after.
  bool backward_prefetch = true, prefetch_after_gradients = false;
  /// How many whole units may be held beside those in use.
  size_t ahead = 1;
};

/// Gathers the weights of sharded units from the shards of all ranks when operators need them, and evicts them again.
///
/// Correct by demand: whatever an operator uses is all-gathered. Fast by prediction: the unit that is expected next is gathered
/// meanwhile. Every decision follows the order of uses alone, so ranks that run the same operators start the same collectives in
/// the same order.
class ShardGatherer final : public WeightPager, public std::enable_shared_from_this<ShardGatherer> {
 public:
  /// `communicator`: of the ranks that hold one copy of the weights, or null for a single process. It is not kept alive: weights
  /// outlive the group, and then cannot be gathered any more.
  ShardGatherer(const std::shared_ptr<Communicator>& communicator, const GatherOptions& options, std::source_location where);

  /// Takes charge of the storages of the unit's parameters, whose bytes are released. Units are added in their order.
  void add_unit(std::shared_ptr<ShardedUnit> unit);

  /// DistributedError when a rank is missing, UsageError when a weight is to be written that is gathered in another dtype.
  void pin(std::span<const WeightAccess> accesses) override;
  void unpin(std::span<const WeightAccess> accesses, bool succeeded) override;

  /// All gradients of the unit are computed: it is not needed any more.
  void gradients_computed(int unit);
  /// Shards are about to change, or have changed: everything that was gathered is outdated.
  void invalidate();

  /// The sharded model has ended, and with it perhaps the group: gathers that are under way are left to end by themselves.
  void release();

  /// Waits until all ranks of the group make this call.
  void meet(const char* call, std::source_location where) const;
  const ShardedUnit& unit(size_t number) const { return *units_[number].unit; }
  /// Of this process among those that hold one copy.
  int rank() const { return rank_; }
  /// Bytes of whole units held now, and at most so far.
  uint64_t held_bytes() const;
  uint64_t peak_bytes() const;
  int64_t gathers() const;

 private:
  struct Residency {
    std::shared_ptr<ShardedUnit> unit;
    int pins = 0;
    uint64_t last_use = 0;
    at::Tensor slot = {};  // while it is there or under way
    at::Tensor full = {};  // the same, as elements
    at::Tensor sent = {};  // what is gathered from, until it has arrived
    BackgroundCollective gather = {};
    std::shared_ptr<const c10::Event> arrival = {};  // without a collective: when the slot has been filled by a lane
    uint32_t version = 0;                            // of the shard that was gathered
    bool shown = false;                              // to its storages
    bool outdated = false;                           // although somebody pins it
  };

  Residency& at(int unit) { return units_[static_cast<size_t>(unit)]; }
  void check_writes(std::span<const WeightAccess> accesses);
  void require(Residency& unit);
  /// Into a slot of its own, or into the one that it has.
  void begin_gather(Residency& unit);
  /// Fills the slot, or begins to, on the current stream.
  void fill(Residency& unit, const std::shared_ptr<Communicator>& communicator);
  /// The current stream waits for it.
  void await_gather(Residency& unit);
  void finish_gather(Residency& unit);
  void prefetch();
  Slots& slots();
  /// Evicts what was used longest ago until the unit fits. False when it does not.
  bool make_room(const Residency& unit);
  static bool evictable(const Residency& unit) { return unit.slot.defined() && unit.pins == 0; }
  void evict(Residency& unit);
  void write_through(Residency& unit, size_t weight);

  const std::weak_ptr<Communicator> communicator_;
  const int rank_, ranks_;
  const GatherOptions options_;
  const std::source_location where_;
  mutable std::mutex mutex_;
  std::vector<Residency> units_;
  std::optional<Slots> slots_;    // made when all units are known
  std::optional<CopyLane> lane_;  // of shards in host memory to an accelerator, beside the computing
  UseOrder order_;
  uint64_t uses_ = 0;
  int64_t gathers_ = 0;
};

}  // namespace accelerate::detail
