#include <accelerate/core/error.h>
#include <accelerate/data/batch_sampler.h>

#include <string>
#include <utility>

namespace accelerate {

SamplerBatches::SamplerBatches(std::shared_ptr<Sampler> sampler, const BatchOptions& options) : options_(options) {
  set_sampler(std::move(sampler));
  if (options_.batch_size < 1) {
    throw UsageError("SamplerBatches was given a batch_size of " + std::to_string(options_.batch_size) + "; expected 1 or more.");
  }
}

void SamplerBatches::set_sampler(std::shared_ptr<Sampler> sampler) {
  if (!sampler) throw UsageError("SamplerBatches was given a null sampler.");
  sampler_ = std::move(sampler);
}

Source<Indices> SamplerBatches::batches() {
  // The sampler goes along: a pass may outlive the loader that began it.
  return [sampler = sampler_, next = sampler_->runs(options_.batch_size), options = options_]() mutable {
    std::optional<Indices> batch = next();
    if (batch && options.drop_last && std::ssize(*batch) < options.batch_size) batch.reset();
    return batch;
  };
}

std::optional<int64_t> SamplerBatches::size() const {
  const std::optional<int64_t> samples = sampler_->size();
  if (!samples) return std::nullopt;
  const bool rest = !options_.drop_last && *samples % options_.batch_size != 0;
  return *samples / options_.batch_size + (rest ? 1 : 0);
}

}  // namespace accelerate
