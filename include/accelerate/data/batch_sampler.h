#pragma once

#include <accelerate/data/sampler.h>

#include <memory>

namespace accelerate {

struct BatchOptions {
  int64_t batch_size = 1;
  /// Leave out a last batch that would be shorter than the others.
  bool drop_last = false;
};

/// The indices of a sampler, a batch at a time. Python's BatchSampler; here that is the name of what it implements.
class SamplerBatches : public BatchSampler {
 public:
  /// UsageError unless there is a sampler, and at least one sample in a batch.
  SamplerBatches(std::shared_ptr<Sampler> sampler, const BatchOptions& options);
  Source<Indices> batches() override;
  std::optional<int64_t> size() const override;
  std::optional<int64_t> batch_size() const override { return options_.batch_size; }
  bool drop_last() const override { return options_.drop_last; }
  void set_epoch(int64_t epoch) override { sampler_->set_epoch(epoch); }
  std::optional<at::Generator> generator() const override { return sampler_->generator(); }
  std::optional<at::Generator> own_generator() override { return sampler_->own_generator(); }

  const std::shared_ptr<Sampler>& sampler() const { return sampler_; }
  /// Takes the order from another one, for the passes that begin from now on. UsageError when there is none.
  void set_sampler(std::shared_ptr<Sampler> sampler);

 private:
  std::shared_ptr<Sampler> sampler_;
  BatchOptions options_;
};

}  // namespace accelerate
