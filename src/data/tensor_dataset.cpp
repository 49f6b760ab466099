#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <accelerate/core/error.h>
#include <accelerate/data/tensor_dataset.h>

#include <cstring>
#include <string>

#include "distributed/tensor_text.h"

namespace accelerate::detail {
namespace {

void expect_row(int64_t index, size_t size) {
  if (index >= 0 && index < static_cast<int64_t>(size)) return;
  throw UsageError("a tensor dataset of " + std::to_string(size) + " samples was asked for sample " + std::to_string(index) +
                   ".");
}

/// Bytes that lie row after row and mean nothing but themselves.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() && !tensor.requires_grad() &&
         !tensor.is_conj() && !tensor.is_neg() && !tensor.is_quantized();
}

/// For such tensors several times as fast as index_select, which looks at its arguments longer than it copies.
at::Tensor copy_rows(const at::Tensor& from, const Indices& indices) {
  auto shape = from.sizes().vec();
  shape[0] = static_cast<int64_t>(indices.size());
  at::Tensor to = at::empty(shape, from.options());
  if (to.numel() == 0) return to;
  const size_t length = to.nbytes() / indices.size();
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  for (size_t i = 0; i < indices.size();) {
    size_t end = i + 1;
    while (end < indices.size() && indices[end] == indices[end - 1] + 1) ++end;
    std::memcpy(target + i * length, source + static_cast<size_t>(indices[i]) * length, (end - i) * length);
    i = end;
  }
  return to;
}

}  // namespace

TensorRows::TensorRows(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  for (const auto& tensor : tensors_) {
    if (!tensor.defined() || tensor.dim() == 0) {
      throw UsageError("a tensor dataset reads tensors by rows and was given " + describe(tensor) + ".");
    }
    if (tensor.size(0) != tensors_.front().size(0)) {
      throw UsageError("the tensors of a dataset must have the same first dimension and were given as " +
                       describe(tensors_.front()) + " and " + describe(tensor) + ".");
    }
  }
  size_ = static_cast<size_t>(tensors_.front().size(0));
}

at::Tensor TensorRows::row(size_t tensor, size_t index) const {
  expect_row(static_cast<int64_t>(index), size_);
  return tensors_[tensor].select(0, static_cast<int64_t>(index)).clone();
}

at::Tensor TensorRows::rows(size_t tensor, const Indices& indices) const {
  for (const int64_t index : indices) expect_row(index, size_);
  const at::Tensor& from = tensors_[tensor];
  if (is_plain(from)) return copy_rows(from, indices);
  // A copy of the indices: a backward pass needs them again, long after the caller's are gone.
  return at::index_select(from, 0, at::tensor(indices, at::kLong).to(from.device()));
}

}  // namespace accelerate::detail
