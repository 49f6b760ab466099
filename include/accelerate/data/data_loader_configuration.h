#pragma once

#include <cstdint>
#include <optional>

namespace accelerate {

/// How prepared data loaders share their data out among processes.
struct DataLoaderConfiguration {
  /// The batch size is that of all processes together; each gets its part. Else every process gets batches of that size.
  bool split_batches = false;
  /// The main process reads and sends the others their part. By default so for iterable datasets on a device, else every process
  /// reads its own part.
  std::optional<bool> dispatch_batches = {};
  /// All processes get the same number of equally long batches: what is missing at the end is filled up from the beginning.
  bool even_batches = true;
  /// Shuffle by a seed and the number of the epoch alone, so that an order can be repeated.
  bool use_seedable_sampler = false;
  /// That seed; by default the one of torch's default generator.
  std::optional<int64_t> data_seed = {};
  /// Copy to the device beside the computation, a batch ahead. Needs pin_memory to gain anything.
  bool non_blocking = false;
};

}  // namespace accelerate
