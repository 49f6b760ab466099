#include "residency/use_order.h"

#include <algorithm>

namespace accelerate::detail {

void UseOrder::add_unit() {
  const int unit = static_cast<int>(after_one_.size());
  after_one_.push_back(0);  // the last one is followed by the first: the next pass
  if (unit > 0) after_one_[static_cast<size_t>(unit) - 1] = unit;
}

UseOrder::Cursor& UseOrder::cursor() {
  const auto thread = std::this_thread::get_id();
  const auto found = std::find_if(cursors_.begin(), cursors_.end(), [&](const Cursor& each) { return each.thread == thread; });
  if (found != cursors_.end()) {
    std::rotate(found, found + 1, cursors_.end());
  } else {
    // Threads come and go; those that have not been seen for longest are forgotten.
    if (cursors_.size() == kMostThreads) cursors_.erase(cursors_.begin());
    cursors_.push_back({.thread = thread});
  }
  return cursors_.back();
}

bool UseOrder::used(int unit) {
  Cursor& here = cursor();
  if (here.last == unit) return false;
  if (here.last != kNothing) {
    after_one_[static_cast<size_t>(here.last)] = unit;
    after_pair_[pair_of(here.before, here.last)] = unit;
  }
  here.before = here.last;
  here.last = unit;
  return true;
}

void UseOrder::ended() {
  for (auto& each : cursors_) {
    if (each.last != kNothing) after_pair_[pair_of(each.before, each.last)] = kNothing;
    each.before = each.last = kNothing;
  }
}

int UseOrder::next(int before, int last) const {
  const auto found = after_pair_.find(pair_of(before, last));
  return found != after_pair_.end() ? found->second : after_one_[static_cast<size_t>(last)];
}

std::vector<int> UseOrder::expected(size_t most) const {
  std::vector<int> units;
  if (cursors_.empty() || cursors_.back().last == kNothing) return units;
  std::vector<bool> seen(after_one_.size());
  int before = cursors_.back().before, last = cursors_.back().last;
  // A unit that comes again on the way ends nothing: others may follow it. A chain that only repeats itself does.
  for (size_t steps = 0; units.size() < most && steps < 2 * after_one_.size(); ++steps) {
    const int unit = next(before, last);
    if (unit == kNothing) break;
    if (!seen[static_cast<size_t>(unit)]) units.push_back(unit);
    seen[static_cast<size_t>(unit)] = true;
    before = last;
    last = unit;
  }
  return units;
}

}  // namespace accelerate::detail
