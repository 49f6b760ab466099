#include "distributed/busy.h"

namespace accelerate::detail {
namespace {

/// Not owned: a thread outlives the groups it makes.
std::vector<std::weak_ptr<Logbook>>& logbooks_of_thread() {
  thread_local std::vector<std::weak_ptr<Logbook>> logbooks;
  return logbooks;
}

}  // namespace

Busy::Busy(const char* name, const std::string& place) : Busy(Activity::with(name, place), logbooks_beside(nullptr)) {}

Busy::Busy(const Activity& activity, const Logbooks& logbooks) {
  noted_.reserve(logbooks.size());
  for (const auto& logbook : logbooks) noted_.emplace_back(logbook, logbook->begin_activity(activity));
}

Busy::~Busy() {
  for (const auto& [logbook, number] : noted_) logbook->end_activity(number);
}

void Busy::belongs_to(const std::shared_ptr<Logbook>& logbook) {
  auto& logbooks = logbooks_of_thread();
  std::erase_if(logbooks, [](const auto& other) { return other.expired(); });
  logbooks.push_back(logbook);
}

Logbooks Busy::logbooks_beside(const Logbook* own) {
  Logbooks found;
  for (const auto& known : logbooks_of_thread()) {
    if (auto logbook = known.lock(); logbook && logbook.get() != own) found.push_back(std::move(logbook));
  }
  return found;
}

}  // namespace accelerate::detail
