#include "data/batch_spec.h"

#include <ATen/DeviceAccelerator.h>
#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

bool can_pin() { return at::accelerator::getAccelerator().has_value() && at::accelerator::deviceCount() > 0; }

void pin(const Leaves& batch) {
  for (at::Tensor* tensor : batch.tensors) {
    if (tensor->defined() && tensor->is_cpu()) *tensor = tensor->pin_memory();
  }
}

/// The length of a dataset that has fewer samples than when the loader was made; else nothing: what indices mean is a matter of
/// the sampler and the dataset, which need not count from 0.
std::optional<int64_t> shrunk_length(const LoaderSpec& spec) {
  const auto before = spec.length_when_made, now = before ? spec.reader->size() : std::nullopt;
  return now && *now < *before ? now : std::nullopt;
}

/// A sampler of the user's own may not know that the dataset has shrunk, and `get` beyond the end may do anything.
void check_indices(const Indices& indices, const std::optional<int64_t>& shrunk_to, const std::string& dataset_type) {
  for (const int64_t index : indices) {
    if (!shrunk_to || index < *shrunk_to) continue;
    throw UsageError("the dataset (" + dataset_type + ") has shrunk to " + std::to_string(*shrunk_to) +
                     " samples, but the sampler returned sample " + std::to_string(index) +
                     ". A sampler with its own length must follow the length of its dataset.");
  }
}

BatchMaker reader_of(const LoaderSpec& spec, const SampleSeed& seed) {
  const bool batched = spec.batched();
  if (spec.iterable()) {
    return [reader = spec.reader, batched](const BatchSpec& batch) {
      return batched ? reader->join(batch.samples) : reader->join_one(batch.samples.front());
    };
  }
  return
      [reader = spec.reader, batched, seed, shrunk_to = shrunk_length(spec), type = spec.dataset_type](const BatchSpec& batch) {
        check_indices(batch.indices, shrunk_to, type);
        return batched ? reader->read(batch.indices, seed) : reader->read_one(batch.indices.front(), seed);
      };
}

Source<BatchSpec> indexed_specs(const LoaderSpec& spec, int64_t skip_shared) {
  const auto of_batches = [](Source<Indices> batches) -> Source<BatchSpec> {
    return [batches = std::move(batches)]() -> std::optional<BatchSpec> {
      auto batch = batches();
      return batch ? std::optional<BatchSpec>({std::move(*batch), {}}) : std::nullopt;
    };
  };
  if (auto* shard = dynamic_cast<BatchSamplerShard*>(spec.batches.get())) return of_batches(shard->batches_after(skip_shared));
  Source<BatchSpec> specs;
  if (spec.batches) {
    specs = of_batches(spec.batches->batches());
  } else {
    specs = [indices = spec.sampler->indices()]() -> std::optional<BatchSpec> {
      const auto index = indices();
      return index ? std::optional<BatchSpec>({{*index}, {}}) : std::nullopt;
    };
  }
  for (int64_t i = 0; i < skip_shared; ++i) specs();
  return specs;
}

/// The batches of an iterable dataset, with their samples. It is a Source itself.
class StreamSpecs {
 public:
  StreamSpecs(const LoaderSpec& spec, int64_t skip_shared)
      : samples_(spec.reader->open()), batch_size_(spec.iterable_batch.value_or(1)), drop_last_(spec.options.drop_last) {
    for (int64_t i = 0; i < skip_shared && next_sample(); ++i) {
    }
    if (spec.shard) samples_ = IterableDatasetShard<ErasedBatch>(std::move(samples_), *spec.shard);
  }

  std::optional<BatchSpec> operator()() {
    BatchSpec batch_spec;
    while (!ended_ && static_cast<int64_t>(batch_spec.samples.size()) < batch_size_) {
      if (auto sample = next_sample()) {
        batch_spec.samples.push_back(std::move(*sample));
        ++read_;
      } else {
        ended_ = true;
      }
    }
    const auto size = static_cast<int64_t>(batch_spec.samples.size());
    if (size == 0 || (drop_last_ && size < batch_size_)) return std::nullopt;
    return batch_spec;
  }

 private:
  std::optional<ErasedBatch> next_sample() {
    try {
      return samples_();
    } catch (...) {
      ended_ = true;
      rethrow_while("reading the sample after the first " + std::to_string(read_) + " of this pass");
    }
  }

  Source<ErasedBatch> samples_;
  int64_t batch_size_;
  bool drop_last_;
  int64_t read_ = 0;
  bool ended_ = false;
};

Source<BatchSpec> begin_specs(const LoaderSpec& spec, const SampleSeed& seed, int64_t skip_shared) {
  if (!spec.iterable()) return indexed_specs(spec, skip_shared);
  if (auto generator = spec.reader->generator(); generator && spec.shard && !spec.reader->takes_epoch()) {
    const std::lock_guard lock(generator->mutex());
    generator->set_current_seed(static_cast<uint64_t>(seed.epoch));
  }
  return StreamSpecs(spec, skip_shared);
}

}  // namespace

Source<BatchSpec> batch_specs(const LoaderSpec& spec, const SampleSeed& seed, const PassStart& start) {
  Source<BatchSpec> specs = begin_specs(spec, seed, start.shared);
  for (int64_t i = 0; i < start.own && specs(); ++i) {
  }
  return specs;
}

BatchMaker batch_maker(const LoaderSpec& spec, const SampleSeed& seed) {
  auto read = reader_of(spec, seed);
  if (!spec.options.pin_memory || !can_pin()) return read;
  return [reader = spec.reader, read = std::move(read)](const BatchSpec& batch_spec) {
    ErasedBatch batch = read(batch_spec);
    pin(reader->leaves(batch));
    return batch;
  };
}

}  // namespace accelerate::detail
