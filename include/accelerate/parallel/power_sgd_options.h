#pragma once

#include <cstdint>

namespace accelerate {

/// How PowerSGD compresses gradients. Names and defaults are those of PyTorch's PowerSGDState.
struct PowerSgdOptions {
  /// The rank of the factors. 1 compresses most; 2 and 4 cost more and lose less.
  int64_t matrix_approximation_rank = 1;
  /// The number of plain all-reduces at the start: gradients are most sensitive then. At least 2 with error feedback or a warm
  /// start, which keep state per bucket, and buckets are rebuilt after the first all-reduce.
  int64_t start_powerSGD_iter = 1000;
  /// A gradient that would not shrink by this factor is sent uncompressed.
  double min_compression_rate = 2;
  /// The compression error of a step is added to the gradients of the next (error feedback).
  bool use_error_feedback = true;
  /// An all-reduce begins with the factors of the one before, not with random ones.
  bool warm_start = true;
  /// Added to the norm of every column that is normalised.
  double orthogonalization_epsilon = 0;
  /// The seed of the random factors: the same on all processes.
  uint32_t random_seed = 0;
  /// Parameters of one shape are multiplied in one call.
  bool batch_tensors_with_same_shape = false;
};

}  // namespace accelerate
