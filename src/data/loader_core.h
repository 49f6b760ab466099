#pragma once

#include <accelerate/data/active_loaders.h>
#include <accelerate/data/any_data_loader.h>
#include <accelerate/distributed/process_state.h>
#include <accelerate/distributed/random.h>

#include <atomic>
#include <functional>

#include "data/loader_progress.h"
#include "data/loader_spec.h"

namespace accelerate {
class SeedableRandomSampler;
}

namespace accelerate::detail {

/// How a prepared loader goes through its data.
struct ShardingConfig {
  ProcessState state;
  std::shared_ptr<ActiveLoaders> active_loaders = {};
  /// Where batches go; nowhere else when there is none.
  std::optional<at::Device> device = {};
  bool non_blocking = false;
  std::vector<RngType> rng_types = {};
  std::optional<at::Generator> synchronized = {};
  /// The main process reads for all.
  bool dispatch = false;
  bool split_batches = false;
  std::optional<int64_t> data_seed = {};
};

/// What the copies of a loader share with each other and with the passes over it.
struct AnyDataLoader::Core {
  explicit Core(LoaderSpec what, std::optional<ShardingConfig> how = {}) : spec(std::move(what)), sharding(std::move(how)) {}

  void set_epoch(int64_t epoch) {
    iteration = epoch;
    spec.set_epoch(epoch);
  }
  /// What the generators of samples depend on in the pass that begins now.
  SampleSeed sample_seed() const;
  /// This process's part of its batches; null where they are not sharded by batches.
  BatchSamplerShard* shard() const;
  /// Null where the order is not drawn from a seed.
  SeedableRandomSampler* seedable() const;

  // Of a prepared one:
  /// What is left for the last batch of all processes when `shared` of it was given out before the pass began, as far as it is
  /// known before that batch comes; else -1.
  int64_t expected_remainder(int64_t shared) const;
  /// What a pass that begins now resumes: loaded here, or into the loader that this one is a part of. Nothing for one that begins
  /// at its beginning.
  std::optional<LoaderProgress> take_resumed();
  /// Among how many processes the data are sharded.
  int num_processes() const;
  /// What this many batches of each process are before they are sharded.
  int64_t shared_by(int64_t batches) const;

  const LoaderSpec spec;
  /// Nothing until it is prepared.
  const std::optional<ShardingConfig> sharding;
  /// The number of the next pass. Threads may each make passes of their own over one loader.
  std::atomic<int64_t> iteration = 0;
  /// Batches that are read and thrown away at the start of a pass; those of map-style datasets are skipped by their sampler.
  int64_t skip_batches = 0;
  /// Where the newest pass is, and how to resume it.
  std::shared_ptr<LoaderPosition> position = std::make_shared<LoaderPosition>();
  std::shared_ptr<LoaderProgress> progress = std::make_shared<LoaderProgress>();
  /// The next pass resumes here.
  std::optional<LoaderProgress> resumed = {};
  /// The loader that this one is without its first `skipped` batches, whose progress it makes; null: this one itself.
  std::shared_ptr<Core> origin = {};
  int64_t skipped = 0;
};
using LoaderCore = AnyDataLoader::Core;

/// Puts back what load_state_dict changes, whatever the data are by then.
std::function<void()> undo_of_load(const AnyDataLoader& loader);

}  // namespace accelerate::detail
