#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/byte_sink.h"
#include "core/byte_source.h"
#include "formats/pickle_value.h"

namespace accelerate::detail {

/// The states of Python's own random numbers and of numpy's, which Python Accelerate wants in a file before it restores those of
/// torch. Nothing here draws from them: they are carried from checkpoint to checkpoint, or made as Python's set_seed would.
struct PythonRandomStates {
  PickleTree tree;
  PickleNode* python = nullptr;
  PickleNode* numpy = nullptr;

  /// As after random.seed(seed) and numpy.random.seed(seed).
  static std::shared_ptr<const PythonRandomStates> seeded(uint64_t seed);
};

/// What random_states_N.pkl holds.
struct RandomStates {
  /// Batches counted by `accumulate`.
  int64_t step = 0;
  at::Tensor cpu;
  /// One for each GPU; none without.
  std::vector<at::Tensor> cuda;
  std::shared_ptr<const PythonRandomStates> python;
};

/// Those of this process, with Python's as they were carried, or made from the seed when there are none.
RandomStates current_random_states(int64_t step, std::shared_ptr<const PythonRandomStates> carried);
/// Sets torch's random numbers on the CPU and on every device that both have.
void restore_random_states(const RandomStates& states);

void write_random_states(ByteSink& sink, const std::string& archive, const RandomStates& states);
/// CheckpointError when the file is no such file.
RandomStates read_random_states(const ByteSource& source);

}  // namespace accelerate::detail
