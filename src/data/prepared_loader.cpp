#include <accelerate/core/error.h>
#include <accelerate/data/batch_sampler.h>
#include <accelerate/data/prepared_loader.h>
#include <accelerate/data/random_sampler.h>

#include <algorithm>
#include <cstring>
#include <typeinfo>

#include "data/loader_core.h"
#include "data/worker_pool.h"
#include "distributed/communicator.h"

namespace accelerate::detail {
namespace {

bool dispatches(const LoaderSpec& spec, const LoaderPreparation& preparation) {
  const bool wanted = preparation.configuration.dispatch_batches.value_or(preparation.put_on_device && spec.iterable());
  if (wanted && !preparation.put_on_device) {
    throw UsageError(
        "dispatch_batches sends batches from device to device: it needs device placement, which is off for this loader.");
  }
  if (wanted && preparation.state.use_distributed() && !spec.reader->sends()) {
    throw UsageError("dispatch_batches sends batches to other processes, but a batch of " + spec.dataset_type +
                     " has a member that cannot be sent. Set dispatch_batches=false, so that every process reads its own.");
  }
  return wanted;
}

void check_split(const LoaderSpec& spec, int num_processes) {
  const auto size = spec.iterable() ? spec.iterable_batch : spec.batches ? spec.batches->batch_size() : std::nullopt;
  if (!size) {
    throw UsageError(
        "split_batches splits each batch into equal parts, but the batch size is unknown: give batch_size, or a batch sampler "
        "that has one.");
  }
  if (*size > 1 && *size % num_processes != 0) {
    throw UsageError("split_batches with batch_size=" + std::to_string(*size) + " on " + std::to_string(num_processes) +
                     " processes: the batch size must be a multiple of the number of processes.");
  }
}

/// The same batches over another sampler.
std::shared_ptr<BatchSampler> with_sampler(const std::shared_ptr<BatchSampler>& batches,
                                           const std::shared_ptr<Sampler>& sampler) {
  if (const auto* skipping = dynamic_cast<const SkipBatchSampler*>(batches.get())) {
    return std::make_shared<SkipBatchSampler>(with_sampler(skipping->whole(), sampler), skipping->skip_batches());
  }
  // One that makes its batches in its own way cannot be made again, and is changed itself, as in Python.
  if (auto& made = *batches; typeid(made) != typeid(SamplerBatches)) {
    dynamic_cast<SamplerBatches&>(made).set_sampler(sampler);
    return batches;
  }
  return std::make_shared<SamplerBatches>(
      sampler, BatchOptions{.batch_size = batches->batch_size().value_or(1), .drop_last = batches->drop_last()});
}

/// The same order from a seed and the number of the pass.
void make_seedable(LoaderSpec& spec, const DataLoaderConfiguration& configuration) {
  const auto* random = dynamic_cast<const RandomSampler*>(spec.sampler.get());
  if (!random) return;
  SeedableSamplerOptions seeds;
  if (configuration.data_seed) seeds.data_seed = static_cast<uint64_t>(*configuration.data_seed);
  spec.sampler = std::make_shared<SeedableRandomSampler>(*random, seeds);
  if (spec.batches) spec.batches = with_sampler(spec.batches, spec.sampler);
}

/// Ranks that were seeded apart would each take its part of another order, and samples would come twice or never.
void agree_on_seed(const LoaderSpec& spec, const ProcessState& state) {
  auto* seedable = dynamic_cast<SeedableRandomSampler*>(spec.sampler.get());
  if (seedable == nullptr || !state.communicator()) return;
  uint64_t seed = seedable->initial_seed();
  const std::string bytes =
      state.communicator()->broadcast_bytes({reinterpret_cast<const char*>(&seed), sizeof(seed)}, 0, "prepare", {});
  std::memcpy(&seed, bytes.data(), sizeof(seed));
  seedable->set_initial_seed(seed);
}

void shard_stream(LoaderSpec& spec, bool split_batches, int num_processes, int process_index) {
  spec.shard = IterableShardOptions{.batch_size = spec.iterable_batch.value_or(1),
                                    .drop_last = spec.options.drop_last,
                                    .num_processes = num_processes,
                                    .process_index = process_index,
                                    .split_batches = split_batches};
  iterable_round(*spec.shard);  // throws now rather than in the first pass
  if (!split_batches) return;
  if (*spec.iterable_batch < num_processes) {
    throw UsageError("split_batches with batch_size=" + std::to_string(*spec.iterable_batch) + " on " +
                     std::to_string(num_processes) + " processes leaves some without a sample.");
  }
  spec.iterable_batch = *spec.iterable_batch / num_processes;
}

void shard_batches(LoaderSpec& spec, const DataLoaderConfiguration& configuration, int num_processes, int process_index) {
  if (!spec.batches) {
    throw UsageError("a loader without batch_size cannot be sharded, because processes get whole batches: set batch_size.");
  }
  spec.batches = std::make_shared<BatchSamplerShard>(spec.batches, BatchShardOptions{.num_processes = num_processes,
                                                                                     .process_index = process_index,
                                                                                     .split_batches = configuration.split_batches,
                                                                                     .even_batches = configuration.even_batches});
}

}  // namespace

AnyDataLoader prepare_loader(const AnyDataLoader& loader, const LoaderPreparation& preparation) {
  if (loader.prepared()) return loader;
  const auto& configuration = preparation.configuration;
  const int num_processes = preparation.num_processes.value_or(preparation.state.num_processes());
  const int process_index = preparation.process_index.value_or(preparation.state.process_index());
  LoaderSpec spec = loader.core()->spec;
  ShardingConfig sharding{.state = preparation.state,
                          .active_loaders = preparation.active_loaders,
                          .non_blocking = configuration.non_blocking,
                          .rng_types = preparation.rng_types,
                          .dispatch = dispatches(spec, preparation),
                          .split_batches = configuration.split_batches,
                          .data_seed = configuration.data_seed};
  if (preparation.put_on_device) sharding.device = preparation.state.device();
  if (spec.workers) spec.workers = std::make_shared<KeptWorkers>();
  if (configuration.split_batches) check_split(spec, num_processes);
  if (configuration.use_seedable_sampler) make_seedable(spec, configuration);
  if (sharding.dispatch) {
    spec.options.generator.reset();  // as Python: the seed of a pass is drawn from the default one
    sharding.rng_types.clear();
  } else if (num_processes > 1 && spec.iterable()) {
    sharding.synchronized = spec.reader->generator();
    shard_stream(spec, configuration.split_batches, num_processes, process_index);
  } else if (num_processes > 1) {
    if (spec.batches) sharding.synchronized = spec.batches->own_generator();
    shard_batches(spec, configuration, num_processes, process_index);
    if (!configuration.data_seed) agree_on_seed(spec, preparation.state);
  }
  if (!sharding.synchronized) std::erase(sharding.rng_types, RngType::generator);
  auto core = std::make_shared<LoaderCore>(std::move(spec), std::move(sharding));
  core->skip_batches = loader.core()->skip_batches;
  return AnyDataLoader(std::move(core));
}

}  // namespace accelerate::detail
