#pragma once

#include <accelerate/data/active_loaders.h>
#include <accelerate/data/data_loader.h>
#include <accelerate/data/data_loader_configuration.h>
#include <accelerate/distributed/process_state.h>
#include <accelerate/distributed/random.h>

#include <memory>
#include <optional>
#include <vector>

namespace accelerate {

/// What a loader is prepared for.
struct LoaderPreparation {
  ProcessState state;
  /// Where its loops are registered; null: nowhere.
  std::shared_ptr<ActiveLoaders> active_loaders = {};
  DataLoaderConfiguration configuration = {};
  /// Move batches to the device of `state`.
  bool put_on_device = true;
  /// Which random numbers are made equal on all processes at the start of each pass; `generator` is that of the sampler.
  std::vector<RngType> rng_types = {RngType::generator};
  /// Among whom the data are sharded, and which part is read here; by default that of `state`. Not for dispatched loaders.
  std::optional<int> num_processes = {};
  std::optional<int> process_index = {};
};

namespace detail {
AnyDataLoader prepare_loader(const AnyDataLoader& loader, const LoaderPreparation& preparation);
}  // namespace detail

/// The same loader with this process's part of the data. A loader that is prepared already is returned as it is. UsageError when
/// the batch size and split_batches do not fit, or dispatch_batches is wanted where it cannot be.
template <class Batch>
DataLoader<Batch> prepare_data_loader(const DataLoader<Batch>& loader, const LoaderPreparation& preparation) {
  return DataLoader<Batch>(detail::prepare_loader(loader, preparation));
}

}  // namespace accelerate
