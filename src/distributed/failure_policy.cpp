#include "distributed/failure_policy.h"

#include <accelerate/core/error.h>

#include <optional>
#include <utility>

#include "core/source_line.h"
#include "distributed/busy.h"
#include "distributed/detective.h"
#include "launch/failure_notes.h"
#include "rendezvous/c10d_compat.h"

namespace accelerate::detail {
namespace {

/// How often a rank in a collective checks whether the group is lost, and how many of these checks apart it looks for dead ranks.
constexpr std::chrono::milliseconds kLostLook{100};
constexpr int kLooksForDead = 10;

thread_local void (*refuse_host_collective)() = nullptr;

/// While a rank is in a call of one group, the others in which it is missing can tell where it is.
void tell_other_groups(const CallNote& call, const Logbook* own, std::optional<Busy>& busy) {
  if (own == nullptr) return;
  const Logbooks others = Busy::logbooks_beside(own);
  if (!others.empty()) busy.emplace(Activity::at(std::string(call.name) + " in another group", call.where), others);
}

}  // namespace

NoHostCollectives::NoHostCollectives(void (*refuse)()) : before_(std::exchange(refuse_host_collective, refuse)) {}

NoHostCollectives::~NoHostCollectives() { refuse_host_collective = before_; }

bool NoHostCollectives::refused() { return refuse_host_collective != nullptr; }

void NoHostCollectives::check() {
  if (refuse_host_collective != nullptr) refuse_host_collective();
}

void FailurePolicy::guarded(const CallNote& call, c10::function_ref<void(int64_t)> action) {
  check_usable(call.name, call.where);
  int64_t number = 0;
  std::optional<Busy> elsewhere;
  tell_other_groups(call, logbook_.get(), elsewhere);
  try {
    if (logbook_) {
      number = logbook_->enter(call);
      compare_on_host(number, call);
    }
    action(number);
  } catch (const UsageError&) {
    if (logbook_) logbook_->leave(number);
    throw;  // nothing has been sent
  } catch (const GroupLost& lost) {
    fail(call.name, call.where, "", lost.mismatch);
  } catch (const std::exception& error) {
    if (!NoHostCollectives::refused()) fail(call.name, call.where, words_of(error));
    if (logbook_) logbook_->leave(number);
    throw;
  }
  if (logbook_) logbook_->leave(number);
}

int64_t FailurePolicy::announce(const CallNote& call) {
  check_usable(call.name, call.where);
  if (!logbook_) return 0;
  const int64_t number = logbook_->announce(call);
  check_announced(number, call);
  return number;
}

void FailurePolicy::check_announced(int64_t number, const CallNote& call) {
  try {
    compare_on_host(number, call);
    check_not_lost();
  } catch (const GroupLost& lost) {
    fail(call.name, call.where, "", lost.mismatch);
  } catch (const std::exception& error) {
    fail(call.name, call.where, words_of(error));
  }
}

void FailurePolicy::guarded_aside(const char* call, const std::string& what, std::source_location where,
                                  c10::function_ref<void()> action) {
  check_usable(call, where);
  Activity activity = Activity::at(what, where);
  const Busy elsewhere(activity, Busy::logbooks_beside(logbook_.get()));
  activity.waits = 1;
  const Busy here(activity, logbook_ ? Logbooks{logbook_} : Logbooks());
  try {
    check_not_lost();
    action();
  } catch (const UsageError&) {
    throw;  // nothing has been sent
  } catch (const GroupLost&) {
    fail(call, where, "");
  } catch (const std::exception& error) {
    fail(call, where, words_of(error));
  }
}

void FailurePolicy::compare_on_host(int64_t number, const CallNote& call) const {
  if (detective_->is_contradicted(number)) throw GroupLost(number);
  if (call.must_agree()) detective_->let_others_catch_up(number, timeout_);
}

void FailurePolicy::check_not_lost() const {
  if (logbook_ && detective_->is_told()) throw GroupLost();
}

void FailurePolicy::check_usable(const char* call, std::source_location where) {
  if (!failed_) return;
  const std::lock_guard lock(diagnosis_mutex_);
  throw DistributedError(std::string(call) + at_line(where) + " cannot run: the process group is unusable since " + diagnosis_);
}

bool FailurePolicy::is_lost(int look) const {
  if (!detective_) return false;
  return look % kLooksForDead == 0 ? detective_->is_lost() : detective_->is_told();
}

/// Gloo notices a dead peer only on the connections to it, and not while a child of that peer holds them open. Who waits for
/// another one looks now and then whether the group is lost.
void FailurePolicy::wait(c10d::Work& work) {
  if (!detective_) {
    work.wait();
    return;
  }
  for (int look = 1;; ++look) {
    try {
      work.wait(kLostLook);
      return;
    } catch (const std::exception&) {
      if (work.isCompleted()) {
        work.wait();  // it failed, or ended just now
        return;
      }
    }
    if (!is_lost(look)) continue;
    abandon();
    throw std::runtime_error("The collective cannot complete: the process group is lost.");
  }
}

void FailurePolicy::fail(const char* call, std::source_location where, const std::string& reason, int64_t mismatch) {
  std::string diagnosis = std::string(call) + at_line(where) + " failed on rank " + std::to_string(rank_) + " of " +
                          std::to_string(size_) + names_.aside(rank_) + ": ";
  diagnosis += detective_ ? detective_->explain(reason, mismatch) : reason;
  if (detective_ && !reason.empty()) diagnosis += "\nBackend error: " + reason;
  if (logbook_) logbook_->end(Ending::failed);
  leave_failure_note(FailureNote::collective);  // the launcher must not blame this rank for ending before the cause
  {
    const std::lock_guard lock(diagnosis_mutex_);
    if (!failed_.exchange(true)) diagnosis_ = diagnosis;
  }
  throw DistributedError(diagnosis);
}

void FailurePolicy::leave_group(bool unwinding) {
  if (logbook_) logbook_->end(failed_ || unwinding ? Ending::failed : Ending::finished);
  if (unwinding && !failed_) leave_failure_note(FailureNote::own);
}

}  // namespace accelerate::detail
