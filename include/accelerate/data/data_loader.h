#pragma once

#include <accelerate/data/data_loader_options.h>
#include <accelerate/data/dataset_reader.h>
#include <accelerate/distributed/value.h>

#include <iterator>
#include <memory>
#include <source_location>
#include <utility>

namespace accelerate {
namespace detail {

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

  /// The next pass is number `epoch`, counted from 0; it decides the order of a seedable sampler. Passes that come to their end
  /// count on by themselves.
  void set_epoch(int64_t epoch);
  int64_t iteration() const;

  /// The batch in hand is the last one: of the newest pass over this loader, which must be a prepared one.
  bool end_of_dataloader() const;
  /// How many samples of the last batch of all processes together are no repetition; 0: all, -1: not known.
  int64_t remainder() const;

  /// Sets even_batches of a prepared loader for the passes that begin from now on, and returns what it was. Nothing for loaders
  /// that do not have a choice: those of iterable datasets, dispatched ones, and that of a single process.
  std::optional<bool> set_even_batches(bool even_batches);

  /// How far the newest pass over a prepared loader has come: its number, the batches that were handed out, and the random
  /// numbers that its order was drawn from. The state of the main process serves all.
  StateDict state_dict() const;
  /// The next pass goes on where that one was: the same batches follow, and none when the last one was out. It may have been one
  /// among another number of processes; then the samples that were left are shared out anew. `skip_first_batches` replaces the
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

/// Where a pass is. It holds the pass; its copies hold the same one.
template <class Batch>
class LoaderIterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  LoaderIterator() = default;
  explicit LoaderIterator(std::shared_ptr<LoaderPass> pass) : pass_(std::move(pass)) { ++*this; }

  /// The batch in hand, the user's to change or move from until the next step.
  Batch& operator*() const { return *static_cast<Batch*>(batch_.get()); }
  Batch* operator->() const { return static_cast<Batch*>(batch_.get()); }
  LoaderIterator& operator++() {
    batch_.reset();
    batch_ = pass_->next();
    if (!batch_) pass_.reset();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return !batch_; }

 private:
  std::shared_ptr<LoaderPass> pass_;
  ErasedBatch batch_;
};

}  // namespace detail

/// Reads a dataset in batches. Made from any dataset, with the type of its batches found by itself:
///
///   accelerate::DataLoader train(dataset, {.batch_size = 32, .shuffle = true});
///   for (auto& [inputs, targets] : train) ...
///
/// A batch is a sample with its tensors stacked, or what a function of your own makes of a std::vector of samples. What an
/// accelerator prepares from it is a DataLoader again, one that gives each process its part. Copies are the same loader.
template <class Batch>
class DataLoader : public detail::AnyDataLoader {
 public:
  template <detail::AnyDataset D>
  explicit DataLoader(D dataset, DataLoaderOptions options = {})
      : AnyDataLoader(
            detail::make_loader(detail::make_reader(std::move(dataset), detail::DefaultCollate()), std::move(options))) {}

  /// `collate` is called with a std::vector of samples, with workers by several threads at once.
  template <detail::AnyDataset D, std::invocable<std::vector<detail::SampleOf<D>>> Collate>
  DataLoader(D dataset, Collate collate, DataLoaderOptions options = {})
      : AnyDataLoader(detail::make_loader(detail::make_reader(std::move(dataset), std::move(collate)), std::move(options))) {}

  /// The loader that `handle` is, whose batches must be of this type.
  explicit DataLoader(detail::AnyDataLoader handle) : AnyDataLoader(std::move(handle)) {}

  /// Begins a pass, which lasts as long as the iterator and its copies. Several may be under way at once.
  detail::LoaderIterator<Batch> begin(std::source_location where = std::source_location::current()) const {
    return detail::LoaderIterator<Batch>(begin_pass(where));
  }
  std::default_sentinel_t end() const { return {}; }
};

template <detail::AnyDataset D>
DataLoader(D, DataLoaderOptions = {}) -> DataLoader<detail::BatchOf<D>>;
template <detail::AnyDataset D, std::invocable<std::vector<detail::SampleOf<D>>> Collate>
DataLoader(D, Collate, DataLoaderOptions = {}) -> DataLoader<detail::BatchOf<D, Collate>>;

/// The same loader without its first `num_batches` batches, for an epoch that was interrupted. Those of a map-style dataset are
/// not even read. Use the original again for the next epoch.
template <class Batch>
DataLoader<Batch> skip_first_batches(const DataLoader<Batch>& loader, int64_t num_batches) {
  return DataLoader<Batch>(detail::skip_first_batches(loader, num_batches));
}

}  // namespace accelerate
