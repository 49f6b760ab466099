#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include "distributed/rank_names.h"

namespace c10d {
class Work;
}

namespace accelerate::detail {

class Detective;
class Logbook;
struct CallNote;

/// While it lives, this thread runs no collective on the host: `refuse` is called instead, and throws. What
/// collectives on a device throw meanwhile is the caller's own matter, and the group stays usable.
class NoHostCollectives {
 public:
  explicit NoHostCollectives(void (*refuse)());
  ~NoHostCollectives();
  NoHostCollectives(const NoHostCollectives&) = delete;
  NoHostCollectives& operator=(const NoHostCollectives&) = delete;

  /// Whether one lives in this thread.
  static bool refused();
  /// Throws then.
  static void check();

 private:
  void (*before_)();
};

/// The group cannot be used any more, because of a call that differs (by its number) or for a reason that is known already.
struct GroupLost : std::runtime_error {
  explicit GroupLost(int64_t differing = 0) : std::runtime_error("The process group is lost."), mismatch(differing) {}
  int64_t mismatch;
};

/// What surrounds every call of a group: it is written down and compared with those of other ranks before it is made, and what
/// goes wrong becomes a DistributedError with the detective's diagnosis, which every later call repeats.
class FailurePolicy {
 public:
  FailurePolicy(int rank, int size, std::chrono::milliseconds timeout, RankNames names = {})
      : rank_(rank), size_(size), timeout_(timeout), names_(std::move(names)) {}

  /// From now on failures report what every rank does, and waiting ranks check whether the group is lost.
  void set_detective(std::shared_ptr<Detective> detective) { detective_ = std::move(detective); }
  /// From now on calls are written down and compared. Needs a detective.
  void set_logbook(std::shared_ptr<Logbook> logbook) { logbook_ = std::move(logbook); }
  /// May be null.
  const std::shared_ptr<Detective>& detective() const { return detective_; }
  Logbook* logbook() const { return logbook_.get(); }
  const RankNames& names() const { return names_; }

  /// Calls `action` with the number of the call when no rank of this host makes another call. What it throws is reported as
  /// `call`, now and by every later call.
  void guarded(const CallNote& call, c10::function_ref<void(int64_t)> action);
  /// Writes a call down that starts while this rank computes, and returns its number. DistributedError when another rank of this
  /// host makes another call, or the group is lost.
  int64_t announce(const CallNote& call);
  /// The second half of it, for a call that was written down already.
  void check_announced(int64_t number, const CallNote& call);
  /// The same for what only some ranks do: it has no number and is compared with nothing. `what` is what the call logs show
  /// meanwhile: "recv from rank 0".
  void guarded_aside(const char* call, const std::string& what, std::source_location where, c10::function_ref<void()> action);
  /// GroupLost when another rank of this host makes another call of that number. Waits for one that is too far behind to compare.
  void compare_on_host(int64_t number, const CallNote& call) const;
  /// GroupLost when its end has been reported.
  void check_not_lost() const;
  /// DistributedError when a call has failed before.
  void check_usable(const char* call, std::source_location where);
  /// For polling: not every check is thorough.
  bool is_lost(int look) const;
  /// Waits for a collective on the host, and gives it up when the group is lost.
  void wait(c10d::Work& work);

  /// `reason`: the backend's error, or nothing. `mismatch`: the number of a call that differs, or 0.
  [[noreturn]] void fail(const char* call, std::source_location where, const std::string& reason, int64_t mismatch = 0);
  bool failed() const { return failed_; }
  /// A collective was left to itself: it cannot end.
  void abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }
  /// Logs how this rank leaves the group: by an exception (`unwinding`), or normally.
  void leave_group(bool unwinding);

 private:
  const int rank_, size_;
  const std::chrono::milliseconds timeout_;
  const RankNames names_;
  std::shared_ptr<Logbook> logbook_;
  std::shared_ptr<Detective> detective_;  // shared with a thread that may be left behind
  std::atomic<bool> abandoned_ = false;
  std::atomic<bool> failed_ = false;
  std::mutex diagnosis_mutex_;
  std::string diagnosis_;
};

}  // namespace accelerate::detail
