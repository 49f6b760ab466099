#include "data/batch_plan.h"

#include <ATen/DeviceAccelerator.h>
#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

bool can_pin() { return at::accelerator::getAccelerator().has_value() && at::accelerator::deviceCount() > 0; }

class ReaderPlan : public BatchPlan {
 public:
  explicit ReaderPlan(const LoaderSpec& spec)
      : reader_(spec.reader), batched_(spec.batched()), pin_(spec.options.pin_memory && can_pin()) {}

  ErasedBatch make(const BatchSpec& batch_spec) const override {
    ErasedBatch batch = read(batch_spec);
    if (pin_) {
      for (at::Tensor* tensor : reader_->leaves(batch).tensors) {
        if (tensor->defined() && tensor->is_cpu()) *tensor = tensor->pin_memory();
      }
    }
    return batch;
  }

 protected:
  virtual ErasedBatch read(const BatchSpec& batch_spec) const = 0;

  const std::shared_ptr<BatchReader> reader_;
  const bool batched_;

 private:
  const bool pin_;
};

class IndexedPlan : public ReaderPlan {
 public:
  IndexedPlan(const LoaderSpec& spec, const SampleSeed& seed, int64_t skip_shared)
      : ReaderPlan(spec), seed_(seed), shrunk_to_(shrunk_length(spec)), dataset_type_(spec.dataset_type) {
    if (auto* shard = dynamic_cast<BatchSamplerShard*>(spec.batches.get())) {
      batches_ = shard->batches_after(skip_shared);
      return;
    }
    if (batched_) {
      batches_ = spec.batches->batches();
    } else {
      indices_ = spec.sampler->indices();
    }
    for (int64_t i = 0; i < skip_shared; ++i) next();
  }

  std::optional<BatchSpec> next() override {
    if (batched_) {
      auto batch = batches_();
      return batch ? std::optional<BatchSpec>({std::move(*batch), {}}) : std::nullopt;
    }
    const auto index = indices_();
    return index ? std::optional<BatchSpec>({{*index}, {}}) : std::nullopt;
  }
  bool reads_in_next() const override { return false; }

 protected:
  ErasedBatch read(const BatchSpec& batch_spec) const override {
    check_indices(batch_spec.indices);
    return batched_ ? reader_->read(batch_spec.indices, seed_) : reader_->read_one(batch_spec.indices.front(), seed_);
  }

 private:
  /// The length of a dataset that has fewer samples than when the loader was made; else nothing: what indices mean is a matter of
  /// the sampler and the dataset, which need not count from 0.
  static std::optional<int64_t> shrunk_length(const LoaderSpec& spec) {
    const auto before = spec.length_when_made, now = before ? spec.reader->size() : std::nullopt;
    return now && *now < *before ? now : std::nullopt;
  }

  /// A sampler of the user's own may not know that the dataset has shrunk, and `get` beyond the end may do anything.
  void check_indices(const Indices& indices) const {
    for (const int64_t index : indices) {
      if (!shrunk_to_ || index < *shrunk_to_) continue;
      throw UsageError("a dataset (" + dataset_type_ + ") that has shrunk to " + std::to_string(*shrunk_to_) +
                       " samples was asked for sample " + std::to_string(index) +
                       ". A sampler with a length of its own must follow the length of its dataset.");
    }
  }

  const SampleSeed seed_;
  const std::optional<int64_t> shrunk_to_;
  const std::string dataset_type_;
  Source<Indices> batches_;
  Source<int64_t> indices_;
};

class StreamPlan : public ReaderPlan {
 public:
  StreamPlan(const LoaderSpec& spec, int64_t skip_shared)
      : ReaderPlan(spec),
        samples_(spec.reader->open()),
        batch_size_(spec.iterable_batch.value_or(1)),
        drop_last_(spec.options.drop_last) {
    for (int64_t i = 0; i < skip_shared && next_sample(); ++i) {
    }
    if (spec.shard) samples_ = IterableDatasetShard<ErasedBatch>(std::move(samples_), *spec.shard);
  }

  std::optional<BatchSpec> next() override {
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
  bool reads_in_next() const override { return true; }

 protected:
  ErasedBatch read(const BatchSpec& batch_spec) const override {
    return batched_ ? reader_->join(batch_spec.samples) : reader_->join_one(batch_spec.samples.front());
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
  const int64_t batch_size_;
  const bool drop_last_;
  int64_t read_ = 0;
  bool ended_ = false;
};

std::unique_ptr<BatchPlan> begin_plan(const LoaderSpec& spec, const SampleSeed& seed, int64_t skip_shared) {
  if (!spec.iterable()) return std::make_unique<IndexedPlan>(spec, seed, skip_shared);
  if (auto generator = spec.reader->generator(); generator && spec.shard && !spec.reader->takes_epoch()) {
    const std::lock_guard lock(generator->mutex());
    generator->set_current_seed(static_cast<uint64_t>(seed.epoch));
  }
  return std::make_unique<StreamPlan>(spec, skip_shared);
}

}  // namespace

std::unique_ptr<BatchPlan> make_plan(const LoaderSpec& spec, const SampleSeed& seed, const PassStart& start) {
  std::unique_ptr<BatchPlan> plan = begin_plan(spec, seed, start.shared);
  for (int64_t i = 0; i < start.own && plan->next(); ++i) {
  }
  return plan;
}

}  // namespace accelerate::detail
