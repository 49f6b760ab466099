#include "parallel/low_rank.h"

#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>

namespace accelerate::detail {
namespace {

/// QR is faster from here on, but does not know 16 bits.
constexpr int64_t kMostColumnsOfGramSchmidt = 2;

void gram_schmidt(at::Tensor& matrices, double epsilon) {
  const int64_t columns = matrices.size(2);
  for (int64_t i = 0; i < columns; ++i) {
    at::Tensor column = matrices.narrow(2, i, 1);
    at::Tensor norm = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, /*keepdim=*/true);
    if (epsilon == 0) {
      norm.masked_fill_(norm.eq(0), 1);  // a gradient that has vanished must not become NaN
    } else {
      norm.add_(epsilon);
    }
    column.div_(norm);
    if (i + 1 == columns) break;
    at::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_(column.mul(rest).sum(at::IntArrayRef{1}, /*keepdim=*/true).mul(column));
  }
}

}  // namespace

void orthogonalize(at::Tensor& matrices, double epsilon) {
  const bool has_16_bits = matrices.scalar_type() == at::kHalf || matrices.scalar_type() == at::kBFloat16;
  if (matrices.size(2) <= kMostColumnsOfGramSchmidt || has_16_bits) {
    gram_schmidt(matrices, epsilon);
  } else {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
  }
}

bool worth_compressing(int64_t rows, int64_t columns, int64_t rank, double min_compression_rate) {
  return static_cast<double>((rows + columns) * rank) * min_compression_rate < static_cast<double>(rows * columns);
}

}  // namespace accelerate::detail
