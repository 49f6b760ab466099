#pragma once

#include <accelerate/data/data_loader_options.h>
#include <accelerate/data/erased_batch.h>
#include <accelerate/distributed/value.h>

#include <memory>
#include <optional>
#include <source_location>
#include <utility>

namespace accelerate::detail {

class BatchReader;

/// One pass over a loader on this process: over all data, over its own part, or over what the main process sends it. It ends when
/// it is destroyed.
class LoaderPass {
 public:
  virtual ~LoaderPass() = default;
  /// The next batch; null at the end.
  virtual ErasedBatch next() = 0;
};

/// A data loader whatever its batches are. DataLoader adds their type, Core is what copies share, since they are the same loader:
/// all three are one layer.
class AnyDataLoader {
 public:
  struct Core;
  explicit AnyDataLoader(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  /// How many batches a pass of this process has. UsageError when the dataset does not know its size.
  int64_t size() const;
  /// The same, or nothing.
  std::optional<int64_t> known_size() const;
  /// Samples in a batch of the loader as it was made; nothing when it was made without, or with batches of the user's own.
  std::optional<int64_t> batch_size() const;
  /// Samples that all processes together take in a step. UsageError when batches vary.
  int64_t total_batch_size() const;
  /// Samples in the dataset; of an iterable one that processes read each for itself, this process's part of it. UsageError when
  /// the dataset does not know its size.
  int64_t total_dataset_length() const;

  /// The next pass is number `epoch`, counted from 0; it decides the order of a seedable sampler. Passes that reach their end
  /// advance the count.
  void set_epoch(int64_t epoch);
  int64_t iteration() const;

  /// The current batch is the last one: of the newest pass over this loader, which must be a prepared one.
  bool end_of_dataloader() const;
  /// How many samples of the last batch of all processes together are no repetition; 0: all, -1: not known.
  int64_t remainder() const;

  /// Sets even_batches of a prepared loader for the passes that begin from now on, and returns what it was. Nothing for loaders
  /// that do not have a choice: those of iterable datasets, dispatched ones, and that of a single process.
  std::optional<bool> set_even_batches(bool even_batches);

  /// Progress of the newest pass over a prepared loader: its number, the batches that were handed out, and the random
  /// numbers that its order was drawn from. The state of the main process serves all.
  StateDict state_dict() const;
  /// The next pass resumes where that one was: the same batches follow, and none when the last one was out. It may have been one
  /// among another number of processes; then the remaining samples are sharded again. `skip_first_batches` replaces the
  /// position. UsageError, with nothing changed, when it was in the middle of a pass over data of another length or in another
  /// order, or the batches are of another size.
  void load_state_dict(const StateDict& state);

  /// True when an accelerator has prepared it.
  bool prepared() const;

  const std::shared_ptr<Core>& core() const { return core_; }

 protected:
  std::shared_ptr<LoaderPass> begin_pass(std::source_location where) const;

 private:
  std::shared_ptr<Core> core_;
};

/// UsageError when options contradict each other or the dataset.
AnyDataLoader make_loader(std::unique_ptr<BatchReader> reader, DataLoaderOptions options);
AnyDataLoader skip_first_batches(const AnyDataLoader& loader, int64_t num_batches);

}  // namespace accelerate::detail
