#include "transport/ring_reduce_scatter.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <accelerate/core/error.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "rendezvous/c10d_compat.h"
#include "rendezvous/without_signals.h"

namespace accelerate::detail {

/// A reduce-scatter that is queued, runs, or has ended.
class RingWork : public c10d::Work {
 public:
  RingWork(at::Tensor its_output, at::Tensor its_input, c10d::ReduceOp::RedOpType its_operation, int its_tag)
      : output(std::move(its_output)), input(std::move(its_input)), operation(its_operation), tag(its_tag) {}

  void end(std::exception_ptr error) { finish(std::move(error)); }

  at::Tensor output, input;
  const c10d::ReduceOp::RedOpType operation;
  const int tag;
};

namespace {

/// Above the tags of anything else in the group.
constexpr int kFirstRingTag = 1 << 30;

void reduce_into(at::Tensor& sum, const at::Tensor& other, c10d::ReduceOp::RedOpType operation) {
  switch (operation) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
      sum.add_(other);
      return;
    case c10d::ReduceOp::MAX:
      at::maximum_out(sum, sum, other);
      return;
    case c10d::ReduceOp::MIN:
      at::minimum_out(sum, sum, other);
      return;
    default:
      throw UsageError("reduce_scatter on a CPU adds, averages, or takes the largest or smallest.");
  }
}

/// One hop: sends `mine` to the next rank while `theirs` arrives from the one before.
void pass_on(c10d::Backend& backend, const at::Tensor& mine, at::Tensor& theirs, int tag) {
  const int rank = backend.getRank(), size = backend.getSize();
  std::vector<at::Tensor> sent = {mine}, received = {theirs};
  const auto receiving = backend.recv(received, (rank + size - 1) % size, tag);
  const auto sending = backend.send(sent, (rank + 1) % size, tag);
  receiving->wait();
  sending->wait();
}

void run_ring(c10d::Backend& backend, RingWork& work) {
  const c10::NoGradGuard no_grad;
  const int rank = backend.getRank(), size = backend.getSize();
  const int64_t elements = work.output.numel();
  const auto input = work.input.view({size, elements});
  at::Tensor output = work.output.view({elements});
  const auto part = [&](int number) { return input[(number + 2 * size) % size]; };
  // A sum travels around the ring and ends at the rank it belongs to. Two buffers: one is sent while the other is filled.
  at::Tensor sent = part(rank - 1), spare;
  for (int hop = 0; hop < size - 1; ++hop) {
    const bool last = hop == size - 2;
    at::Tensor received = last ? output : spare.defined() ? spare : at::empty_like(output);
    pass_on(backend, sent, received, work.tag);
    reduce_into(received, part(rank - hop - 2), work.operation);
    spare = hop > 0 ? sent : at::Tensor();
    sent = received;
  }
  if (size == 1) output.copy_(input[0]);
  if (work.operation == c10d::ReduceOp::AVG) output.div_(size);
}

}  // namespace

/// What was started and has not ended, and the thread that works on it.
class RingReduceScatter::Queue {
 public:
  explicit Queue(c10d::Backend& backend) : backend_(backend) {}
  ~Queue() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_one();
    if (thread_) thread_->join();
  }

  void push(c10::intrusive_ptr<RingWork> work) {
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
    const WithoutSignals for_the_thread;
    if (!thread_) thread_.emplace([this] { run(); });
    changed_.notify_one();
  }
  int next_tag() { return kFirstRingTag + tags_++ % kFirstRingTag; }

 private:
  void run() {
    for (;;) {
      c10::intrusive_ptr<RingWork> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closed_ || !works_.empty(); });
        if (works_.empty()) return;
        work = std::move(works_.front());
        works_.pop_front();
      }
      std::exception_ptr error;
      try {
        run_ring(backend_, *work);
      } catch (...) {
        error = std::current_exception();
      }
      // Nobody who waits for the end may still find the tensors in use.
      work->output.reset();
      work->input.reset();
      work->end(error);
    }
  }

  c10d::Backend& backend_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<RingWork>> works_;
  std::optional<std::thread> thread_;
  bool closed_ = false;
  std::atomic<int> tags_ = 0;
};

RingReduceScatter::RingReduceScatter(c10d::Backend& backend) : queue_(std::make_unique<Queue>(backend)) {}
RingReduceScatter::~RingReduceScatter() = default;

c10::intrusive_ptr<c10d::Work> RingReduceScatter::start(const at::Tensor& output, const at::Tensor& input,
                                                        c10d::ReduceOp::RedOpType operation) {
  auto work = c10::make_intrusive<RingWork>(output, input, operation, queue_->next_tag());
  queue_->push(work);
  return work;
}

}  // namespace accelerate::detail
