#include "distributed/watchful_group.h"

#include <algorithm>
#include <stdexcept>

#include "distributed/communicator.h"
#include "distributed/without_signals.h"

namespace accelerate {
namespace {

/// How often the futures of exchanges are looked at.
constexpr std::chrono::milliseconds kFutureLook{1000};

/// An exchange of a backend, waited for as the communicator waits for its own.
class WatchfulWork : public c10d::Work {
 public:
  WatchfulWork(Communicator& communicator, c10::intrusive_ptr<c10d::Work> work)
      : communicator_(communicator), work_(std::move(work)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  bool wait(std::chrono::milliseconds) override {
    communicator_.wait_for_work(*work_);
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return communicator_.watched(work_->getFuture()); }

 private:
  Communicator& communicator_;
  c10::intrusive_ptr<c10d::Work> work_;
};

bool all_on_cpu(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_cpu(); });
}

}  // namespace

struct ExchangeWatch::Exchange {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::atomic<bool> ended = false;
};

struct ExchangeWatch::Shared {
  mutable std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> under_way;
  std::string failure;
  bool abandoned = false;

  void note_failure(const std::string& reason) {
    const std::lock_guard lock(mutex);
    if (failure.empty()) failure = reason;
  }

  void end(const std::shared_ptr<Exchange>& exchange, c10::ivalue::Future& inner) {
    if (exchange->ended.exchange(true)) return;
    {
      const std::lock_guard lock(mutex);
      std::erase(under_way, exchange);
    }
    if (!inner.hasError()) {
      exchange->future->markCompleted(inner.value(), inner.storages());
      return;
    }
    try {
      std::rethrow_exception(inner.exception_ptr());
    } catch (const std::exception& error) {
      note_failure(words_of(error));
    }
    exchange->future->setError(inner.exception_ptr());
  }

  void give_up(const char* reason) {
    std::vector<std::shared_ptr<Exchange>> left;
    {
      const std::lock_guard lock(mutex);
      left.swap(under_way);
    }
    for (const auto& exchange : left) {
      if (exchange->ended.exchange(true)) continue;
      note_failure(reason);
      {
        const std::lock_guard lock(mutex);
        abandoned = true;
      }
      exchange->future->setError(std::make_exception_ptr(std::runtime_error(reason)));
    }
  }
};

ExchangeWatch::ExchangeWatch(std::function<bool()> is_lost) : is_lost_(std::move(is_lost)), shared_(std::make_shared<Shared>()) {
  const WithoutSignals for_our_thread;
  watcher_ = std::thread([this] { watch(); });
}

ExchangeWatch::~ExchangeWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

c10::intrusive_ptr<c10::ivalue::Future> ExchangeWatch::watched(const c10::intrusive_ptr<c10::ivalue::Future>& inner) {
  auto exchange = std::make_shared<Exchange>();
  exchange->future = inner->createInstance(inner->elementType());
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->under_way.push_back(exchange);
  }
  inner->addCallback([shared = shared_, exchange](c10::ivalue::Future& ended) { shared->end(exchange, ended); });
  return exchange->future;
}

void ExchangeWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kFutureLook, [&] { return ending_; })) {
    bool idle = false;
    {
      const std::lock_guard looking(shared_->mutex);
      idle = shared_->under_way.empty();
    }
    if (!idle && is_lost_()) shared_->give_up("The exchange cannot end, since the group is lost.");
  }
}

std::string ExchangeWatch::failure() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->failure;
}

bool ExchangeWatch::abandoned() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->abandoned;
}

void ExchangeWatch::note_failure(const std::string& reason) { shared_->note_failure(reason); }

WatchfulGroup::WatchfulGroup(Communicator& communicator, const c10::intrusive_ptr<c10d::ProcessGroup>& group)
    : ProcessGroup(group->getRank(), group->getSize()), communicator_(communicator), group_(group) {
  // A reducer asks the backend for memory that it exchanges best.
  if (const auto device = group->getBoundDeviceId()) setBoundDeviceId(device);
  for (const auto device : group->getDeviceTypes()) {
    const auto backend = group->getBackend(device.type());
    setBackend(device.type(), strToBackendType(backend->getBackendName()), backend);
  }
  setDefaultBackend(group->getBackendType());
}

c10::intrusive_ptr<c10d::Work> WatchfulGroup::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  if (before_all_reduce_) before_all_reduce_(tensors.front());
  if (!all_on_cpu(tensors)) return group_->allreduce(tensors, options);
  communicator_.expect_waiting();
  auto work = communicator_.start([&](c10d::Backend& backend) { return backend.allreduce(tensors, options); });
  return c10::make_intrusive<WatchfulWork>(communicator_, std::move(work));
}

c10::intrusive_ptr<c10d::Work> WatchfulGroup::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  if (!all_on_cpu(tensors)) return group_->broadcast(tensors, options);
  auto work = communicator_.start([&](c10d::Backend& backend) { return backend.broadcast(tensors, options); });
  return c10::make_intrusive<WatchfulWork>(communicator_, std::move(work));
}

}  // namespace accelerate
