#include "distributed/background_collective.h"

#include <utility>

#include "distributed/failure_policy.h"
#include "distributed/logbook.h"
#include "rendezvous/c10d_compat.h"

namespace accelerate::detail {

BackgroundCollective::BackgroundCollective(FailurePolicy& failures, const CallNote& call, int64_t number, StartedCollective work,
                                           bool on_host)
    : failures_(&failures), name_(call.name), where_(call.where), number_(number), work_(std::move(work)), on_host_(on_host) {}

BackgroundCollective::BackgroundCollective(BackgroundCollective&& other) noexcept { *this = std::move(other); }

BackgroundCollective& BackgroundCollective::operator=(BackgroundCollective&& other) noexcept {
  if (this == &other) return *this;
  leave();
  failures_ = other.failures_;
  name_ = other.name_;
  where_ = other.where_;
  number_ = other.number_;
  work_ = std::exchange(other.work_, {});
  on_host_ = other.on_host_;
  return *this;
}

BackgroundCollective::~BackgroundCollective() { leave(); }

void BackgroundCollective::leave() noexcept {
  if (work_ && failures_->logbook() != nullptr) failures_->logbook()->leave(number_);
  work_.reset();
}

void BackgroundCollective::wait() {
  if (!work_) return;
  if (!on_host_) {
    work_->wait();
    return leave();
  }
  if (failures_->logbook() != nullptr) failures_->logbook()->begin_waiting(number_);
  try {
    failures_->wait(*work_);
  } catch (const std::exception& error) {
    failures_->fail(name_, where_, words_of(error));
  }
  leave();
}

}  // namespace accelerate::detail
