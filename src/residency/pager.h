#pragma once

#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "residency/copy_lane.h"
#include "residency/slots.h"
#include "residency/transfer.h"
#include "residency/use_order.h"
#include "residency/weight_pager.h"
#include "residency/weight_store.h"

namespace accelerate::detail {

struct PagerOptions {
  /// Where weights are computed with.
  c10::Device device = c10::kCPU;
  /// The memory budget of resident weights there. An operator that needs more at once still gets it.
  uint64_t budget = 0;
  /// Threads that read.
  int threads = 4;
};

/// What a weight takes in a slot, aligned as kernels need it.
uint64_t room_for(uint64_t bytes, c10::Device device);

struct PagerCounts {
  int64_t loads = 0;
  /// Prefetch misses: a user waited for the whole load.
  int64_t demanded = 0;
  uint64_t bytes = 0, peak = 0;
};

/// Pages weights in when operators need them, and evicts them when the room is needed.
///
/// Correct by demand paging: whatever is used is loaded. Fast by prediction: the order of uses is learned, and what is expected
/// next is prefetched, evicting what is expected last. All decisions follow the order of uses alone.
///
/// One lock guards everything but the bytes under way; nobody holds it while reading. A unit that an operator uses is pinned, and
/// stays where it is until the operator has returned. On an accelerator that is when its kernels were begun: bytes come and go in
/// the order of streams there (see CopyLane), and no thread waits for a device.
class Pager final : public WeightPager, public std::enable_shared_from_this<Pager> {
 public:
  explicit Pager(const PagerOptions& options);
  ~Pager() override;
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  struct NewWeight {
    std::string name;
    c10::intrusive_ptr<c10::StorageImpl> storage;
    std::shared_ptr<WeightStore> store;
  };
  /// Takes charge of storages that come and go together. Their bytes are released: `store` has them.
  void add_unit(std::vector<NewWeight> weights);

  /// CheckpointError when a store cannot be read, UsageError when one that is to be written takes no changes.
  void pin(std::span<const WeightAccess> accesses) override;
  /// CheckpointError when a store cannot be written.
  void unpin(std::span<const WeightAccess> accesses, bool succeeded) override;

  /// Drops everything that is not pinned.
  void drop_all();
  PagerCounts counts() const;

 private:
  struct Weight {
    std::string name;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::shared_ptr<WeightStore> store;
    uint64_t offset;  // in the slot
  };
  struct Unit {
    std::vector<Weight> weights;
    uint64_t bytes = 0;
    int pins = 0;
    uint64_t last_use = 0;
    at::Tensor slot = {};                     // while it is there or on its way
    std::shared_ptr<Transfer> transfer = {};  // until what it loaded has been used
    bool prefetched = false;                  // nobody waited for it when it began
    // On an accelerator: what those wait for who use it, and the streams that have.
    std::shared_ptr<const c10::Event> arrival = {};
    std::vector<c10::Stream> streams = {};
  };

  static bool under_way(const Unit& unit) { return unit.transfer && !unit.transfer->ended(); }
  static bool evictable(const Unit& unit) { return unit.slot.defined() && unit.pins == 0 && !under_way(unit); }

  void check_writes(std::span<const WeightAccess> accesses) const;
  /// Learns what is expected after the uses so far.
  void look_ahead();
  /// Makes room for `bytes` by dropping units that are expected later than at `distance`. Drops nothing when that is not enough.
  bool make_room(uint64_t bytes, size_t distance);
  void begin_load(Unit& unit, bool urgent);
  /// Begins to load what is expected, as far as there is room.
  void begin_expected();
  /// Sees to it that the unit is there or on its way.
  void require(Unit& unit, std::unique_lock<std::mutex>& lock);
  /// Returns when what is under way for the unit has ended. The lock is released meanwhile.
  static void finish_transfer(const Unit& unit, std::unique_lock<std::mutex>& lock);
  /// Waits until it is there, and shows its bytes to its storages.
  void await(Unit& unit, std::unique_lock<std::mutex>& lock);
  /// Lets this thread's stream use it.
  void admit_stream(Unit& unit);
  /// Before its slot is filled with something else.
  void await_streams(Unit& unit);
  void write_back(const Unit& unit, const Weight& weight) const;
  void evict(Unit& unit);

  PagerOptions options_;
  std::unique_ptr<CopyLane> lane_;  // none to host memory
  mutable std::mutex mutex_;
  std::deque<Unit> units_;  // which stay where they are when others are added
  Slots slots_;
  UseOrder order_;
  std::vector<int> expected_;      // nearest first
  std::vector<size_t> distances_;  // of each unit in expected_
  uint64_t uses_ = 0, largest_ = 0;
  PagerCounts counts_;
  IoThreadPool io_threads_;  // the last: they fill slots
};

}  // namespace accelerate::detail
