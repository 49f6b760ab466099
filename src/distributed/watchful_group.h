#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/c10d_compat.h"

namespace accelerate::detail {

class PassTracker;
class Transport;

/// Futures of collectives that are under way. Gloo never completes one whose peer died elsewhere in the ring, and who waits for a
/// future cannot look around, so a thread looks for it: when the group is lost, all of them fail.
class CollectiveWatch {
 public:
  /// `fail` throws the error of a collective that failed for a reason. Called by a separate thread.
  CollectiveWatch(std::function<bool()> is_lost, std::function<void(const std::string&)> fail);
  ~CollectiveWatch();
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  /// A future that ends as `inner` does, or with what `fail` throws when that has failed or the group is lost.
  c10::intrusive_ptr<c10::ivalue::Future> watched(const c10::intrusive_ptr<c10::ivalue::Future>& inner);
  /// Why the first collective failed; empty when none has.
  std::string failure() const;
  /// True when a collective was left to itself: it cannot end.
  bool abandoned() const;

 private:
  struct Collective;
  struct Shared;

  void watch();
  void tell_failed();

  const std::function<bool()> is_lost_;
  const std::function<void(const std::string&)> fail_;
  const std::shared_ptr<Shared> shared_;  // with callbacks that may run later
  std::thread watcher_;
};

/// The group that a reducer of gradients sees: the collectives of a transport, started in the background. On the CPU a rank that
/// waits for one learns of a dead peer; on other devices the backend's own watchdog sees to that.
class WatchfulGroup : public c10d::ProcessGroup {
 public:
  WatchfulGroup(PassTracker& passes, Transport& transport);

  const std::string getBackendName() const override { return "accelerate"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;

  /// Called before each all-reduce with what is about to be added up; may be empty.
  void before_all_reduce(std::function<void(const at::Tensor&)> action) { before_all_reduce_ = std::move(action); }

 private:
  PassTracker& passes_;
  Transport& transport_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::function<void(const at::Tensor&)> before_all_reduce_;
};

}  // namespace accelerate::detail
