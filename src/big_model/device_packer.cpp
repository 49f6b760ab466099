#include "big_model/device_packer.h"

#include <accelerate/console/logging.h>

#include <algorithm>

namespace accelerate::detail {
namespace {

/// What a module becomes when it is split. Its own buffers have no entry: they follow the module when its parts stay together.
std::vector<const ModulePart*> split_parts(const ModulePart& part) {
  std::vector<const ModulePart*> parts;
  for (const auto& parameter : part.parameters) parts.push_back(&parameter);
  for (const auto& child : part.children) parts.push_back(&child);
  return parts;
}

}  // namespace

DevicePacker::DevicePacker(const ModulePart& model, const MaxMemory& limits, std::vector<std::vector<std::string>> tied,
                           const PackingOptions& options)
    : tied_(std::move(tied)), options_(options) {
  for (const auto& [place, limit] : limits) {
    places_.push_back(place);
    limits_[place] = limit.bytes();
  }
  if (!limits.contains(Place::disk())) places_.push_back(Place::disk());
  const Place& first = places_.front();
  if (limits.contains(c10::kMPS)) {
    main_places_ = {c10::kMPS};
  } else {
    if (first.is_indexed()) main_places_.push_back(first);
    main_places_.push_back(c10::kCPU);
  }
  for (const ModulePart* part : parts_in_order(model)) queue_.push_back(part);
  largest_ = largest_layer({queue_.begin(), queue_.end()});
}

template <typename... Args>
void DevicePacker::say(FormatStringFor<Args...> pattern, const Args&... args) const {
  if (options_.verbose) get_logger("accelerate", LogLevel::info).info(pattern, args...);
}

double DevicePacker::reserved() const {
  const bool is_main = std::find(main_places_.begin(), main_places_.end(), place()) != main_places_.end();
  return is_main ? largest_.size : 0;
}

std::optional<double> DevicePacker::limit() const {
  if (place().is_disk()) return std::nullopt;
  return limits_.at(place()) - reserved();
}

DevicePacker::Ties DevicePacker::ties_of(const ModulePart& part, const std::vector<const Queue*>& among) const {
  std::vector<const ModulePart*> together = {&part};
  const auto is_in = [&](const std::string& name) {
    return std::any_of(together.begin(), together.end(), [&](const auto* one) { return one->contains(name); });
  };
  const auto add_owner = [&](const std::string& name) {
    for (const Queue* queue : among) {
      const auto owner = std::find_if(queue->begin(), queue->end(), [&](const auto* one) { return one->contains(name); });
      if (owner == queue->end()) continue;
      together.push_back(*owner);
      return;
    }
  };
  // What an owner shares with others must come along as well, so this goes on until nothing is added.
  for (size_t before = 0; before < together.size();) {
    before = together.size();
    for (const auto& group : tied_) {
      if (std::none_of(group.begin(), group.end(), is_in)) continue;
      for (const auto& name : group) {
        if (!is_in(name)) add_owner(name);
      }
    }
  }
  Ties ties;
  for (const auto* one : together) ties.size += one->size;  // a parameter counts under one of its names only
  ties.owners.assign(together.begin() + 1, together.end());
  return ties;
}

Packing DevicePacker::pack() {
  while (!queue_.empty()) {
    const ModulePart& part = *queue_.front();
    queue_.pop_front();
    say("{}: {} bytes", part.name, part.size);
    forget_as_largest(part);
    const Ties ties = ties_of(part, {&queue_});
    if (!limit() || packing_.used[place()] + ties.size <= *limit()) {
      put(part, ties);
    } else if (!split_owner(part, ties) && !split(part) && !fall_back(part, ties)) {
      go_on(part, ties);
    }
  }
  return std::move(packing_);
}

/// The largest layer is looked for anew when none of its size is left. Of what is left only modules may have to come back.
void DevicePacker::forget_as_largest(const ModulePart& part) {
  std::erase_if(largest_.names, [&](const auto& name) { return part.contains(name); });
  if (largest_.names.empty()) find_largest_again();
}

void DevicePacker::find_largest_again() {
  std::vector<const ModulePart*> modules;
  std::copy_if(queue_.begin(), queue_.end(), std::back_inserter(modules), [](const auto* part) { return part->is_module; });
  largest_ = largest_layer(modules);
}

void DevicePacker::put(const ModulePart& part, const Ties& ties) {
  say("  goes to {}, which has {} bytes left", place(), limit() ? *limit() - packing_.used[place()] : part.size);
  packing_.used[place()] += ties.size;
  packing_.map[part.name] = place();
  if (part.is_module) packing_.buffers[place()] += part.buffers_size;
  for (const ModulePart* owner : ties.owners) {
    say("  and so does {}, which shares a weight with it", owner->name);
    packing_.map[owner->name] = place();
    std::erase(queue_, owner);
  }
  if (fallback_ == &part) fallback_ = nullptr;
}

/// Where the part fits and its ties do not: makes one of them smaller, and the part is tried again.
bool DevicePacker::split_owner(const ModulePart& part, const Ties& ties) {
  if (packing_.used[place()] + part.size > *limit()) return false;
  const auto owner = std::find_if(ties.owners.begin(), ties.owners.end(), [](const auto* one) { return !one->is_layer; });
  if (owner == ties.owners.end()) return false;
  say("  shares a weight with {}, which is split: together they need {} bytes of {}", (*owner)->name, ties.size, place());
  const auto parts = split_parts(**owner);
  const auto at = queue_.erase(std::find(queue_.begin(), queue_.end(), *owner));
  queue_.insert(at, parts.begin(), parts.end());
  queue_.push_front(&part);
  find_largest_again();
  return true;
}

bool DevicePacker::split(const ModulePart& part) {
  if (part.is_layer || packing_.used[place()] + part.size < *limit()) return false;
  say("  is split: {} has {} bytes left", place(), *limit() - packing_.used[place()]);
  const auto parts = split_parts(part);
  queue_.insert(queue_.begin(), parts.begin(), parts.end());
  find_largest_again();
  return true;
}

/// Puts a later part that fits in front, when the place would stay empty otherwise.
bool DevicePacker::fall_back(const ModulePart& part, const Ties& ties) {
  if (!options_.fallback_allocation || packing_.used[place()] != 0 || place().is_disk() || fallback_ == &part) return false;
  const double room = limits_.at(place()) - std::max(largest_.size, ties.size);
  const ModulePart* found = room < 0 ? nullptr : find_that_fits(part, room);
  if (found == nullptr) return false;
  say("  does not fit on {}; {} does", place(), found->name);
  take_out(*found);
  queue_.push_front(&part);
  queue_.push_front(found);
  fallback_ = found;
  return true;
}

/// The first part of the queue, or of a module in it, that fits with its ties. Ties may reach to parts that were passed over and
/// to the current one.
const ModulePart* DevicePacker::find_that_fits(const ModulePart& current, double room) const {
  Queue search = queue_, passed = {&current};
  while (!search.empty()) {
    const ModulePart* part = search.front();
    search.pop_front();
    if (ties_of(*part, {&search, &passed}).size <= room) return part;
    if (part->is_layer) {
      passed.push_back(part);
    } else {
      const auto parts = split_parts(*part);
      search.insert(search.begin(), parts.begin(), parts.end());
    }
  }
  return nullptr;
}

/// Removes a part from the queue, and splits the modules that contain it.
void DevicePacker::take_out(const ModulePart& part) {
  for (;;) {
    const auto at = std::find_if(queue_.begin(), queue_.end(), [&](const auto* one) { return one->contains(part.name); });
    const ModulePart* found = *at;
    const auto next = queue_.erase(at);
    if (found == &part) return;
    const auto parts = split_parts(*found);
    queue_.insert(next, parts.begin(), parts.end());
  }
}

void DevicePacker::go_on(const ModulePart& part, const Ties& ties) {
  say("  does not fit on {}", place());
  if (packing_.used[place()] == 0) packing_.too_small.emplace_back(place(), ties.size + reserved());
  packing_.used[place()] += reserved();
  ++current_;
  queue_.push_front(&part);
}

}  // namespace accelerate::detail
