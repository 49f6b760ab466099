#pragma once

#include <memory>

#include "data/loader_progress.h"
#include "data/loader_spec.h"

namespace accelerate::detail {

/// The batches of one pass as they come from the dataset: which samples make each of them, in which order, and which threads read
/// them, this one or workers.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// Null at the end.
  virtual ErasedBatch next() = 0;
};

/// Begins a pass over what `spec` says, where `start` says.
std::unique_ptr<BatchStream> open_stream(const LoaderSpec& spec, const SampleSeed& seed, const PassStart& start = {});
/// Draws the seed that open_stream draws, for a process that is sent its batches: random numbers stay in step.
void follow_stream(const LoaderSpec& spec);

}  // namespace accelerate::detail
