#include "parallel/join.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <accelerate/core/error.h>
#include <accelerate/parallel/join_scope.h>
#include <accelerate/parallel/model.h>
#include <torch/nn/module.h>

#include <array>
#include <cstring>

#include "distributed/communicator.h"
#include "parallel/data_parallel.h"
#include "parallel/packed_broadcast.h"

namespace accelerate {

using namespace detail;
namespace detail {
namespace {

constexpr const char* kJoinCall = "join_uneven_inputs";

}  // namespace

/// Numbers of which all processes learn the largest of each. Those that have batches send the same ones, the others zeros.
struct Join::Notice {
  enum Kind : int64_t { none, forward, all_reduce };
  int64_t kind = none;
  int64_t model = 0;
  int64_t rebuilds_buckets = 0, sends_buffers = 0;
  int64_t length = 0, dtype = 0;
  /// Rank + 1 of one that has a batch.
  int64_t source = 0;
  /// Rank + 1 of one that has waited for nobody so far.
  int64_t last = 0;
};

Join::Join(const std::vector<std::shared_ptr<ModelCore>>& models, std::source_location where) : where_(where) {
  for (const auto& model : models) {
    if (model->sharded())
      throw UsageError("join_uneven_inputs cannot be used with " + model->module().name() +
                       ", which is sharded: every rank takes part in all of its passes. Let loaders even out their batches.");
    if (model->data_parallel()) models_.push_back(model);
  }
  if (models_.empty()) return;
  communicator_ = models_.front()->state().communicator();
  for (const auto& model : models_) {
    if (model->state().communicator() != communicator_)
      throw UsageError("join_uneven_inputs was given models of different process groups.");
    if (model->data_parallel()->joined())
      throw UsageError("join_uneven_inputs was given a model that is already in a join_uneven_inputs scope.");
    if (model->data_parallel()->hook_state())
      throw UsageError("join_uneven_inputs does not support PowerSGD: its factors must be the same on all processes.");
  }
  for (size_t number = 0; number < models_.size(); ++number) models_[number]->data_parallel()->set_join(this, number);
}

Join::~Join() {
  for (const auto& model : models_) model->data_parallel()->set_join(nullptr, 0);
}

Join::Notice Join::agree(const Notice& mine, const char* call) {
  at::Tensor numbers = at::empty({static_cast<int64_t>(sizeof(Notice) / sizeof(int64_t))}, at::kLong);
  std::memcpy(numbers.data_ptr(), &mine, sizeof(Notice));
  communicator_->all_reduce(numbers, c10d::ReduceOp::MAX, call, where_);
  Notice notice;
  std::memcpy(&notice, numbers.data_ptr(), sizeof(Notice));
  return notice;
}

int Join::tell_forward(size_t model, const Start& start) {
  const auto notice = agree({.kind = Notice::forward,
                             .model = static_cast<int64_t>(model),
                             .rebuilds_buckets = start.rebuilds_buckets,
                             .sends_buffers = start.sends_buffers,
                             .source = communicator_->rank() + 1},
                            "forward");
  return static_cast<int>(notice.source - 1);
}

void Join::tell_all_reduce(size_t model, const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided)
    throw UsageError("join_uneven_inputs does not support sparse gradients: construct the embedding with sparse(false).");
  const Notice mine{.kind = Notice::all_reduce,
                    .model = static_cast<int64_t>(model),
                    .length = tensor.numel(),
                    .dtype = static_cast<int64_t>(tensor.scalar_type()),
                    .source = communicator_->rank() + 1};
  const at::Tensor numbers = at::empty({static_cast<int64_t>(sizeof(Notice) / sizeof(int64_t))}, at::kLong);
  std::memcpy(numbers.data_ptr(), &mine, sizeof(Notice));
  communicator_->transport().all_reduce(numbers, c10d::ReduceOp::MAX);
}

void Join::follow(const Notice& notice) {
  const auto& model = models_.at(static_cast<size_t>(notice.model));
  if (notice.kind == Notice::forward) {
    model->data_parallel()->follow_forward(
        {.rebuilds_buckets = notice.rebuilds_buckets != 0, .sends_buffers = notice.sends_buffers != 0},
        static_cast<int>(notice.source - 1), kJoinCall, where_);
    return;
  }
  const auto options =
      model->parameters().front().options().dtype(static_cast<at::ScalarType>(notice.dtype)).requires_grad(false);
  at::Tensor nothing = at::zeros({notice.length}, options);
  communicator_->all_reduce(nothing, c10d::ReduceOp::SUM, kJoinCall, where_);
}

void Join::finish() {
  if (models_.empty()) return;
  Notice mine{.last = communicator_->rank() + 1};
  Notice notice = agree(mine, kJoinCall);
  while (notice.kind != Notice::none) {
    mine.last = 0;
    follow(notice);
    notice = agree(mine, kJoinCall);
  }
  for (const auto& model : models_) model->data_parallel()->broadcast_all(static_cast<int>(notice.last - 1), kJoinCall, where_);
  communicator_->align_calls(kJoinCall, where_);
}

}  // namespace detail

JoinScope::JoinScope() = default;
JoinScope::JoinScope(const std::vector<std::shared_ptr<detail::ModelCore>>& models, std::source_location where)
    : join_(std::make_unique<detail::Join>(models, where)) {}
JoinScope::JoinScope(JoinScope&& other) noexcept = default;
JoinScope::~JoinScope() = default;

void JoinScope::finish() {
  if (join_) join_->finish();
}

}  // namespace accelerate
