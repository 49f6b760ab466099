#include "distributed/pass_tracker.h"

#include <accelerate/core/error.h>
#include <torch/csrc/autograd/engine.h>

#include "distributed/failure_policy.h"
#include "distributed/logbook.h"
#include "distributed/watchful_group.h"

namespace accelerate::detail {

PassTracker::PassTracker(FailurePolicy& failures) : failures_(failures) {}

PassTracker::~PassTracker() {
  if (collective_watch_ && collective_watch_->abandoned()) failures_.abandon();
  collective_watch_.reset();
}

CollectiveWatch& PassTracker::collective_watch() {
  const std::lock_guard lock(mutex_);
  if (!collective_watch_) {
    collective_watch_ = std::make_unique<CollectiveWatch>([this, look = 0]() mutable { return failures_.is_lost(++look); },
                                                          [this](const std::string& reason) { fail_pass(reason); });
  }
  return *collective_watch_;
}

void PassTracker::during(const char* call, std::source_location where, const std::function<void()>& action) {
  failures_.check_usable(call, where);
  {
    const std::lock_guard lock(mutex_);
    pass_ = Pass{call, where};
  }
  try {
    action();
  } catch (const c10::DistError& error) {
    begin_waiting();
    failures_.fail(call, where, words_of(error));
  } catch (const DistributedError&) {
    if (!failures_.failed()) end_pass();
    throw;
  } catch (...) {
    if (const std::string reason = collective_watch().failure(); !reason.empty()) failures_.fail(call, where, reason);
    end_pass();
    throw;  // the caller's own: nothing is wrong with the group
  }
  end_pass();
}

void PassTracker::end_pass() {
  const std::lock_guard lock(mutex_);
  if (failures_.logbook() != nullptr && pass_ && pass_->number != 0) failures_.logbook()->leave(pass_->number);
  pass_.reset();
}

void PassTracker::fail_pass(const std::string& reason) {
  begin_waiting();
  Pass pass;
  {
    const std::lock_guard lock(mutex_);
    if (pass_) pass = *pass_;
  }
  failures_.fail(pass.call, pass.where, reason);
}

void PassTracker::wait_for_work(c10d::Work& work) {
  begin_waiting();
  try {
    failures_.wait(work);
  } catch (const std::exception& error) {
    fail_pass(words_of(error));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> PassTracker::watched(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  return collective_watch().watched(future);
}

void PassTracker::announce_pass() {
  CallNote call{.name = ""};
  int64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failures_.logbook() == nullptr || !pass_ || pass_->number != 0) return;
    call = {.name = pass_->call, .where = pass_->where, .how = pass_->how};
    number = pass_->number = failures_.logbook()->announce(call);
  }
  failures_.check_announced(number, call);
}

void PassTracker::begin_waiting() {
  announce_pass();
  const std::lock_guard lock(mutex_);
  if (failures_.logbook() == nullptr || !pass_ || pass_->number == 0 || pass_->waiting) return;
  failures_.logbook()->begin_waiting(pass_->number);
  pass_->waiting = true;
}

void PassTracker::expect_waiting(const char* how) {
  bool unguided = false;
  {
    const std::lock_guard lock(mutex_);
    if (!pass_) pass_ = Pass{.unguided = true};
    unguided = pass_->unguided;
    // One that is not guided may be left over from a pass that ended with an error of the user's own.
    if (pass_->expected && !unguided) return;
    pass_->expected = true;
    pass_->how = how;
  }
  announce_pass();
  auto& engine = torch::autograd::Engine::get_default_engine();
  // Before the reducer's own, which waits; what is queued by then comes after it.
  engine.queue_callback([this, unguided, &engine] {
    begin_waiting();
    if (unguided) engine.queue_callback([this] { end_pass(); });
  });
}

}  // namespace accelerate::detail
