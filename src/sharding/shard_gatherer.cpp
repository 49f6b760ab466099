#include "sharding/shard_gatherer.h"

#include <accelerate/core/error.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "residency/interception.h"
#include "residency/managed_storage.h"
#include "sharding/own_operators.h"

namespace accelerate::detail {
namespace {

bool in_backward_pass() { return torch::autograd::get_current_graph_task_id() >= 0; }

}  // namespace

ShardGatherer::ShardGatherer(const std::shared_ptr<Communicator>& communicator, const GatherOptions& options,
                             std::source_location where)
    : communicator_(communicator),
      rank_(communicator ? communicator->rank() : 0),
      ranks_(communicator ? communicator->size() : 1),
      options_(options),
      where_(where) {}

Slots& ShardGatherer::slots() {
  if (slots_) return *slots_;
  std::vector<uint64_t> sizes;
  for (const auto& each : units_) sizes.push_back(static_cast<uint64_t>(each.unit->full_bytes()));
  std::sort(sizes.rbegin(), sizes.rend());
  // The unit in use, and those ahead.
  if (options_.reshard_after_forward) sizes.resize(std::min(sizes.size(), options_.ahead + 1));
  return slots_.emplace(slots_on(units_.front().unit->device), std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}));
}

void ShardGatherer::add_unit(std::shared_ptr<ShardedUnit> unit) {
  const std::lock_guard lock(mutex_);
  const int number = static_cast<int>(units_.size());
  order_.add_unit();
  for (size_t i = 0; i < unit->weights.size(); ++i) {
    const auto& weight = unit->weights[i];
    const auto record = std::make_shared<StorageRecord>(shared_from_this(), number, static_cast<int>(i), Absence::sharded);
    manage(*weight.parameter.storage().unsafeGetStorageImpl(), record, unit->device, weight.name);
    set_key(weight.parameter, true);
  }
  units_.push_back({.unit = std::move(unit)});
}

void ShardGatherer::check_writes(std::span<const WeightAccess> accesses) {
  for (const auto& access : accesses) {
    const ShardedUnit& unit = *at(access.unit).unit;
    if (!access.writes || !unit.converts()) continue;
    throw UsageError("The weight " + unit.weights[static_cast<size_t>(access.weight)].name +
                     " of a sharded model cannot be changed in place: it is computed with in " + c10::toString(unit.dtype) +
                     ", and its shards are of " + c10::toString(unit.shard.scalar_type()) +
                     ", which would be rounded. Change weights before prepare, or load them with load_state.");
  }
}

void ShardGatherer::pin(std::span<const WeightAccess> accesses) {
  const std::lock_guard lock(mutex_);
  check_writes(accesses);
  bool another = false;
  for (const auto& access : accesses) {
    Residency& unit = at(access.unit);
    ++unit.pins;
    if (!order_.used(access.unit)) continue;
    another = true;
    // Not at every use: where ranks use different weights of a unit, they use it a different number of times, and must still
    // evict the same units.
    unit.last_use = ++uses_;
  }
  try {
    const OwnOperators own;
    // All are started before one is waited for.
    for (const auto& access : accesses) require(at(access.unit));
    const bool backward = in_backward_pass();
    if (another && (backward ? options_.backward_prefetch && !options_.prefetch_after_gradients : options_.forward_prefetch))
      prefetch();
    for (const auto& access : accesses) finish_gather(at(access.unit));
  } catch (...) {
    for (const auto& access : accesses) --at(access.unit).pins;
    throw;
  }
}

void ShardGatherer::unpin(std::span<const WeightAccess> accesses, bool succeeded) {
  const std::lock_guard lock(mutex_);
  const OwnOperators own;
  for (const auto& access : accesses) {
    Residency& unit = at(access.unit);
    if (access.writes && succeeded) write_through(unit, static_cast<size_t>(access.weight));
    --unit.pins;
    // Half of a change is none: the next use gathers what the shards hold.
    if (unit.pins == 0 && (unit.outdated || (access.writes && !succeeded)) && unit.slot.defined()) evict(unit);
  }
}

void ShardGatherer::write_through(Residency& unit, size_t weight) {
  const auto& layout = unit.unit->layout;
  const auto piece = layout.piece(weight, rank_);
  if (piece.length > 0) {
    unit.unit->weights[weight].piece.detach().copy_(unit.full.narrow(0, layout.offset(weight) + piece.begin, piece.length));
  }
  unit.version = unit.unit->shard._version();
}

void ShardGatherer::require(Residency& unit) {
  if (unit.slot.defined() && (unit.outdated || unit.version != unit.unit->shard._version())) {
    finish_gather(unit);  // one that is under way uses the slot
    begin_gather(unit);
    return;
  }
  if (unit.slot.defined()) return;
  make_room(unit);  // an operator that needs more at once still gets it
  begin_gather(unit);
}

void ShardGatherer::begin_gather(Residency& unit) {
  const ShardedUnit& sharded = *unit.unit;
  const auto communicator = communicator_.lock();
  if (!communicator && ranks_ > 1) {
    throw UsageError("The weight " + sharded.weights.front().name +
                     " is sharded over ranks whose accelerator has been destroyed, so it cannot be gathered any more. Keep the "
                     "accelerator alive, or save the weights with accelerator.save_model and load them.");
  }
  if (!unit.slot.defined()) unit.slot = slots().take(static_cast<uint64_t>(sharded.full_bytes()));
  // A slot that is used again may be larger.
  unit.full = unit.slot.narrow(0, 0, sharded.full_bytes()).view(sharded.dtype);
  unit.version = sharded.shard._version();
  unit.outdated = false;
  ++gathers_;
  if (!sharded.is_offloaded()) return fill(unit, communicator);
  if (!lane_) lane_.emplace(sharded.device, /*readers=*/0);
  lane_->wait(current_stream(sharded.device));  // the slot may have been computed with
  const auto beside = lane_->make_current();
  fill(unit, communicator);
  if (!unit.gather) unit.arrival = lane_->mark();
}

void ShardGatherer::fill(Residency& unit, const std::shared_ptr<Communicator>& communicator) {
  const ShardedUnit& sharded = *unit.unit;
  if (ranks_ == 1 && !(sharded.is_offloaded() && sharded.converts())) {
    unit.full.copy_(sharded.shard, /*non_blocking=*/true);
    return;
  }
  // Converted where it is computed with: a host is slow at it.
  unit.sent = sharded.shard.to(at::TensorOptions(sharded.device), /*non_blocking=*/true).to(sharded.dtype);
  if (ranks_ == 1) {
    unit.full.copy_(unit.sent);
  } else {
    unit.gather = communicator->start_all_gather(unit.full, unit.sent, sharded.label(), where_);
  }
}

void ShardGatherer::await_gather(Residency& unit) {
  unit.gather.wait();
  if (unit.arrival) unit.arrival->block(current_stream(unit.unit->device));
  unit.arrival.reset();
  unit.sent.reset();
}

void ShardGatherer::finish_gather(Residency& unit) {
  await_gather(unit);
  if (unit.shown || !unit.slot.defined()) return;
  auto* bytes = static_cast<char*>(unit.full.mutable_data_ptr());
  const auto& sharded = *unit.unit;
  for (size_t i = 0; i < sharded.weights.size(); ++i) {
    if (const auto storage = sharded.weights[i].storage.lock())
      show_bytes(*storage, bytes + sharded.layout.offset(i) * static_cast<int64_t>(c10::elementSize(sharded.dtype)));
  }
  unit.shown = true;
}

void ShardGatherer::prefetch() {
  for (const int number : order_.expected(options_.ahead)) {
    Residency& unit = at(number);
    unit.last_use = ++uses_;  // evicted after those that were used before it
    if (unit.slot.defined()) continue;
    if (!make_room(unit)) return;
    begin_gather(unit);
  }
}

bool ShardGatherer::make_room(const Residency& unit) {
  const auto bytes = static_cast<uint64_t>(unit.unit->full_bytes());
  while (!slots().fits(bytes)) {
    Residency* oldest = nullptr;
    for (auto& each : units_) {
      if (evictable(each) && (oldest == nullptr || each.last_use < oldest->last_use)) oldest = &each;
    }
    if (oldest == nullptr) return false;
    evict(*oldest);
  }
  return true;
}

void ShardGatherer::evict(Residency& unit) {
  await_gather(unit);  // a wrong prefetch: its slot is written to until then
  if (unit.shown) {
    for (const auto& weight : unit.unit->weights) {
      if (const auto storage = weight.storage.lock()) hide_bytes(*storage, weight.name);
    }
  }
  unit.shown = unit.outdated = false;
  unit.full.reset();
  slots().give_back(std::exchange(unit.slot, {}));
}

void ShardGatherer::gradients_computed(int number) {
  const std::lock_guard lock(mutex_);
  const OwnOperators own;
  Residency& unit = at(number);
  if (evictable(unit)) evict(unit);
  if (options_.backward_prefetch && options_.prefetch_after_gradients) prefetch();
}

void ShardGatherer::invalidate() {
  const std::lock_guard lock(mutex_);
  const OwnOperators own;
  for (auto& unit : units_) {
    if (evictable(unit)) evict(unit);
    if (unit.slot.defined()) unit.outdated = true;
    // A graph that was made with the old values must not be run backward with the new ones.
    for (const auto& weight : unit.unit->weights) {
      if (!weight.parameter.is_inference()) weight.parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
  // What would be gathered for the pass after it would be outdated, too.
  order_.ended();
  if (slots_) slots_->free_unused();
}

void ShardGatherer::meet(const char* call, std::source_location where) const {
  if (const auto communicator = communicator_.lock()) communicator->barrier(call, where);
}

void ShardGatherer::release() {
  const std::lock_guard lock(mutex_);
  for (auto& unit : units_) {
    if (unit.gather) {
      unit.gather = {};  // it keeps its tensors
      for (at::Tensor* tensor : {&unit.slot, &unit.full, &unit.sent}) tensor->reset();
    }
    unit.unit->release_parameters();
  }
}

uint64_t ShardGatherer::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return slots_ ? slots_->used() : 0;
}

uint64_t ShardGatherer::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return slots_ ? slots_->peak() : 0;
}

int64_t ShardGatherer::gathers() const {
  const std::lock_guard lock(mutex_);
  return gathers_;
}

}  // namespace accelerate::detail
