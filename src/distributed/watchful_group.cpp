#include "distributed/watchful_group.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "distributed/pass_tracker.h"
#include "rendezvous/without_signals.h"
#include "transport/transport.h"

namespace accelerate::detail {
namespace {

/// How often the futures of collectives are looked at.
constexpr std::chrono::milliseconds kFutureLook{100};

/// A collective of a backend, waited for as one of a pass.
class WatchfulWork : public c10d::Work {
 public:
  WatchfulWork(PassTracker& passes, c10::intrusive_ptr<c10d::Work> work) : passes_(passes), work_(std::move(work)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  bool wait(std::chrono::milliseconds) override {
    passes_.wait_for_work(*work_);
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return passes_.watched(work_->getFuture()); }

 private:
  PassTracker& passes_;
  c10::intrusive_ptr<c10d::Work> work_;
};

bool all_on_cpu(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_cpu(); });
}

/// c10d takes a list for the sake of processes with several devices.
const at::Tensor& only_tensor(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "Expected a collective of one tensor, not of ", tensors.size());
  return tensors.front();
}

std::string words_of_failure(const c10::ivalue::Future& failed) {
  try {
    std::rethrow_exception(failed.exception_ptr());
  } catch (const std::exception& error) {
    return words_of(error);
  }
}

}  // namespace

struct CollectiveWatch::Collective {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::atomic<bool> ended = false;
};

struct CollectiveWatch::Shared {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Collective>> under_way;
  /// Those that have ended with an error, and wait for its diagnosis.
  std::vector<std::shared_ptr<Collective>> failed;
  std::string failure;
  bool abandoned = false;
  bool ending = false;

  void end(const std::shared_ptr<Collective>& collective, c10::ivalue::Future& inner) {
    if (collective->ended.exchange(true)) return;
    const bool failing = inner.hasError();
    {
      const std::lock_guard lock(mutex);
      std::erase(under_way, collective);
      if (failing) {
        note_failure(words_of_failure(inner));
        failed.push_back(collective);
      }
    }
    if (failing) {
      changed.notify_all();
    } else {
      collective->future->markCompleted(inner.value(), inner.storages());
    }
  }

  /// Those under way cannot end: they are left to themselves.
  void give_up(const std::string& reason) {
    const std::lock_guard lock(mutex);
    for (const auto& collective : under_way) {
      if (collective->ended.exchange(true)) continue;
      note_failure(reason);
      abandoned = true;
      failed.push_back(collective);
    }
    under_way.clear();
  }

  void note_failure(const std::string& reason) {
    if (failure.empty()) failure = reason;
  }
};

CollectiveWatch::CollectiveWatch(std::function<bool()> is_lost, std::function<void(const std::string&)> fail)
    : is_lost_(std::move(is_lost)), fail_(std::move(fail)), shared_(std::make_shared<Shared>()) {
  const WithoutSignals for_our_thread;
  watcher_ = std::thread([this] { watch(); });
}

CollectiveWatch::~CollectiveWatch() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->changed.notify_all();
  watcher_.join();
}

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWatch::watched(const c10::intrusive_ptr<c10::ivalue::Future>& inner) {
  auto collective = std::make_shared<Collective>();
  collective->future = inner->createInstance(inner->elementType());
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->under_way.push_back(collective);
  }
  inner->addCallback([shared = shared_, collective](c10::ivalue::Future& ended) { shared->end(collective, ended); });
  return collective->future;
}

void CollectiveWatch::watch() {
  std::unique_lock lock(shared_->mutex);
  while (!shared_->ending) {
    shared_->changed.wait_for(lock, kFutureLook, [&] { return shared_->ending || !shared_->failed.empty(); });
    const bool looks = !shared_->under_way.empty();
    lock.unlock();
    if (looks && is_lost_()) shared_->give_up("The collective cannot complete: the process group is lost.");
    tell_failed();
    lock.lock();
  }
}

void CollectiveWatch::tell_failed() {
  std::vector<std::shared_ptr<Collective>> failed;
  {
    const std::lock_guard lock(shared_->mutex);
    failed.swap(shared_->failed);
  }
  if (failed.empty()) return;
  try {
    fail_(failure());
  } catch (...) {
    for (const auto& collective : failed) collective->future->setError(std::current_exception());
  }
}

std::string CollectiveWatch::failure() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->failure;
}

bool CollectiveWatch::abandoned() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->abandoned;
}

WatchfulGroup::WatchfulGroup(PassTracker& passes, Transport& transport)
    : ProcessGroup(transport.rank(), transport.size()),
      passes_(passes),
      transport_(transport),
      group_(transport.process_group()) {
  // A reducer asks the backend for memory that it sends fastest.
  if (const auto device = group_->getBoundDeviceId()) setBoundDeviceId(device);
  for (const auto device : group_->getDeviceTypes()) {
    const auto backend = group_->getBackend(device.type());
    setBackend(device.type(), strToBackendType(backend->getBackendName()), backend);
  }
  setDefaultBackend(group_->getBackendType());
}

c10::intrusive_ptr<c10d::Work> WatchfulGroup::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  // Ranks that have left the scope, as one may that never called finish(), must not mistake it for their own pass.
  if (all_on_cpu(tensors)) passes_.expect_waiting(before_all_reduce_ ? "in join_uneven_inputs" : "");
  if (before_all_reduce_) before_all_reduce_(tensors.front());
  if (!all_on_cpu(tensors)) return group_->allreduce(tensors, options);
  return c10::make_intrusive<WatchfulWork>(passes_, transport_.all_reduce(only_tensor(tensors), options.reduceOp));
}

c10::intrusive_ptr<c10d::Work> WatchfulGroup::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  if (!all_on_cpu(tensors)) return group_->broadcast(tensors, options);
  passes_.announce_pass();
  return c10::make_intrusive<WatchfulWork>(passes_,
                                           transport_.broadcast(only_tensor(tensors), static_cast<int>(options.rootRank)));
}

}  // namespace accelerate::detail
