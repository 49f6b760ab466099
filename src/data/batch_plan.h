#pragma once

#include <memory>

#include "data/loader_progress.h"

namespace accelerate::detail {

/// What one batch is made of: indices, or samples that have been read already. Without batching there is one of them.
struct BatchSpec {
  Indices indices;
  std::vector<ErasedBatch> samples;
};

/// The batches of one pass: what comes next, and making it.
class BatchPlan {
 public:
  virtual ~BatchPlan() = default;
  /// Nothing at the end. For one thread at a time; the batches come in the order of these calls.
  virtual std::optional<BatchSpec> next() = 0;
  /// May be called by several threads at once.
  virtual ErasedBatch make(const BatchSpec& batch_spec) const = 0;
  /// False: `next` draws random numbers and is for the thread that trains. True: `next` is the reading itself.
  virtual bool reads_in_next() const = 0;
};

/// Begins a pass over the dataset, where `start` says. What lies before is neither read nor made, but for the samples of an
/// iterable dataset, which cannot be had without those before them.
std::unique_ptr<BatchPlan> make_plan(const LoaderSpec& spec, const SampleSeed& seed, const PassStart& start = {});

}  // namespace accelerate::detail
