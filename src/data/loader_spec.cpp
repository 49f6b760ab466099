#include "data/loader_spec.h"

#include <accelerate/core/error.h>
#include <accelerate/data/batch_sampler.h>
#include <accelerate/data/random_sampler.h>
#include <c10/util/Type.h>

#include "data/worker_pool.h"

namespace accelerate::detail {
namespace {

void expect(bool right, const std::string& message) {
  if (!right) throw UsageError("DataLoader: " + message);
}

void check_workers(const DataLoaderOptions& options) {
  expect(options.num_workers >= 0,
         "num_workers=" + std::to_string(options.num_workers) + "; expected 0 (read in the training thread) or more.");
  expect(options.timeout >= 0, "timeout=" + std::to_string(options.timeout) + "; expected seconds, or 0 for none.");
  if (options.num_workers == 0) {
    expect(options.timeout == 0, "timeout needs num_workers > 0.");
    expect(!options.prefetch_factor, "prefetch_factor needs num_workers > 0.");
    expect(!options.persistent_workers, "persistent_workers needs num_workers > 0.");
  }
  expect(options.prefetch_factor.value_or(2) >= 1,
         "prefetch_factor=" + std::to_string(options.prefetch_factor.value_or(2)) + "; expected at least 1.");
}

void check_order(const DataLoaderOptions& options, bool iterable) {
  if (iterable) {
    expect(!options.shuffle, "shuffle needs a dataset with size() and get(i), but this one is iterable.");
    expect(!options.sampler && !options.batch_sampler,
           "a sampler needs a dataset with size() and get(i), but this one is iterable.");
  }
  expect(!options.sampler || !options.shuffle, "sampler is mutually exclusive with shuffle.");
  if (options.batch_sampler) {
    expect(options.batch_size == 1 && !options.shuffle && !options.sampler && !options.drop_last,
           "batch_sampler is mutually exclusive with batch_size, shuffle, sampler and drop_last.");
  } else if (options.batch_size) {
    expect(*options.batch_size >= 1, "batch_size=" + std::to_string(*options.batch_size) + "; expected at least 1, or nothing.");
  } else {
    expect(!options.drop_last, "drop_last needs batch_size: without it, there are no batches.");
  }
}

std::shared_ptr<Sampler> sampler_for(const LoaderSpec& spec) {
  if (spec.options.sampler) return spec.options.sampler;
  expect(spec.reader->size().has_value(), "the dataset (" + spec.dataset_type + ") has no known size: give a sampler.");
  const DatasetLength length = [reader = spec.reader] { return reader->size().value_or(0); };
  if (spec.options.shuffle) {
    return std::make_shared<RandomSampler>(length, RandomSamplerOptions{.generator = spec.options.generator});
  }
  return std::make_shared<SequentialSampler>(length);
}

int64_t batches_of(int64_t samples, int64_t batch, bool drop_last) {
  return samples / batch + (!drop_last && samples % batch != 0 ? 1 : 0);
}

}  // namespace

LoaderSpec make_loader_spec(std::shared_ptr<BatchReader> reader, DataLoaderOptions options) {
  check_workers(options);
  check_order(options, reader->iterable());
  LoaderSpec spec{.reader = std::move(reader), .options = std::move(options)};
  spec.dataset_type = c10::demangle(spec.reader->dataset_type());
  if (spec.options.sampler || spec.options.batch_sampler) spec.length_when_made = spec.reader->size();
  if (spec.options.persistent_workers) spec.workers = std::make_shared<KeptWorkers>();
  if (spec.iterable()) {
    spec.iterable_batch = spec.options.batch_size;
  } else if (spec.options.batch_sampler) {
    spec.batches = spec.options.batch_sampler;
    if (const auto* ours = dynamic_cast<const SamplerBatches*>(spec.batches.get())) spec.sampler = ours->sampler();
  } else {
    spec.sampler = sampler_for(spec);
    if (const auto size = spec.options.batch_size) {
      spec.batches =
          std::make_shared<SamplerBatches>(spec.sampler, BatchOptions{.batch_size = *size, .drop_last = spec.options.drop_last});
    }
  }
  return spec;
}

std::optional<int64_t> LoaderSpec::samples() const {
  const auto size = reader->size();
  return size && shard ? std::optional(iterable_shard_size(*size, *shard)) : size;
}

std::optional<int64_t> LoaderSpec::visited() const {
  if (options.drop_last || (batches && batches->drop_last())) return std::nullopt;
  const auto size = samples();
  if (iterable()) return size;
  if (sampler) return sampler->size() ? sampler->size() : size;
  // Batches of the user's own: they may well be of all samples, unless there are too many or too few of them for that.
  const auto* shard_of = dynamic_cast<const BatchSamplerShard*>(batches.get());
  const BatchSampler& whole = shard_of ? *shard_of->whole() : *batches;
  if (size && whole.size() && whole.batch_size() && batches_of(*size, *whole.batch_size(), false) != whole.size()) {
    return std::nullopt;
  }
  return size;
}

std::optional<int64_t> LoaderSpec::length() const {
  if (iterable()) {
    const auto size = samples();
    return size && iterable_batch ? std::optional(batches_of(*size, *iterable_batch, options.drop_last)) : size;
  }
  return batches ? batches->size() : sampler->size();
}

std::optional<int64_t> LoaderSpec::whole_batch_size() const {
  if (shard) return shard->batch_size;
  if (iterable()) return iterable_batch;
  return batches ? batches->batch_size() : std::nullopt;
}

std::optional<int64_t> LoaderSpec::total_batch_size() const {
  if (iterable()) return iterable_batch;
  return batches ? batches->total_batch_size() : std::nullopt;
}

void LoaderSpec::set_epoch(int64_t epoch) const {
  if (batches) {
    batches->set_epoch(epoch);
  } else if (sampler) {
    sampler->set_epoch(epoch);
  }
  reader->set_epoch(epoch);
}

}  // namespace accelerate::detail
