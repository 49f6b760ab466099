#include "sharding/sharded_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <unordered_set>

#include "sharding/sharded_model.h"
#include "training/gradient_norm.h"

namespace accelerate::detail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<TensorGroup> kinds_of(const std::vector<at::Tensor>& parameters) {
  std::vector<TensorGroup> kinds;
  for (const auto& parameter : parameters) {
    // A rank may have no element of a parameter.
    if (parameter.grad().defined() && parameter.grad().numel() > 0) add_to_groups(kinds, parameter.grad());
  }
  return kinds;
}

/// The norm of vectors of which each rank of the group has a part, with norm `local`.
at::Tensor norm_over_ranks(const ProcessState& group, const at::Tensor& local, bool has_elements, double norm_type) {
  if (group.num_processes() == 1) return local;
  auto operation = c10d::ReduceOp::SUM;
  at::Tensor part = local.to(at::kFloat);
  double nothing = 0;
  if (norm_type == kInfinity) {
    operation = c10d::ReduceOp::MAX;
  } else if (norm_type == -kInfinity) {
    operation = c10d::ReduceOp::MIN;
    nothing = kInfinity;
  } else if (norm_type != 0) {
    part = part.to(at::kDouble).pow(norm_type);
  }
  if (!has_elements) part = at::full({}, nothing, part.options());
  part = part.reshape({1});
  group.communicator()->all_reduce(part, operation, "clip_grad_norm_", std::source_location::current());
  part = part.reshape({});
  if (operation != c10d::ReduceOp::SUM || norm_type == 0) return part;
  return part.pow(1.0 / norm_type).to(at::kFloat);
}

}  // namespace

ShardedGradients::ShardedGradients(const std::vector<const ShardedModel*>& models, const std::vector<at::Tensor>& parameters) {
  for (const auto* model : models) {
    model->take_gradient_changes();
    sharded_.push_back({model, {}});
  }
  std::unordered_set<const void*> seen;
  for (const auto& parameter : parameters) {
    if (!parameter.defined()) continue;
    bool found = false;
    for (auto& each : sharded_) {
      const auto piece = each.model->piece_of(parameter);
      if (!piece) continue;
      found = any_ = true;
      if (seen.insert(piece->unsafeGetTensorImpl()).second) each.pieces.push_back(*piece);
    }
    if (!found && seen.insert(parameter.unsafeGetTensorImpl()).second) rest_.push_back(parameter);
  }
}

std::vector<at::Tensor> ShardedGradients::all() const {
  std::vector<at::Tensor> all = rest_;
  for (const auto& each : sharded_) all.insert(all.end(), each.pieces.begin(), each.pieces.end());
  return all;
}

at::Tensor ShardedGradients::clip_norm(double max_norm, const ClipGradNormOptions& options) const {
  const at::NoGradGuard no_grad;
  std::vector<TensorGroup> kinds = kinds_of(rest_);
  std::vector<at::Tensor> norms;
  if (!kinds.empty()) norms.push_back(total_norm_of(kinds, options.norm_type));
  for (const auto& each : sharded_) {
    if (each.pieces.empty()) continue;
    const auto own = kinds_of(each.pieces);
    at::Tensor local = total_norm_of(own, options.norm_type);
    // Where the optimizer steps on the host, the collective of a device still wants its tensor there.
    const auto device = each.model->units().front()->device;
    norms.push_back(norm_over_ranks(each.model->shard_group(), local.to(device), !own.empty(), options.norm_type));
    kinds.insert(kinds.end(), own.begin(), own.end());
  }
  if (norms.empty()) return at::zeros({});
  for (auto& norm : norms) norm = norm.to(norms.front().options());
  const auto total = norms.size() == 1 ? norms.front() : at::linalg_vector_norm(at::stack(norms), options.norm_type);
  check_finite(total, options);
  const auto factor = at::clamp(total.add(1e-6).reciprocal().mul(max_norm), std::nullopt, 1.0);
  for (const auto& kind : kinds) at::_foreach_mul_(kind.tensors, factor.to(kind.device, factor.scalar_type()));
  return total;
}

}  // namespace accelerate::detail
