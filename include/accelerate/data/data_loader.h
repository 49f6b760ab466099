#pragma once

#include <accelerate/data/any_data_loader.h>
#include <accelerate/data/dataset_reader.h>

#include <iterator>
#include <memory>
#include <source_location>
#include <utility>

namespace accelerate {
namespace detail {

/// Where a pass is. It holds the pass; its copies hold the same one.
template <class Batch>
class LoaderIterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  LoaderIterator() = default;
  explicit LoaderIterator(std::shared_ptr<LoaderPass> pass) : pass_(std::move(pass)) { ++*this; }

  /// The current batch, which the user may change or move from until the next step.
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
