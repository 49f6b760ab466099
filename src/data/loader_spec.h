#pragma once

#include <accelerate/data/batch_reader.h>
#include <accelerate/data/data_loader_options.h>
#include <accelerate/data/sharding.h>

#include <memory>
#include <optional>
#include <string>

namespace accelerate::detail {

class KeptWorkers;

/// What a loader reads, in which order, and by which means. Samplers and datasets are shared with the loaders made from it.
struct LoaderSpec {
  std::shared_ptr<BatchReader> reader;
  DataLoaderOptions options;
  /// The order of a map-style dataset; null when the user gave the batches.
  std::shared_ptr<Sampler> sampler = {};
  /// Its batches; null when samples are handed out as they are.
  std::shared_ptr<BatchSampler> batches = {};
  /// Samples in a batch of an iterable dataset.
  std::optional<int64_t> iterable_batch = {};
  /// Which part of an iterable dataset is read.
  std::optional<IterableShardOptions> shard = {};
  /// The workers between passes, where they persist.
  std::shared_ptr<KeptWorkers> workers = {};
  /// Of the dataset when the loader was made, where a sampler of the user's own may not know that it has shrunk since.
  std::optional<int64_t> length_when_made = {};
  /// The dataset's type, for messages.
  std::string dataset_type = {};

  bool iterable() const { return reader->iterable(); }
  bool batched() const { return iterable() ? iterable_batch.has_value() : batches != nullptr; }
  /// Samples that are read, as Python counts them.
  std::optional<int64_t> samples() const;
  /// Samples that a pass of all processes together visits, before any are repeated; of an iterable dataset, `samples`. Nothing
  /// when it is not known, or not all of them come: drop_last.
  std::optional<int64_t> visited() const;
  /// Batches of a pass, as Python counts them.
  std::optional<int64_t> length() const;
  /// Samples in a batch before it is sharded.
  std::optional<int64_t> whole_batch_size() const;
  /// Samples in a step of all processes, as Python counts them.
  std::optional<int64_t> total_batch_size() const;
  void set_epoch(int64_t epoch) const;
};

/// Checks the options and makes the samplers they stand for.
LoaderSpec make_loader_spec(std::shared_ptr<BatchReader> reader, DataLoaderOptions options);

}  // namespace accelerate::detail
