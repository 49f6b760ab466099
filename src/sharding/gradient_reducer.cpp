#include "sharding/gradient_reducer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "residency/host_memory.h"
#include "sharding/own_operators.h"

namespace accelerate::detail {
namespace {

/// Reductions under way: one is sent while the next one fills up.
constexpr size_t kReductionsAtOnce = 1;
/// Gradients on their way to host memory, which take memory of the device until they are there.
constexpr size_t kArrivalsAtOnce = 2;
/// Of a parameter that belongs to no unit.
constexpr size_t kWhole = SIZE_MAX;

}  // namespace

/// Called when a gradient has been added to its parameter.
struct GradientReducer::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(std::weak_ptr<GradientReducer> its_reducer, size_t its_unit, size_t its_weight)
      : reducer(std::move(its_reducer)), unit(its_unit), weight(its_weight) {}
  void operator()(const at::Tensor& parameter) override {
    if (const auto alive = reducer.lock()) alive->add(unit, weight, parameter);
  }
  std::weak_ptr<GradientReducer> reducer;
  size_t unit, weight;
};

/// Called before one is: what the parameter shows until then is kept by its piece, and must not be added to.
struct GradientReducer::PreHook : torch::autograd::FunctionPreHook {
  explicit PreHook(std::weak_ptr<GradientReducer> its_reducer) : reducer(std::move(its_reducer)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    if (const auto alive = reducer.lock()) alive->enter_backward();
    return gradients;
  }
  std::weak_ptr<GradientReducer> reducer;
};

GradientReducer::GradientReducer(std::vector<std::shared_ptr<ShardedUnit>> units, std::vector<NamedWeight> whole,
                                 std::shared_ptr<ShardGatherer> gatherer, std::shared_ptr<GradientViews> views,
                                 ReduceGroups groups, const ReduceOptions& options, std::source_location where)
    : units_(std::move(units)),
      whole_(std::move(whole)),
      gatherer_(std::move(gatherer)),
      views_(std::move(views)),
      groups_(std::move(groups)),
      reduce_dtype_(options.dtype),
      where_(where),
      pending_(units_.size()),
      host_gradients_(units_.size()),
      asks_(options.find_unused_parameters ? Asks::always : Asks::first) {
  slots_.emplace(slots_on(units_.empty() ? c10::Device(c10::kCPU) : units_.front()->device), UINT64_MAX);
}

void GradientReducer::install_hooks() {
  const auto install = [this](const at::Tensor& parameter, size_t unit, size_t weight) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(weak_from_this(), unit, weight));
    if (unit != kWhole) torch::autograd::impl::add_hook(parameter, std::make_unique<PreHook>(weak_from_this()));
  };
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t weight = 0; weight < units_[unit]->weights.size(); ++weight)
      install(units_[unit]->weights[weight].parameter, unit, weight);
  }
  for (const auto& each : whole_) install(each.parameter, kWhole, 0);
}

void GradientReducer::enter_backward() {
  if (std::exchange(hidden_, true)) return;
  const OwnOperators own;
  hide_gradients();
  finish_with_pass();
}

void GradientReducer::open_pass() {
  if (std::exchange(open_, true)) return;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (pending_[unit].flat.defined()) expect_all(unit);
  }
  if (!std::exchange(hidden_, true)) finish_with_pass();  // of an ignored module alone
}

/// One that begin_backward did not announce.
void GradientReducer::finish_with_pass() {
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->finish_backward();
  });
}

void GradientReducer::expect_all(size_t number) {
  const auto& weights = units_[number]->weights;
  pending_[number].arrived.assign(weights.size(), false);
  pending_[number].missing = static_cast<size_t>(std::count_if(
      weights.begin(), weights.end(), [](const ShardedWeight& weight) { return weight.parameter.requires_grad(); }));
}

void GradientReducer::begin(size_t number, bool accumulates) {
  const ShardedUnit& unit = *units_[number];
  Pending& pending = pending_[number];
  // Sums of several passes keep the precision of the shards.
  const auto dtype = accumulates ? unit.shard.scalar_type() : reduce_dtype_.value_or(unit.dtype);
  const auto bytes = unit.layout.total() * static_cast<int64_t>(c10::elementSize(dtype));
  pending.slot = slots().take(static_cast<uint64_t>(bytes));
  pending.flat = pending.slot.narrow(0, 0, bytes).view(dtype);
  pending.used.assign(unit.weights.size(), false);
  pending.shown.assign(unit.weights.size(), false);
  pending.averaged = !accumulates;
  expect_all(number);
  for (const auto& gap : unit.layout.gaps()) pending.flat.narrow(0, gap.offset, gap.length).zero_();
}

void GradientReducer::add(size_t number, size_t weight, const at::Tensor& parameter) {
  open_pass();
  if (number == kWhole) {
    whole_reached_ = true;
    return;
  }
  const OwnOperators own;
  const at::Tensor gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
  if (!gradient.defined()) return;
  const ShardedUnit& unit = *units_[number];
  if (gradient.requires_grad() || gradient.is_sparse())
    throw UsageError("The gradient of " + unit.weights[weight].name + " of a sharded model " +
                     (gradient.is_sparse() ? "is sparse: construct the embedding without .sparse(true)."
                                           : "has a graph of its own (create_graph): sharded models have no double backward."));
  Pending& pending = pending_[number];
  if (!pending.flat.defined()) begin(number, !pass_syncs_);
  at::Tensor sum = unit.view_in(pending.flat, weight);
  const double share = 1.0 / groups_.world_size();
  if (pending.used[weight]) {
    pending.averaged ? sum.add_(gradient, share) : sum.add_(gradient);
  } else if (!pending.averaged) {
    sum.copy_(gradient);
  } else if (gradient.scalar_type() == sum.scalar_type()) {
    // Computed with in full precision: in 16 bits a third is 0.2 % off.
    at::mul_out(sum, gradient, at::scalar_tensor(share, at::kDouble));
  } else {
    sum.copy_(gradient).mul_(share);
  }
  if (!pending.arrived[weight] && pending.missing > 0) --pending.missing;
  pending.used[weight] = pending.arrived[weight] = true;
  // Where ranks use different parameters a unit is complete on some of them only, and must look the same to all.
  if (pending.missing > 0 || asks_ == Asks::always) return;
  if (pass_syncs_) {
    start(number);
  } else {
    gatherer_->gradients_computed(static_cast<int>(number));
  }
}

void GradientReducer::start(size_t number) {
  while (reductions_.size() >= kReductionsAtOnce) {
    Reduction first = std::move(reductions_.front());
    reductions_.pop_front();
    settle(std::move(first));
  }
  const ShardedUnit& unit = *units_[number];
  Pending gradients = std::exchange(pending_[number], {});
  for (size_t i = 0; i < gradients.used.size(); ++i) {
    if (!gradients.used[i]) unit.view_in(gradients.flat, i).zero_();
  }
  if (!gradients.averaged) gradients.flat.mul_(1.0 / groups_.world_size());
  at::Tensor sent = gradients.flat.to(reduce_dtype_.value_or(unit.dtype));
  at::Tensor result = at::empty({unit.layout.shard_size()}, sent.options());
  BackgroundCollective collective;
  if (groups_.shard_size() == 1) {
    result.copy_(sent.narrow(0, 0, unit.layout.shard_size()));
  } else {
    collective = groups_.shard->start_reduce_scatter(result, sent, unit.label(), where_);
  }
  reductions_.push_back({number, std::move(gradients), std::move(sent), std::move(result), std::move(collective)});
  gatherer_->gradients_computed(static_cast<int>(number));
}

void GradientReducer::settle(Reduction reduction) {
  ShardedUnit& unit = *units_[reduction.unit];
  reduction.collective.wait();
  reduction.sent.reset();
  reduction.gradients.flat.reset();
  slots().give_back(std::move(reduction.gradients.slot));
  if (groups_.replicate) groups_.replicate->start_all_reduce(reduction.result, unit.label(), where_).wait();
  reduced_ = true;
  at::Tensor mine = reduction.result.to(unit.shard.scalar_type());
  if (unit.is_offloaded()) return begin_arrival(reduction.unit, std::move(reduction.gradients.used), std::move(mine));
  give_all(reduction.unit, reduction.gradients.used, mine);
}

/// Into memory that the unit keeps, unless gradients of earlier passes are there.
void GradientReducer::begin_arrival(size_t number, std::vector<bool> used, at::Tensor device) {
  finish_arrivals(/*but=*/kArrivalsAtOnce - 1);
  const ShardedUnit& unit = *units_[number];
  const bool adds_up = std::any_of(unit.weights.begin(), unit.weights.end(),
                                   [](const ShardedWeight& weight) { return weight.piece.grad().defined(); });
  at::Tensor& kept = host_gradients_[number];
  if (!kept.defined()) kept = pinned_memory(device.nbytes());
  const at::Tensor host = adds_up ? pinned_memory(device.nbytes()) : kept;
  if (!lane_) lane_.emplace(unit.device, /*readers=*/0);
  lane_->wait(current_stream(unit.device));
  lane_->copy(device.view(at::kByte), 0, host, 0, device.nbytes());
  arrivals_.push_back({number, std::move(used), std::move(device), host.view(unit.shard.scalar_type()), lane_->mark()});
}

void GradientReducer::finish_arrivals(size_t but) {
  while (arrivals_.size() > but) {
    const Arrival first = std::move(arrivals_.front());
    arrivals_.pop_front();
    first.event->synchronize();
    give_all(first.unit, first.used, first.host);
  }
}

void GradientReducer::give_all(size_t number, const std::vector<bool>& used, const at::Tensor& mine) {
  ShardedUnit& unit = *units_[number];
  for (size_t i = 0; i < unit.weights.size(); ++i) {
    auto& weight = unit.weights[i];
    if (!weight.parameter.requires_grad() && !used[i]) continue;
    const auto piece = unit.layout.piece(i, groups_.shard_rank());
    const at::Tensor gradient = mine.narrow(0, piece.offset, piece.length);
    if (used[i]) {
      give(weight, gradient);
    } else {
      unused_.push_back({number, i, gradient});
    }
  }
}

void GradientReducer::give(ShardedWeight& weight, const at::Tensor& gradient) const {
  at::Tensor& sum = weight.piece.mutable_grad();
  if (sum.defined()) {
    sum.add_(gradient);
  } else {
    // On the same memory and no view of it: LibTorch's zero_grad detaches gradients.
    sum = at::empty({0}, gradient.options())
              .set_(gradient.storage(), gradient.storage_offset(), gradient.sizes(), gradient.strides());
  }
}

void GradientReducer::finish_backward() {
  const OwnOperators own;
  guided_ = hidden_ = false;
  if (!std::exchange(open_, false) || !pass_syncs_) return show_gradients();
  // In the order in which backward passes mostly get there.
  for (size_t unit = units_.size(); unit-- > 0;) {
    if (pending_[unit].flat.defined()) start(unit);
  }
  while (!reductions_.empty()) {
    Reduction first = std::move(reductions_.front());
    reductions_.pop_front();
    settle(std::move(first));
  }
  finish_arrivals(/*but=*/0);
  slots().free_unused();
  give_unused();
  reduce_whole();
  views_->show();
}

/// What no rank used in a pass has no gradient, as in a run that is not sharded: an optimizer leaves it alone. Whether another
/// rank used it is asked in every pass once a rank had unused weights in the first one.
void GradientReducer::give_unused() {
  const auto unused = std::exchange(unused_, {});
  if (asks_ == Asks::never || groups_.world_size() == 1) {
    if (groups_.world_size() > 1 && !unused.empty() && !std::exchange(warned_, true)) {
      get_logger("accelerate")
          .warning({.main_process_only = false},
                   "The parameter {} of a sharded model had gradients in the first backward pass and none in a later one: it is "
                   "stepped with a gradient of zero wherever this rank has no gradient for it.",
                   units_[unused.front().unit]->weights[unused.front().weight].name);
    }
    if (groups_.world_size() == 1) return;
    for (const auto& each : unused) give(units_[each.unit]->weights[each.weight], each.gradient);
    return;
  }
  size_t count = 0;
  std::vector<size_t> first(units_.size());
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    first[unit] = count;
    count += units_[unit]->weights.size();
  }
  at::Tensor used = at::zeros({static_cast<int64_t>(count) + 1}, at::kInt);
  auto* flags = used.data_ptr<int32_t>();
  std::fill(flags, flags + count, 1);
  for (const auto& each : unused) flags[first[each.unit] + each.weight] = 0;
  flags[count] = unused.empty() ? 0 : 1;
  groups_.world->all_reduce(used, c10d::ReduceOp::MAX, "backward", where_);
  if (asks_ == Asks::first) asks_ = flags[count] != 0 ? Asks::always : Asks::never;
  for (const auto& each : unused) {
    if (flags[first[each.unit] + each.weight] != 0) give(units_[each.unit]->weights[each.weight], each.gradient);
  }
}

void GradientReducer::reduce_whole() {
  if (!std::exchange(whole_reached_, false) || groups_.world_size() == 1) return;
  std::vector<at::Tensor> gradients, flats;
  for (const auto& each : whole_) {
    if (!each.parameter.grad().defined()) continue;
    gradients.push_back(each.parameter.grad());
    flats.push_back(gradients.back().reshape({-1}).to(at::kFloat));
  }
  at::Tensor flat = at::cat(flats).mul_(1.0 / groups_.world_size());
  groups_.world->start_all_reduce(flat, "for ignored modules", where_).wait();
  int64_t begin = 0;
  for (auto& gradient : gradients) {
    gradient.copy_(flat.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
    begin += gradient.numel();
  }
}

void GradientReducer::begin_forward() {
  pass_syncs_ = syncs_;
  if (torch::autograd::get_current_graph_task_id() >= 0) return;
  // A backward pass that accelerator.backward did not run, and that ended with an exception.
  if (open_) abort_backward();
  if (std::exchange(hidden_, false)) show_gradients();
}

void GradientReducer::show_gradients() {
  const OwnOperators own;
  show_local_gradients();
  views_->show();
}

void GradientReducer::end_replay() {
  const OwnOperators own;
  views_->show();
  reduced_ = true;
}

void GradientReducer::abort_backward() {
  guided_ = hidden_ = open_ = whole_reached_ = false;
  drop_local_gradients();
  reductions_.clear();
  for (const auto& each : arrivals_) each.event->synchronize();  // it writes to memory that goes now
  arrivals_.clear();
  unused_.clear();
}

/// As data parallelism does: a parameter has the sum of this rank's passes. It lies in the flat vector of its unit.
void GradientReducer::show_local_gradients() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    Pending& pending = pending_[unit];
    for (size_t i = 0; i < pending.used.size(); ++i) {
      if (!pending.used[i]) continue;
      units_[unit]->weights[i].parameter.mutable_grad() = units_[unit]->view_in(pending.flat, i);
      pending.shown[i] = true;
    }
  }
}

void GradientReducer::take_gradient_changes() {
  const OwnOperators own;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const Pending& pending = pending_[unit];
    for (size_t i = 0; i < units_[unit]->weights.size(); ++i) {
      const bool is_local = i < pending.shown.size() && pending.shown[i];
      if (!is_local) views_->take_change(unit, i);
    }
  }
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    Pending& pending = pending_[unit];
    for (size_t i = 0; i < pending.shown.size(); ++i) {
      if (!pending.shown[i]) continue;
      auto& weight = units_[unit]->weights[i];
      const auto& gradient = weight.parameter.grad();
      if (!gradient.defined()) {
        pending.shown[i] = pending.used[i] = false;
        weight.piece.mutable_grad().reset();  // what earlier passes had averaged is gone with it
      } else if (at::Tensor sum = units_[unit]->view_in(pending.flat, i); !gradient.is_alias_of(sum)) {
        sum.copy_(gradient);
      }
    }
    if (pending.flat.defined() && std::find(pending.used.begin(), pending.used.end(), true) == pending.used.end()) drop(unit);
  }
}

void GradientReducer::hide_gradients() {
  take_gradient_changes();
  views_->hide();
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t i = 0; i < pending_[unit].shown.size(); ++i) {
      if (pending_[unit].shown[i]) units_[unit]->weights[i].parameter.mutable_grad().reset();
      pending_[unit].shown[i] = false;
    }
  }
}

bool GradientReducer::has_local_gradients() const {
  return std::any_of(pending_.begin(), pending_.end(), [](const Pending& pending) { return pending.flat.defined(); });
}

TensorDict GradientReducer::local_gradients() const {
  TensorDict gradients;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (!pending_[unit].flat.defined()) continue;
    for (size_t i = 0; i < units_[unit]->weights.size(); ++i) {
      if (pending_[unit].used[i]) gradients[units_[unit]->weights[i].name] = units_[unit]->view_in(pending_[unit].flat, i);
    }
  }
  return gradients;
}

void GradientReducer::set_local_gradient(const std::string& name, const at::Tensor& gradient) {
  const OwnOperators own;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t i = 0; i < units_[unit]->weights.size(); ++i) {
      if (units_[unit]->weights[i].name != name) continue;
      if (!pending_[unit].flat.defined()) begin(unit, /*accumulates=*/true);
      units_[unit]->view_in(pending_[unit].flat, i).copy_(gradient);
      pending_[unit].used[i] = true;
    }
  }
}

void GradientReducer::drop_gradients(const std::function<bool(const ShardedWeight&)>& are_dropped) {
  const OwnOperators own;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    Pending& pending = pending_[unit];
    for (size_t i = 0; i < units_[unit]->weights.size(); ++i) {
      auto& weight = units_[unit]->weights[i];
      if (!are_dropped(weight)) continue;
      if (i < pending.used.size()) pending.used[i] = pending.shown[i] = false;
      // A piece whose gradient was set to zero still has one, which the parameter shows.
      if (!weight.piece.grad().defined() || !views_->shows(unit, i)) weight.parameter.mutable_grad().reset();
    }
    if (pending.flat.defined() && std::find(pending.used.begin(), pending.used.end(), true) == pending.used.end()) drop(unit);
  }
  views_->show();
}

void GradientReducer::drop_local_gradients() {
  hide_gradients();
  for (size_t unit = 0; unit < units_.size(); ++unit) drop(unit);
}

void GradientReducer::drop(size_t unit) {
  if (pending_[unit].slot.defined()) slots().give_back(std::move(pending_[unit].slot));
  pending_[unit] = {};
}

}  // namespace accelerate::detail
