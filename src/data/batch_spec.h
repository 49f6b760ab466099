#pragma once

#include <functional>

#include "data/loader_progress.h"
#include "data/loader_spec.h"

namespace accelerate::detail {

/// What one batch is made of: indices, or samples that have been read already. Without batching there is one of them.
struct BatchSpec {
  Indices indices;
  std::vector<ErasedBatch> samples;
};

/// What the batches of a pass are made of, in their order, from where `start` says. What lies before is neither read nor made,
/// but for the samples of an iterable dataset, which cannot be had without those before them. For one thread at a time: of a
/// map-style dataset it draws random numbers and is for the thread that trains; of an iterable one it is the reading itself.
Source<BatchSpec> batch_specs(const LoaderSpec& spec, const SampleSeed& seed, const PassStart& start = {});

/// Makes a batch of what it is to be made of. Several threads may call it at once.
using BatchMaker = std::function<ErasedBatch(const BatchSpec&)>;
BatchMaker batch_maker(const LoaderSpec& spec, const SampleSeed& seed);

}  // namespace accelerate::detail
