#include "residency/pager.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <utility>

#include "residency/host_memory.h"
#include "residency/managed_storage.h"

namespace accelerate::detail {
namespace {

/// Looking further ahead costs time at every use and gains nothing.
constexpr size_t kFarthest = 512;
constexpr size_t kNotExpected = SIZE_MAX;
constexpr uint64_t kMostAhead = uint64_t{256} << 20;

}  // namespace

uint64_t room_for(uint64_t bytes, c10::Device device) {
  const uint64_t alignment = device.is_cpu() ? 64 : 256;
  return (bytes + alignment - 1) / alignment * alignment;
}

Pager::Pager(const PagerOptions& options)
    : options_(options),
      lane_(options.device.is_cpu() ? nullptr : std::make_unique<CopyLane>(options.device, options.threads)),
      slots_([this](uint64_t bytes,
                    at::Tensor scrap) { return lane_ ? lane_->allocate(bytes) : host_slot(bytes, std::move(scrap)); },
             options.budget),
      io_threads_(options.threads) {
  if (io_threads_.count() == options.threads) return;
  get_logger("accelerate")
      .warning(
          "Only {} of {} prefetch threads for offloaded weights could be started: passes will be slower. Raise the limit on "
          "threads (ulimit -u, or pids.max of the control group).",
          io_threads_.count(), options.threads);
}

Pager::~Pager() {
  try {
    for (auto& unit : units_) await_streams(unit);
  } catch (...) {  // a device that has failed keeps nobody
  }
}

void Pager::add_unit(std::vector<NewWeight> weights) {
  const std::lock_guard lock(mutex_);
  const int number = static_cast<int>(units_.size());
  Unit& unit = units_.emplace_back();
  order_.add_unit();
  for (auto& weight : weights) {
    const auto record = std::make_shared<StorageRecord>(shared_from_this(), number, static_cast<int>(unit.weights.size()));
    manage(*weight.storage, record, options_.device, weight.name);
    unit.weights.push_back(
        {std::move(weight.name), c10::weak_intrusive_ptr<c10::StorageImpl>(weight.storage), std::move(weight.store), unit.bytes});
    unit.bytes += room_for(unit.weights.back().store->size(), options_.device);
  }
  largest_ = std::max(largest_, unit.bytes);
}

void Pager::check_writes(std::span<const WeightAccess> accesses) const {
  for (const WeightAccess& access : accesses) {
    const Weight& weight = units_[static_cast<size_t>(access.unit)].weights[static_cast<size_t>(access.weight)];
    if (!access.writes || weight.store->writable()) continue;
    throw UsageError("The weight " + weight.name + " cannot be changed in place: it is read from " + weight.store->where() +
                     ", which is read-only. Dispatch it to a device to change it.");
  }
}

void Pager::pin(std::span<const WeightAccess> accesses) {
  std::unique_lock lock(mutex_);
  check_writes(accesses);
  bool another = false;
  for (const WeightAccess& access : accesses) {
    Unit& unit = units_[static_cast<size_t>(access.unit)];
    ++unit.pins;
    unit.last_use = ++uses_;
    another |= order_.used(access.unit);
  }
  try {
    if (another) look_ahead();
    for (const WeightAccess& access : accesses) require(units_[static_cast<size_t>(access.unit)], lock);
    if (another) begin_expected();
    for (const WeightAccess& access : accesses) {
      Unit& unit = units_[static_cast<size_t>(access.unit)];
      await(unit, lock);
      if (lane_) admit_stream(unit);
    }
  } catch (...) {
    for (const WeightAccess& access : accesses) --units_[static_cast<size_t>(access.unit)].pins;
    throw;
  }
}

void Pager::unpin(std::span<const WeightAccess> accesses, bool succeeded) {
  std::unique_lock lock(mutex_);
  std::exception_ptr failure;
  for (const WeightAccess& access : accesses) {
    if (!access.writes || !succeeded) continue;
    const Unit& unit = units_[static_cast<size_t>(access.unit)];
    const Weight& weight = unit.weights[static_cast<size_t>(access.weight)];
    lock.unlock();  // the unit is pinned
    try {
      write_back(unit, weight);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
  }
  for (const WeightAccess& access : accesses) {
    Unit& unit = units_[static_cast<size_t>(access.unit)];
    --unit.pins;
    // Half of a change is none: the next use sees what the store has.
    if (access.writes && (!succeeded || failure) && evictable(unit)) evict(unit);
  }
  if (failure) std::rethrow_exception(failure);
}

void Pager::write_back(const Unit& unit, const Weight& weight) const {
  if (!lane_) return weight.store->write(unit.slot.const_data_ptr<uint8_t>() + weight.offset);
  const at::AutoDispatchBelowADInplaceOrView bytes_alone;
  const auto size = static_cast<int64_t>(weight.store->size());
  const at::Tensor bytes = unit.slot.narrow(0, static_cast<int64_t>(weight.offset), size).to(at::kCPU);
  weight.store->write(bytes.const_data_ptr<uint8_t>());
}

void Pager::drop_all() {
  std::unique_lock lock(mutex_);
  for (auto& unit : units_) {
    while (unit.pins == 0 && under_way(unit)) finish_transfer(unit, lock);  // prefetched for a pass that may never begin
    if (evictable(unit)) evict(unit);
  }
  slots_.free_unused();
}

PagerCounts Pager::counts() const {
  const std::lock_guard lock(mutex_);
  PagerCounts counts = counts_;
  counts.peak = slots_.peak();
  return counts;
}

void Pager::look_ahead() {
  expected_ = order_.expected(kFarthest);
  distances_.assign(units_.size(), kNotExpected);
  for (size_t i = 0; i < expected_.size(); ++i) distances_[static_cast<size_t>(expected_[i])] = i;
}

bool Pager::make_room(uint64_t bytes, size_t distance) {
  if (slots_.fits(bytes)) return true;
  struct Candidate {
    size_t distance;
    Unit* unit;
  };
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < units_.size(); ++i) {
    const size_t expected = i < distances_.size() ? distances_[i] : kNotExpected;
    if (expected >= distance && evictable(units_[i])) candidates.push_back({expected, &units_[i]});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.distance != b.distance ? a.distance > b.distance : a.unit->last_use < b.unit->last_use;
  });
  uint64_t missing = slots_.missing(bytes);
  size_t count = 0;
  while (count < candidates.size() && missing > 0) {
    missing -= std::min(missing, static_cast<uint64_t>(candidates[count++].unit->slot.nbytes()));
  }
  if (missing > 0) return false;
  for (size_t i = 0; i < count; ++i) evict(*candidates[i].unit);
  return true;
}

void Pager::begin_load(Unit& unit, bool urgent) {
  unit.slot = slots_.take(unit.bytes);
  try {
    std::vector<Transfer::Load> loads;
    for (const auto& weight : unit.weights) loads.push_back({weight.store, unit.slot, weight.offset, /*repeatedly=*/true});
    unit.transfer = std::make_shared<Transfer>(std::move(loads), lane_.get());
  } catch (...) {
    slots_.give_back(std::exchange(unit.slot, {}));
    throw;
  }
  unit.prefetched = !urgent;
  io_threads_.submit(unit.transfer, urgent);
  ++counts_.loads;
  counts_.demanded += urgent;
  counts_.bytes += unit.bytes;
}

void Pager::begin_expected() {
  if (io_threads_.count() == 0) return;  // nobody would read it before it is needed
  // What comes earlier than needed takes the room of what need not go: enough to keep the disk busy, and no more.
  const uint64_t most = std::max(2 * largest_, std::min(options_.budget / 4, kMostAhead));
  uint64_t ahead = 0;
  for (size_t i = 0; i < expected_.size() && ahead < most; ++i) {
    Unit& unit = units_[static_cast<size_t>(expected_[i])];
    if (unit.transfer) ahead += unit.bytes;
    if (unit.slot.defined()) continue;
    if (ahead + unit.bytes > most || !make_room(unit.bytes, i + 1)) return;
    begin_load(unit, false);
    ahead += unit.bytes;
  }
}

void Pager::require(Unit& unit, std::unique_lock<std::mutex>& lock) {
  while (!unit.slot.defined()) {
    if (make_room(unit.bytes, 0)) return begin_load(unit, true);
    // A wrong prefetch can be evicted as soon as it is loaded.
    const auto other =
        std::find_if(units_.begin(), units_.end(), [](const Unit& each) { return each.pins == 0 && under_way(each); });
    if (other == units_.end()) {
      for (auto& each : units_) {
        if (evictable(each)) evict(each);
      }
      return begin_load(unit, true);
    }
    finish_transfer(*other, lock);
  }
}

void Pager::finish_transfer(const Unit& unit, std::unique_lock<std::mutex>& lock) {
  const auto transfer = unit.transfer;
  lock.unlock();
  try {
    transfer->finish();
  } catch (...) {  // the next user will get the error
  }
  lock.lock();
}

void Pager::await(Unit& unit, std::unique_lock<std::mutex>& lock) {
  while (unit.transfer || !unit.slot.defined()) {
    require(unit, lock);  // another thread may have failed since
    const auto transfer = unit.transfer;
    if (!transfer) return;
    const bool prefetched = unit.prefetched;
    std::exception_ptr failure;
    lock.unlock();
    try {
      transfer->finish();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (unit.transfer == transfer) {
      unit.transfer.reset();
      unit.arrival = transfer->arrival();
      if (failure) slots_.give_back(std::exchange(unit.slot, {}));
      for (auto& weight : unit.weights) {
        const auto storage = weight.storage.lock();
        if (storage && !failure) show_bytes(*storage, unit.slot.mutable_data_ptr<uint8_t>() + weight.offset);
      }
    }
    // What failed when it was prefetched, perhaps long ago, is tried again now that it is needed.
    if (failure && !prefetched) std::rethrow_exception(failure);
  }
}

void Pager::admit_stream(Unit& unit) {
  const c10::Stream stream = current_stream(options_.device);
  if (std::find(unit.streams.begin(), unit.streams.end(), stream) != unit.streams.end()) return;
  unit.arrival->block(stream);
  unit.streams.push_back(stream);
}

void Pager::await_streams(Unit& unit) {
  for (const auto& stream : unit.streams) lane_->wait(stream);
  unit.streams.clear();
}

void Pager::evict(Unit& unit) {
  await_streams(unit);
  for (auto& weight : unit.weights) {
    const auto storage = weight.storage.lock();
    if (storage && !unit.transfer) hide_bytes(*storage, weight.name);
  }
  unit.transfer.reset();
  slots_.give_back(std::exchange(unit.slot, {}));
}

}  // namespace accelerate::detail
