#include <accelerate/core/error.h>
#include <accelerate/data/batch_sampler.h>

#include <string>
#include <utility>

namespace accelerate {

SamplerBatches::SamplerBatches(std::shared_ptr<Sampler> sampler, const BatchOptions& options)
    : sampler_(std::move(sampler)), options_(options) {
  if (!sampler_) throw UsageError("SamplerBatches was given no sampler; expected one that says which samples to take.");
  if (options_.batch_size < 1) {
    throw UsageError("SamplerBatches was given a batch_size of " + std::to_string(options_.batch_size) + "; expected 1 or more.");
  }
}

Source<Indices> SamplerBatches::batches() {
  // The sampler goes along: a pass may outlive the loader that began it.
  return [sampler = sampler_, next = sampler_->indices(), length = static_cast<size_t>(options_.batch_size),
          drop_last = options_.drop_last, ended = false]() mutable -> std::optional<Indices> {
    if (ended) return std::nullopt;
    Indices batch;
    batch.reserve(length);
    while (batch.size() < length) {
      const std::optional<int64_t> index = next();
      if (!index) {
        ended = true;
        if (batch.empty() || drop_last) return std::nullopt;
        break;
      }
      batch.push_back(*index);
    }
    return batch;
  };
}

std::optional<int64_t> SamplerBatches::size() const {
  const std::optional<int64_t> samples = sampler_->size();
  if (!samples) return std::nullopt;
  return (*samples + (options_.drop_last ? 0 : options_.batch_size - 1)) / options_.batch_size;
}

}  // namespace accelerate
