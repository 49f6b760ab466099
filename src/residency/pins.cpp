#include "residency/pins.h"

#include <algorithm>
#include <utility>

#include "residency/interception.h"
#include "residency/managed_storage.h"

namespace accelerate::detail {

Pins::~Pins() {
  for (size_t i = 0; i < pinned_; ++i) groups_[i].pager->unpin(groups_[i].accesses, false);
}

void Pins::add(const at::TensorBase& tensor, bool writes) {
  const StorageRecord* record = has_key(tensor) ? record_of(tensor) : nullptr;
  if (!record) return;
  auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& each) { return each.pager == record->pager; });
  if (group == groups_.end()) group = groups_.insert(group, {record->pager, {}});
  for (auto& access : group->accesses) {
    if (access.unit != record->unit || access.weight != record->weight) continue;
    access.writes |= writes;
    return;
  }
  group->accesses.push_back({record->unit, record->weight, writes});
}

void Pins::pin() {
  for (; pinned_ < groups_.size(); ++pinned_) groups_[pinned_].pager->pin(groups_[pinned_].accesses);
}

void Pins::finish() {
  while (pinned_ > 0) {
    const Group group = std::move(groups_[--pinned_]);
    groups_.pop_back();
    group.pager->unpin(group.accesses, true);
  }
}

}  // namespace accelerate::detail
