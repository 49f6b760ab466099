#pragma once

#include <ATen/core/TensorBody.h>

namespace accelerate::detail {

/// Makes the columns of each matrix of a batch (matrices, rows, columns) orthonormal, in place. There are at most as many columns
/// as rows. A column of zeros stays one.
void orthogonalize(at::Tensor& matrices, double epsilon);

/// Whether two factors of this rank are smaller than a matrix by more than `min_compression_rate`.
bool worth_compressing(int64_t rows, int64_t columns, int64_t rank, double min_compression_rate);

}  // namespace accelerate::detail
