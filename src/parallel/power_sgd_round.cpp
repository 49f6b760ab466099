#include "parallel/power_sgd_round.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <cmath>

#include "parallel/low_rank.h"

namespace accelerate::detail {

PowerSgdRound::PowerSgdRound(c10::intrusive_ptr<c10d::ProcessGroup> group, PowerSgdState& state, const c10d::GradBucket& bucket,
                             bool as_one_matrix)
    : group_(std::move(group)), state_(state), bucket_(bucket.getIndex()), gradients_(bucket.getBuffer()), content_(gradients_) {
  const int64_t length = gradients_.numel();
  if (as_one_matrix) {
    const auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(length))));
    content_ = at::zeros({side * side}, gradients_.options());
    content_.narrow(0, 0, length).copy_(gradients_);
  }
  if (state_.options().use_error_feedback) {
    if (const auto error = state_.errors().find(bucket_); error != state_.errors().end()) {
      check_fit(error->second, content_.numel());
      content_.add_(error->second);
    }
    before_ = content_.clone();
  }
  if (as_one_matrix) {
    const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(content_.numel()))));
    add_batch(content_.view({1, side, side}), {});
  } else {
    take_parameters(bucket.getGradients());
  }
  make_factors();
}

/// Gradients of one shape come one after the other, in the order of the first of each shape: random factors are drawn so.
void PowerSgdRound::take_parameters(const std::vector<at::Tensor>& gradients) {
  const auto& options = state_.options();
  std::vector<std::vector<at::Tensor>> by_shape;
  for (const auto& gradient : gradients) {
    const at::Tensor matrix = gradient.dim() == 0 ? gradient.view({1, 1}) : gradient.view({gradient.size(0), -1});
    const int64_t rows = matrix.size(0), columns = matrix.size(1);
    const int64_t rank = std::min({rows, columns, options.matrix_approximation_rank});
    if (!worth_compressing(rows, columns, rank, options.min_compression_rate)) {
      uncompressed_.push_back(gradient);
      continue;
    }
    const auto alike = std::find_if(by_shape.begin(), by_shape.end(),
                                    [&](const auto& others) { return others.front().sizes() == matrix.sizes(); });
    (alike == by_shape.end() ? by_shape.emplace_back() : *alike).push_back(matrix);
  }
  for (auto& matrices : by_shape) {
    if (options.batch_tensors_with_same_shape && matrices.size() > 1) {
      add_batch(at::stack(matrices), matrices);
    } else {
      for (const auto& matrix : matrices) add_batch(matrix.unsqueeze(0), {});
    }
  }
}

void PowerSgdRound::add_batch(at::Tensor matrices, std::vector<at::Tensor> parts) {
  batches_.push_back({.matrices = std::move(matrices), .left = {}, .right = {}, .parts = std::move(parts)});
}

void PowerSgdRound::make_factors() {
  const auto& options = state_.options();
  const auto rank_of = [&](const Batch& batch) {
    return std::min({batch.matrices.size(1), batch.matrices.size(2), options.matrix_approximation_rank});
  };
  int64_t left_length = 0, right_length = 0;
  for (const auto& batch : batches_) {
    left_length += batch.matrices.size(0) * batch.matrices.size(1) * rank_of(batch);
    right_length += batch.matrices.size(0) * batch.matrices.size(2) * rank_of(batch);
  }
  const auto remembered = options.warm_start ? state_.factors().find(bucket_) : state_.factors().end();
  const bool random = remembered == state_.factors().end();
  left_ = at::empty({left_length}, gradients_.options());
  right_ = random ? at::empty({right_length}, gradients_.options()) : remembered->second;
  check_fit(right_, right_length);
  // A generator of its own, with the same numbers on all processes: nobody else's are used up.
  at::Generator generator;
  if (random) generator = at::make_generator<at::CPUGeneratorImpl>(state_.next_seed());
  int64_t left_at = 0, right_at = 0;
  for (auto& batch : batches_) {
    const int64_t number = batch.matrices.size(0), rows = batch.matrices.size(1), columns = batch.matrices.size(2);
    const int64_t rank = rank_of(batch);
    batch.left = left_.narrow(0, left_at, number * rows * rank).view({number, rows, rank});
    batch.right = right_.narrow(0, right_at, number * columns * rank).view({number, columns, rank});
    left_at += number * rows * rank;
    right_at += number * columns * rank;
    if (random) batch.right.copy_(at::randn({number, columns, rank}, generator, at::dtype(gradients_.scalar_type())));
    orthogonalize(batch.right, options.orthogonalization_epsilon);
  }
}

void PowerSgdRound::check_fit(const at::Tensor& remembered, int64_t length) const {
  if (remembered.numel() == length && remembered.scalar_type() == gradients_.scalar_type()) return;
  throw UsageError(
      "The PowerSGD state has " + std::to_string(remembered.numel()) + " elements for bucket " + std::to_string(bucket_) +
      ", which has " + std::to_string(length) +
      " now: resume with the bucket_cap_mb, comm_wrapper and comm_state_option of the run that saved the checkpoint.");
}

c10::intrusive_ptr<c10d::Work> PowerSgdRound::all_reduce(at::Tensor& tensor) {
  std::vector<at::Tensor> tensors = {tensor};
  return group_->allreduce(tensors);
}

c10::intrusive_ptr<c10d::Work> PowerSgdRound::send_left_factors() {
  if (!uncompressed_.empty()) {
    std::vector<at::Tensor> flat;
    for (const auto& tensor : uncompressed_) flat.push_back(tensor.reshape({-1}));
    plain_ = at::cat(flat);
    plain_work_ = all_reduce(plain_);
  }
  if (batches_.empty()) return plain_work_;
  for (auto& batch : batches_) at::bmm_out(batch.left, batch.matrices, batch.right);
  left_work_ = all_reduce(left_);
  return left_work_;
}

void PowerSgdRound::send_right_factors() {
  if (plain_work_) {
    plain_work_->wait();
    plain_.div_(group_->getSize());
    int64_t at = 0;
    for (auto& tensor : uncompressed_) {
      tensor.copy_(plain_.narrow(0, at, tensor.numel()).view_as(tensor));
      at += tensor.numel();
    }
  }
  if (!left_work_) return;
  left_work_->wait();
  // Only their directions count, so that their sum is as good as their mean.
  for (auto& batch : batches_) {
    orthogonalize(batch.left, state_.options().orthogonalization_epsilon);
    at::bmm_out(batch.right, batch.matrices.transpose(1, 2), batch.left);
  }
  right_work_ = all_reduce(right_);
}

at::Tensor PowerSgdRound::finish() {
  if (right_work_) {
    right_work_->wait();
    right_.div_(group_->getSize());
  }
  for (auto& batch : batches_) {
    at::bmm_out(batch.matrices, batch.left, batch.right.transpose(1, 2));
    for (size_t i = 0; i < batch.parts.size(); ++i) batch.parts[i].copy_(batch.matrices[static_cast<int64_t>(i)]);
  }
  if (state_.options().use_error_feedback) state_.errors()[bucket_] = before_.sub_(content_);
  if (state_.options().warm_start) state_.factors()[bucket_] = right_;
  if (!content_.is_alias_of(gradients_)) gradients_.copy_(content_.narrow(0, 0, gradients_.numel()));
  return gradients_;
}

}  // namespace accelerate::detail
