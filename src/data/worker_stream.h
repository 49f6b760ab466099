#pragma once

#include <memory>

#include "data/batch_spec.h"
#include "data/batch_stream.h"
#include "data/worker_pool.h"

namespace accelerate::detail {

/// Batches that workers read ahead, in order.
class WorkerStream : public BatchStream {
 public:
  WorkerStream(const LoaderSpec& spec, BatchMaker make, Source<BatchSpec> specs, std::shared_ptr<WorkerPool> pool);
  /// Waits for the batches that are being read right now, unless one was late.
  ~WorkerStream() override;
  ErasedBatch next() override;

 private:
  struct Shelf;
  /// Has workers read until enough batches are under way.
  void order();
  /// What the next batch is to be made of, while there is one; else nothing is ordered any more.
  std::optional<BatchSpec> next_spec();
  /// Nothing comes any more, and what has not begun is not read.
  void give_up();
  /// False when it took too long.
  bool wait_for_next(std::unique_lock<std::mutex>& lock);
  [[noreturn]] void too_late(const Indices& indices);

  std::shared_ptr<Shelf> shelf_;
  std::shared_ptr<WorkerPool> pool_;
  const std::string dataset_type_;
  /// Workers also find out what comes next, since that is the reading.
  const bool workers_advance_;
  const double timeout_;
  const int64_t most_ordered_;
  int64_t ordered_ = 0, taken_ = 0;
  bool all_ordered_ = false;
};

}  // namespace accelerate::detail
