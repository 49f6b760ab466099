#include "data/batch_plan.h"

#include <ATen/DeviceAccelerator.h>
#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

bool can_pin() { return at::accelerator::getAccelerator().has_value() && at::accelerator::deviceCount() > 0; }

class ReaderPlan : public BatchPlan {
 public:
  explicit ReaderPlan(const Reading& reading)
      : reader_(reading.reader), batched_(reading.batched()), pin_(reading.options.pin_memory && can_pin()) {}

  Anything make(const Ingredients& ingredients) const override {
    Anything batch = read(ingredients);
    if (pin_) {
      for (at::Tensor* tensor : reader_->leaves(batch).tensors) {
        if (tensor->defined() && tensor->is_cpu()) *tensor = tensor->pin_memory();
      }
    }
    return batch;
  }

 protected:
  virtual Anything read(const Ingredients& ingredients) const = 0;

  const std::shared_ptr<BatchReader> reader_;
  const bool batched_;

 private:
  const bool pin_;
};

class IndexedPlan : public ReaderPlan {
 public:
  IndexedPlan(const Reading& reading, const SampleSeed& seed, int64_t skip_shared)
      : ReaderPlan(reading), seed_(seed), shrunk_to_(shrunk_length(reading)), dataset_type_(reading.dataset_type) {
    if (auto* shard = dynamic_cast<BatchSamplerShard*>(reading.batches.get())) {
      batches_ = shard->batches_after(skip_shared);
      return;
    }
    if (batched_) {
      batches_ = reading.batches->batches();
    } else {
      indices_ = reading.sampler->indices();
    }
    for (int64_t i = 0; i < skip_shared; ++i) next();
  }

  std::optional<Ingredients> next() override {
    if (batched_) {
      auto batch = batches_();
      return batch ? std::optional<Ingredients>({std::move(*batch), {}}) : std::nullopt;
    }
    const auto index = indices_();
    return index ? std::optional<Ingredients>({{*index}, {}}) : std::nullopt;
  }
  bool reads_in_next() const override { return false; }

 protected:
  Anything read(const Ingredients& ingredients) const override {
    check_indices(ingredients.indices);
    return batched_ ? reader_->read(ingredients.indices, seed_) : reader_->read_one(ingredients.indices.front(), seed_);
  }

 private:
  /// The length of a dataset that has fewer samples than when the loader was made; else nothing: what indices mean is a matter of
  /// the sampler and the dataset, which need not count from 0.
  static std::optional<int64_t> shrunk_length(const Reading& reading) {
    const auto before = reading.length_when_made, now = before ? reading.reader->size() : std::nullopt;
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
  StreamPlan(const Reading& reading, int64_t skip_shared)
      : ReaderPlan(reading),
        samples_(reading.reader->open()),
        batch_size_(reading.iterable_batch.value_or(1)),
        drop_last_(reading.options.drop_last) {
    for (int64_t i = 0; i < skip_shared && next_sample(); ++i) {
    }
    if (reading.shard) samples_ = IterableDatasetShard<Anything>(std::move(samples_), *reading.shard);
  }

  std::optional<Ingredients> next() override {
    Ingredients ingredients;
    while (!ended_ && static_cast<int64_t>(ingredients.samples.size()) < batch_size_) {
      if (auto sample = next_sample()) {
        ingredients.samples.push_back(std::move(*sample));
        ++read_;
      } else {
        ended_ = true;
      }
    }
    const auto size = static_cast<int64_t>(ingredients.samples.size());
    if (size == 0 || (drop_last_ && size < batch_size_)) return std::nullopt;
    return ingredients;
  }
  bool reads_in_next() const override { return true; }

 protected:
  Anything read(const Ingredients& ingredients) const override {
    return batched_ ? reader_->join(ingredients.samples) : reader_->join_one(ingredients.samples.front());
  }

 private:
  std::optional<Anything> next_sample() {
    try {
      return samples_();
    } catch (...) {
      ended_ = true;
      rethrow_while("reading the sample after the first " + std::to_string(read_) + " of this pass");
    }
  }

  Source<Anything> samples_;
  const int64_t batch_size_;
  const bool drop_last_;
  int64_t read_ = 0;
  bool ended_ = false;
};

std::unique_ptr<BatchPlan> begin_plan(const Reading& reading, const SampleSeed& seed, int64_t skip_shared) {
  if (!reading.iterable()) return std::make_unique<IndexedPlan>(reading, seed, skip_shared);
  if (auto generator = reading.reader->generator(); generator && reading.shard && !reading.reader->takes_epoch()) {
    const std::lock_guard lock(generator->mutex());
    generator->set_current_seed(static_cast<uint64_t>(seed.epoch));
  }
  return std::make_unique<StreamPlan>(reading, skip_shared);
}

}  // namespace

std::unique_ptr<BatchPlan> make_plan(const Reading& reading, const SampleSeed& seed, const PassStart& start) {
  std::unique_ptr<BatchPlan> plan = begin_plan(reading, seed, start.shared);
  for (int64_t i = 0; i < start.own && plan->next(); ++i) {
  }
  return plan;
}

}  // namespace accelerate::detail
