#include "sharding/gradient_views.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <accelerate/core/error.h>
#include <torch/csrc/autograd/graph_task.h>

#include "residency/managed_storage.h"
#include "sharding/own_operators.h"

namespace accelerate::detail {

GradientViews::GradientViews(std::vector<std::shared_ptr<ShardedUnit>> units, const std::shared_ptr<Communicator>& communicator,
                             std::source_location where)
    : units_(std::move(units)),
      communicator_(communicator),
      rank_(communicator ? communicator->rank() : 0),
      ranks_(communicator ? communicator->size() : 1),
      where_(where),
      gathered_(units_.size()) {
  for (const auto& unit : units_) views_.emplace_back(unit->weights.size());
}

/// LibTorch's zero_grad puts a detached one in its place.
bool GradientViews::is_view(const View& view, const at::Tensor& gradient) {
  return gradient.defined() && gradient.is_alias_of(view.gradient);
}

void GradientViews::make_view(size_t unit, size_t weight) {
  const ShardedUnit& sharded = *units_[unit];
  const auto& parameter = sharded.weights[weight].parameter;
  at::Tensor view = at::empty_strided(parameter.sizes(), parameter.strides(), sharded.shard.options().device(sharded.device));
  const auto record =
      std::make_shared<StorageRecord>(shared_from_this(), static_cast<int>(unit), static_cast<int>(weight), Absence::sharded);
  manage(*view.storage().unsafeGetStorageImpl(), record, sharded.device, "gradient of " + sharded.weights[weight].name);
  set_key(view, true);
  views_[unit][weight].gradient = std::move(view);
}

void GradientViews::show() {
  const OwnOperators own;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t i = 0; i < units_[unit]->weights.size(); ++i) {
      const auto& weight = units_[unit]->weights[i];
      View& view = views_[unit][i];
      // Sums of this rank that are shown, or what somebody has given it, stay.
      const bool is_free = !weight.parameter.grad().defined() || shows(unit, i);
      if (shows(unit, i) && !weight.piece.grad().defined()) weight.parameter.mutable_grad().reset();
      view.shown = weight.piece.grad().defined() && is_free;
      if (!view.shown) continue;
      if (!view.gradient.defined()) make_view(unit, i);
      weight.parameter.mutable_grad() = view.gradient;
    }
  }
}

bool GradientViews::shows(size_t unit, size_t weight) const {
  const View& view = views_[unit][weight];
  return view.shown && is_view(view, units_[unit]->weights[weight].parameter.grad());
}

void GradientViews::take_change(size_t unit, size_t number) {
  View& view = views_[unit][number];
  const auto& weight = units_[unit]->weights[number];
  const at::Tensor gradient = weight.parameter.grad();
  if (!view.shown && !gradient.defined()) return;
  if (view.shown && is_view(view, gradient)) return;
  view.shown = false;
  at::Tensor(weight.piece).mutable_grad().reset();
  if (!gradient.defined()) return;
  const auto piece = units_[unit]->layout.piece(number, rank_);
  at::Tensor ordered = at::empty_strided(weight.parameter.sizes(), weight.parameter.strides(), gradient.options());
  ordered.copy_(gradient);
  at::Tensor(weight.piece).mutable_grad() =
      in_memory_order(ordered).narrow(0, piece.begin, piece.length).to(units_[unit]->shard.options(), false, /*copy=*/true);
  weight.parameter.mutable_grad().reset();
}

void GradientViews::hide() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t i = 0; i < views_[unit].size(); ++i) {
      if (std::exchange(views_[unit][i].shown, false)) units_[unit]->weights[i].parameter.mutable_grad().reset();
    }
  }
}

void GradientViews::release() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t i = 0; i < views_[unit].size(); ++i) {
      at::Tensor& gradient = units_[unit]->weights[i].parameter.mutable_grad();
      if (views_[unit][i].shown && is_view(views_[unit][i], gradient)) gradient.reset();
      views_[unit][i] = {};
    }
  }
}

at::Tensor GradientViews::gather(const ShardedUnit& unit) const {
  const auto options = unit.shard.options().device(unit.device);
  at::Tensor mine = at::zeros({unit.layout.shard_size()}, options);
  for (size_t i = 0; i < unit.weights.size(); ++i) {
    const auto piece = unit.layout.piece(i, rank_);
    const auto& gradient = unit.weights[i].piece.grad();
    if (gradient.defined()) mine.narrow(0, piece.offset, piece.length).copy_(gradient);
  }
  if (ranks_ == 1) return mine;
  const auto communicator = communicator_.lock();
  if (!communicator)
    throw UsageError("The gradient of " + unit.weights.front().name +
                     " is sharded over ranks whose accelerator has been destroyed, so it cannot be gathered any more.");
  at::Tensor full = at::empty({unit.layout.total()}, options);
  communicator->start_all_gather(full, mine, "for a gradient of " + unit.name, where_).wait();
  return full;
}

void GradientViews::pin(std::span<const WeightAccess> accesses) {
  if (torch::autograd::get_current_graph_task_id() >= 0) {
    throw UsageError(
        "A second backward pass without a forward pass of the prepared model would add to gradients that are averaged over the "
        "ranks already. Add the losses and run one backward pass, or call accelerator.backward.");
  }
  const OwnOperators own;
  for (const auto& access : accesses) {
    Gathered& unit = gathered_[static_cast<size_t>(access.unit)];
    if (++unit.pins > 1) continue;
    const ShardedUnit& sharded = *units_[static_cast<size_t>(access.unit)];
    unit.full = gather(sharded);
    auto* bytes = static_cast<char*>(unit.full.mutable_data_ptr());
    for (size_t i = 0; i < sharded.weights.size(); ++i) {
      const auto& view = views_[static_cast<size_t>(access.unit)][i].gradient;
      if (view.defined())
        show_bytes(*view.storage().unsafeGetStorageImpl(), bytes + sharded.layout.offset(i) * sharded.shard.element_size());
    }
  }
}

void GradientViews::unpin(std::span<const WeightAccess> accesses, bool succeeded) {
  const OwnOperators own;
  for (const auto& access : accesses) {
    Gathered& unit = gathered_[static_cast<size_t>(access.unit)];
    const ShardedUnit& sharded = *units_[static_cast<size_t>(access.unit)];
    const auto weight = static_cast<size_t>(access.weight);
    const auto piece = sharded.layout.piece(weight, rank_);
    at::Tensor gradient = sharded.weights[weight].piece.grad();
    if (access.writes && succeeded && gradient.defined())
      gradient.copy_(unit.full.narrow(0, sharded.layout.offset(weight) + piece.begin, piece.length));
    if (--unit.pins == 0) evict(static_cast<size_t>(access.unit));
  }
}

void GradientViews::evict(size_t unit) {
  gathered_[unit].full.reset();
  for (size_t i = 0; i < views_[unit].size(); ++i) {
    const auto& view = views_[unit][i].gradient;
    if (view.defined()) hide_bytes(*view.storage().unsafeGetStorageImpl(), "gradient of " + units_[unit]->weights[i].name);
  }
}

}  // namespace accelerate::detail
