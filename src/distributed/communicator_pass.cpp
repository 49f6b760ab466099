// Passes over a model, in which collectives go on in the background.
#include <accelerate/core/error.h>
#include <torch/csrc/autograd/engine.h>

#include "distributed/communicator.h"

namespace accelerate {

CollectiveWatch& Communicator::collective_watch() {
  const std::lock_guard lock(pass_mutex_);
  if (!collective_watch_) {
    collective_watch_ = std::make_unique<CollectiveWatch>([this, look = 0]() mutable { return detective_ && is_lost(++look); },
                                                          [this](const std::string& reason) { fail_pass(reason); });
  }
  return *collective_watch_;
}

void Communicator::during(const char* call, std::source_location where, const std::function<void()>& action) {
  check_usable(call, where);
  {
    const std::lock_guard lock(pass_mutex_);
    pass_ = Pass{call, where};
  }
  try {
    action();
  } catch (const c10::DistError& error) {
    begin_waiting();
    fail(call, where, words_of(error));
  } catch (const DistributedError&) {
    if (!failed_) end_pass();
    throw;
  } catch (...) {
    if (const std::string reason = collective_watch().failure(); !reason.empty()) fail(call, where, reason);
    end_pass();
    throw;  // the caller's own: nothing is wrong with the group
  }
  end_pass();
}

void Communicator::end_pass() {
  const std::lock_guard lock(pass_mutex_);
  if (logbook_ && pass_ && pass_->number != 0) logbook_->leave(pass_->number);
  pass_.reset();
}

void Communicator::fail_pass(const std::string& reason) {
  begin_waiting();
  Pass pass;
  {
    const std::lock_guard lock(pass_mutex_);
    if (pass_) pass = *pass_;
  }
  fail(pass.call, pass.where, reason);
}

c10::intrusive_ptr<WatchfulGroup> Communicator::background_group() {
  return c10::make_intrusive<WatchfulGroup>(*this, parts_.group);
}

void Communicator::wait_for_work(c10d::Work& work) {
  begin_waiting();
  try {
    if (!detective_) {
      work.wait();
      return;
    }
    wait_watchfully(work);
  } catch (const std::exception& error) {
    fail_pass(words_of(error));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> Communicator::watched(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  return collective_watch().watched(future);
}

void Communicator::announce_pass() {
  CallNote call{.name = ""};
  int64_t number = 0;
  {
    const std::lock_guard lock(pass_mutex_);
    if (!logbook_ || !pass_ || pass_->number != 0) return;
    call = {.name = pass_->call, .where = pass_->where, .how = pass_->how};
    number = pass_->number = logbook_->announce(call);
  }
  try {
    compare_on_host(number, call);
    check_not_lost();
  } catch (const GroupLost& lost) {
    fail(call.name, call.where, "", lost.mismatch);
  } catch (const std::exception& error) {
    fail(call.name, call.where, words_of(error));
  }
}

void Communicator::begin_waiting() {
  announce_pass();
  const std::lock_guard lock(pass_mutex_);
  if (!logbook_ || !pass_ || pass_->number == 0 || pass_->waiting) return;
  logbook_->begin_waiting(pass_->number);
  pass_->waiting = true;
}

void Communicator::expect_waiting(const char* how) {
  bool unguided = false;
  {
    const std::lock_guard lock(pass_mutex_);
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

}  // namespace accelerate
