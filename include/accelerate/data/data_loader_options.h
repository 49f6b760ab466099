#pragma once

#include <ATen/core/Generator.h>
#include <accelerate/data/sampler.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace accelerate {

/// How a data loader reads. Names and rules are those of torch.utils.data.DataLoader.
struct DataLoaderOptions {
  /// Samples in a batch; nothing: every sample is handed out as it is.
  std::optional<int64_t> batch_size = 1;
  /// A new random order for each pass.
  bool shuffle = false;
  /// An order of your own; not together with shuffle.
  std::shared_ptr<Sampler> sampler = {};
  /// Batches of your own; not together with batch_size, shuffle, sampler or drop_last.
  std::shared_ptr<BatchSampler> batch_sampler = {};
  /// Threads that read ahead. The dataset's members are then called by several of them at once.
  int num_workers = 0;
  /// Put batches into memory from which copies to the device run beside other work. Without such a device it does nothing.
  bool pin_memory = false;
  /// Leave out a last batch that is shorter than the others.
  bool drop_last = false;
  /// How many seconds a worker may take for a batch; 0: no limit. Needs workers.
  double timeout = 0;
  /// How many batches each worker reads ahead, 2 by default. Needs workers.
  std::optional<int> prefetch_factor = {};
  /// Keep the workers from one pass to the next. Needs workers.
  bool persistent_workers = false;
  /// Where random orders and seeds come from; by default torch's default generator.
  std::optional<at::Generator> generator = {};
};

}  // namespace accelerate
