#include "data/worker_stream.h"

#include <ATen/ThreadLocalState.h>
#include <accelerate/core/error.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>

#include "distributed/busy.h"

namespace accelerate::detail {

/// What the training thread and the workers of one pass share. It outlives the pass when a worker does.
struct WorkerStream::Shelf {
  /// One batch: under way, ready, failed, or behind the end.
  struct Place {
    bool ready = false;
    ErasedBatch batch = {};
    std::exception_ptr failure = {};
    /// For messages.
    Indices indices = {};
  };

  Shelf(BatchMaker how, Source<BatchSpec> what) : make(std::move(how)), specs(std::move(what)) {}

  const BatchMaker make;
  const Source<BatchSpec> specs;
  const at::ThreadLocalState settings;  // grad mode and the like, as where the pass began

  std::mutex mutex;
  std::condition_variable changed;
  /// From the first one that has not been taken.
  std::deque<Place> places;
  int64_t first = 0;
  int running = 0;
  bool closed = false;

  /// Held by the worker that reads on in a stream; `advanced` batches have been read and `ended` tells that there are no more.
  std::mutex advancing;
  int64_t advanced = 0;
  bool ended = false;

  bool begin_job() {
    const std::lock_guard lock(mutex);
    if (closed) return false;
    ++running;
    return true;
  }
  void end_job(int64_t number, ErasedBatch batch, std::exception_ptr failure) {
    {
      const std::lock_guard lock(mutex);
      --running;
      if (number >= first) {
        Place& place = places[static_cast<size_t>(number - first)];
        place.ready = true;
        place.batch = std::move(batch);
        place.failure = std::move(failure);
      }
    }
    changed.notify_all();
  }

  /// The next batch of a stream. Workers take them in the order in which they ask.
  std::optional<BatchSpec> advance(int64_t& number) {
    const std::lock_guard lock(advancing);
    number = advanced++;
    if (ended) return std::nullopt;
    try {
      auto batch_spec = specs();
      ended = !batch_spec;
      return batch_spec;
    } catch (...) {
      ended = true;
      throw;
    }
  }

  void read_ahead() {
    int64_t number = 0;
    run(number, [&]() -> ErasedBatch {
      const auto batch_spec = advance(number);
      return batch_spec ? make(*batch_spec) : nullptr;
    });
  }
  void read(int64_t number, const BatchSpec& batch_spec) {
    run(number, [&] { return make(batch_spec); });
  }

  template <class Work>
  void run(int64_t& number, Work&& work) {
    if (!begin_job()) return;
    ErasedBatch batch;
    std::exception_ptr failure;
    try {
      const at::ThreadLocalStateGuard guard(settings);
      batch = work();
    } catch (...) {
      failure = std::current_exception();
    }
    end_job(number, std::move(batch), std::move(failure));
  }
};

WorkerStream::WorkerStream(const LoaderSpec& spec, BatchMaker make, Source<BatchSpec> specs, std::shared_ptr<WorkerPool> pool)
    : shelf_(std::make_shared<Shelf>(std::move(make), std::move(specs))),
      pool_(std::move(pool)),
      dataset_type_(spec.dataset_type),
      workers_advance_(spec.iterable()),
      timeout_(spec.options.timeout),
      most_ordered_(int64_t(spec.options.num_workers) * spec.options.prefetch_factor.value_or(2)) {}

WorkerStream::~WorkerStream() {
  std::unique_lock lock(shelf_->mutex);
  shelf_->closed = true;
  // Workers that persist would else read on in the dataset while the next pass begins.
  if (!pool_->abandoned()) shelf_->changed.wait(lock, [&] { return shelf_->running == 0; });
}

std::optional<BatchSpec> WorkerStream::next_spec() {
  try {
    auto batch_spec = shelf_->specs();
    all_ordered_ = !batch_spec;
    return batch_spec;
  } catch (...) {
    give_up();
    throw;
  }
}

void WorkerStream::give_up() {
  {
    const std::lock_guard lock(shelf_->mutex);
    shelf_->closed = true;
  }
  all_ordered_ = true;
  taken_ = ordered_;
}

void WorkerStream::order() {
  while (!all_ordered_ && ordered_ - taken_ < most_ordered_) {
    Shelf::Place place;
    std::function<void()> job;
    if (workers_advance_) {
      job = [shelf = shelf_] { shelf->read_ahead(); };
    } else if (auto batch_spec = next_spec()) {
      place.indices = batch_spec->indices;
      job = [shelf = shelf_, number = ordered_, what = std::move(*batch_spec)] { shelf->read(number, what); };
    } else {
      return;
    }
    {
      const std::lock_guard lock(shelf_->mutex);
      shelf_->places.push_back(std::move(place));
    }
    ++ordered_;
    pool_->post(std::move(job));
  }
}

ErasedBatch WorkerStream::next() {
  order();
  if (taken_ == ordered_) return nullptr;
  Shelf::Place place;
  {
    std::unique_lock lock(shelf_->mutex);
    if (!wait_for_next(lock)) {
      const Indices late = shelf_->places.front().indices;
      lock.unlock();
      too_late(late);
    }
    place = std::move(shelf_->places.front());
    shelf_->places.pop_front();
    ++shelf_->first;
  }
  ++taken_;
  if (place.failure || !place.batch) give_up();
  if (place.failure) std::rethrow_exception(place.failure);
  return place.batch;
}

bool WorkerStream::wait_for_next(std::unique_lock<std::mutex>& lock) {
  const auto ready = [&] { return shelf_->places.front().ready; };
  if (ready()) return true;
  const Busy busy("DataLoader", dataset_type_);
  if (timeout_ != 0) return shelf_->changed.wait_for(lock, std::chrono::duration<double>(timeout_), ready);
  shelf_->changed.wait(lock, ready);
  return true;
}

void WorkerStream::too_late(const Indices& indices) {
  const std::string which =
      "batch " + std::to_string(taken_) + " of " + dataset_type_ + (indices.empty() ? "" : " (" + samples_text(indices) + ")");
  pool_->abandon();
  give_up();
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g", timeout_);
  throw Error(which + " was not read within timeout=" + seconds +
              " seconds. Check what its worker is waiting for, or raise timeout.");
}

}  // namespace accelerate::detail
