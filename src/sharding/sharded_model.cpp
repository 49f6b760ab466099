#include "sharding/sharded_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <accelerate/checkpoint/module_state.h>
#include <accelerate/checkpoint/optimizer_state.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>
#include <accelerate/residency/materialized.h>
#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <unordered_set>

#include "core/source_line.h"
#include "residency/host_memory.h"
#include "residency/init_log.h"
#include "residency/managed_storage.h"
#include "sharding/own_operators.h"
#include "sharding/sharded_optimizer_state.h"
#include "training/step_recording.h"
#include "training/zero_gradient.h"

namespace accelerate::detail {
namespace {

/// One that the module has as its own dense memory: sharding goes by the order of memory.
at::Tensor dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous(); }

/// The values of a unit's parameters, which under InitEmptyWeights are made now.
std::vector<at::Tensor> values_of(const UnitPlan& plan) {
  std::vector<at::Tensor> values, empty;
  for (const auto& weight : plan.weights) {
    values.push_back(weight.parameter.detach());
    if (weight.parameter.is_meta()) empty.push_back(weight.parameter);
  }
  if (empty.empty()) return values;
  const auto log = InitLog::of(empty.front());
  if (!log) throw UsageError("FSDP: the parameter " + plan.weights.front().name + " is on the meta device, without values.");
  const auto made = log->replay(empty);
  for (size_t i = 0, next = 0; i < values.size(); ++i) {
    if (plan.weights[i].parameter.is_meta()) values[i] = made[next++];
  }
  return values;
}

GatherOptions gather_options(const FsdpOptions& options) {
  const auto strategy = options.sharding_strategy;
  const bool reshards = options.reshard_after_forward.value_or(strategy != ShardingStrategy::shard_grad_op &&
                                                               strategy != ShardingStrategy::hybrid_shard_zero2);
  return {.reshard_after_forward = reshards,
          .forward_prefetch = options.forward_prefetch,
          .backward_prefetch = options.backward_prefetch != BackwardPrefetch::no_prefetch,
          .prefetch_after_gradients = options.backward_prefetch == BackwardPrefetch::backward_post,
          .ahead = options.limit_all_gathers ? size_t{1} : size_t{2}};
}

/// A copy where shards are kept.
at::Tensor shard_memory(const at::Tensor& shard, const FsdpOptions& options) {
  at::Tensor memory;
  if (!options.offload_folder.empty()) {
    memory = file_memory(shard.nbytes(), options.offload_folder);
  } else if (options.cpu_offload && !shard.is_cpu()) {
    memory = pinned_memory(shard.nbytes());  // paged in beside the computing
  } else {
    return shard.clone();
  }
  return memory.view(shard.scalar_type()).copy_(shard);
}

/// A buffer on the memory of a parameter would keep its old values.
void check_aliases(const torch::nn::Module& module, const ShardingPlan& plan) {
  std::unordered_map<const void*, std::string> parameters;
  for (const auto& unit : plan.units) {
    for (const auto& weight : unit.weights) {
      if (!weight.parameter.is_meta()) parameters[weight.parameter.storage().unsafeGetStorageImpl()] = weight.name;
    }
  }
  for (const auto& buffer : module.named_buffers()) {
    if (!buffer.value().defined() || !buffer.value().has_storage()) continue;
    const auto found = parameters.find(buffer.value().storage().unsafeGetStorageImpl());
    if (found == parameters.end()) continue;
    throw UsageError("FSDP: the buffer " + buffer.key() + " of " + module.name() + " shares the memory of the parameter " +
                     found->second + ", which is sharded. Make it a copy, or compute it in forward.");
  }
}

}  // namespace

Slots::Allocate slots_on(c10::Device device) {
  return [device](uint64_t bytes, at::Tensor scrap) {
    if (device.is_cpu()) return host_slot(bytes, std::move(scrap));
    return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(device));
  };
}

at::Tensor in_memory_order(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset()); }

void ShardedUnit::release_parameters() {
  for (auto& weight : weights) {
    const at::Tensor& parameter = weight.parameter;
    weight.parameter = at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().device(at::kMeta));
  }
}

void fill_empty_weights(torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (parameter.defined() && parameter.is_meta()) make_real(parameter, values_of({"", {{item.key(), parameter}}}).front());
  }
}

ShardedModel::ShardedModel(std::shared_ptr<torch::nn::Module> module, const ProcessState& state, const FsdpOptions& options,
                           bool find_unused_parameters, std::source_location where)
    : module_(std::move(module)), world_(state), options_(options), where_(where), shard_(state) {
  if (has_offloaded_params(*module_))
    throw UsageError("FSDP: " + module_->name() + " is dispatched or offloaded already. Give prepare a module as it was made.");
  intercept_operators();
  join_groups();
  gatherer_ = std::make_shared<ShardGatherer>(shard_.communicator(), gather_options(options), where);
  auto plan = plan_units(*module_, options);
  for (const auto& unit : plan.units) {
    for (const auto& weight : unit.weights) {
      if (record_of(weight.parameter))
        throw UsageError("FSDP: the parameter " + weight.name + " of " + module_->name() +
                         " is sharded by another prepared model.");
    }
  }
  check_aliases(*module_, plan);
  const OwnOperators own;
  for (const auto& unit : plan.units) shard_unit(unit, options.sync_module_states);
  whole_ = std::move(plan.whole);
  for (const auto& each : whole_) keep_whole(each.parameter);
  views_ = std::make_shared<GradientViews>(units_, shard_.communicator(), where);
  reducer_ = std::make_shared<GradientReducer>(
      units_, whole_, gatherer_, views_,
      ReduceGroups{world_.communicator(), shard_.communicator(), replicate_ ? replicate_->communicator() : nullptr},
      ReduceOptions{options.mixed_precision ? options.mixed_precision->reduce_dtype : std::nullopt, find_unused_parameters},
      where);
  reducer_->install_hooks();
}

ShardedModel::~ShardedModel() {
  views_->release();
  gatherer_->release();
}

/// The hybrid strategies: ranks next to each other hold a copy of the weights together, and those with the same place in
/// different copies hold the same shard.
void ShardedModel::join_groups() {
  const auto strategy = options_.sharding_strategy;
  if (strategy != ShardingStrategy::hybrid_shard && strategy != ShardingStrategy::hybrid_shard_zero2) return;
  const int ranks = world_.num_processes();
  int size = options_.shard_group_size;
  if (size == 0) {
    const auto local = gather_object(world_, std::vector<int64_t>{world_.local_process_index()}, where_);
    while (size < ranks && local[static_cast<size_t>(size)] == size) ++size;  // of the first host
  }
  if (size < 1 || ranks % size != 0)
    throw UsageError("FSDP: shard_group_size is " + std::to_string(size) + ", which does not divide the " +
                     std::to_string(ranks) + " processes into equal groups.");
  shard_ = world_.split_group(world_.process_index() / size, where_);
  if (size < ranks) replicate_ = world_.split_group(world_.process_index() % size, where_);
}

void ShardedModel::shard_unit(const UnitPlan& plan, bool broadcasts) {
  const int rank = shard_.process_index();
  std::vector<int64_t> sizes;
  for (const auto& weight : plan.weights) sizes.push_back(weight.parameter.numel());
  const auto device = world_.device().is_cpu() ? c10::Device(c10::kCPU) : world_.device();
  auto unit = std::make_shared<ShardedUnit>(
      ShardedUnit{.name = plan.name, .layout = FlatLayout(std::move(sizes), shard_.num_processes())});
  const auto values = values_of(plan);
  const auto dtype = values.front().scalar_type();
  unit->dtype = options_.mixed_precision && options_.mixed_precision->param_dtype && c10::isFloatingType(dtype)
                    ? *options_.mixed_precision->param_dtype
                    : dtype;
  unit->device = device;
  // One unit at a time is whole on each rank, so that no rank holds the model twice.
  at::Tensor flat = at::zeros({unit->layout.total()}, at::TensorOptions().dtype(dtype).device(device));
  for (size_t i = 0; i < values.size(); ++i)
    flat.narrow(0, unit->layout.offset(i), unit->layout.size(i)).copy_(in_memory_order(dense(values[i])));
  if (broadcasts && world_.num_processes() > 1) world_.communicator()->broadcast(flat, 0, "prepare", where_);
  unit->shard = shard_memory(flat.narrow(0, rank * unit->layout.shard_size(), unit->layout.shard_size()), options_);
  for (size_t i = 0; i < plan.weights.size(); ++i) {
    at::Tensor parameter = plan.weights[i].parameter;
    const auto value = dense(values[i]);
    total_bytes_ += static_cast<int64_t>(value.nbytes());
    // A storage of its own, of which nothing is touched before it is released.
    make_real(parameter, at::empty_strided(value.sizes(), value.strides(), value.options().dtype(unit->dtype).device(device)));
    const auto piece = unit->layout.piece(i, rank);
    unit->weights.push_back({plan.weights[i].name, parameter, unit->shard.narrow(0, piece.offset, piece.length).detach()});
    unit->weights.back().piece.set_requires_grad(parameter.requires_grad());
    const Place place{units_.size(), i};
    places_[parameter.unsafeGetTensorImpl()] = place;
    places_[unit->weights.back().piece.unsafeGetTensorImpl()] = place;
  }
  units_.push_back(unit);
  gatherer_->add_unit(unit);
}

void ShardedModel::keep_whole(at::Tensor parameter) {
  const auto device = world_.device().is_cpu() ? c10::Device(c10::kCPU) : world_.device();
  at::Tensor value = parameter.is_meta() ? values_of({"", {{"", parameter}}}).front() : parameter.detach();
  value = dense(value).to(device);
  if (options_.sync_module_states && world_.num_processes() > 1) {
    at::Tensor sent = in_memory_order(value);
    world_.communicator()->broadcast(sent, 0, "prepare", where_);
  }
  total_bytes_ += static_cast<int64_t>(value.nbytes());
  if (!value.is_alias_of(parameter)) make_real(parameter, value);
}

void ShardedModel::before_forward() {
  check_storages();
  if (!c10::GradMode::is_enabled()) return;
  reducer_->begin_forward();
  for (const auto& unit : units_) {
    for (auto& weight : unit->weights) {
      if (weight.piece.requires_grad() == weight.parameter.requires_grad()) continue;
      weight.piece.set_requires_grad(weight.parameter.requires_grad());
      if (!weight.parameter.requires_grad()) weight.piece.mutable_grad().reset();
    }
  }
  if (reducer_->take_reduced() && !has_optimizer_)
    throw UsageError(
        "The gradients of " + module_->name() + " (prepared" + at_line(where_) +
        ") were reduced, but no prepared optimizer steps it. A sharded model is stepped through its shards: give the "
        "optimizer to accelerator.prepare together with the model.");
}

/// torch::load gives parameters other memory, which would be computed with while the shards are stepped.
void ShardedModel::check_storages() const {
  for (const auto& unit : units_) {
    for (const auto& weight : unit->weights) {
      if (!has_key(weight.parameter))
        throw UsageError("The parameter " + weight.name + " of " + module_->name() + " was converted, moved or replaced after " +
                         "the model was sharded" + at_line(where_) + ". Convert the module before prepare.");
      if (weight.parameter.storage().unsafeGetStorageImpl() == weight.storage._unsafe_get_target()) continue;
      throw UsageError("The parameter " + weight.name + " of " + module_->name() +
                       " got other memory after the model was sharded" + at_line(where_) +
                       ", as torch::load and set_data give it. Load before prepare, or with " +
                       "accelerate::load_checkpoint_in_model or load_state.");
    }
  }
}

void ShardedModel::before_step() {
  check_storages();
  reducer_->take_gradient_changes();
  if (reducer_->has_local_gradients())
    throw UsageError(
        "An optimizer would step " + module_->name() + " (prepared" + at_line(where_) +
        ") with gradients that were not averaged over the ranks: its last backward passes ran under no_sync. Run the "
        "last one before a step outside no_sync; accumulate(model) does this automatically.");
  gatherer_->invalidate();
}

void ShardedModel::set_averaged_gradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  const OwnOperators own;
  const Place place = *place_of(parameter);
  at::Tensor& piece = units_[place.unit]->weights[place.weight].piece;
  piece.mutable_grad() = part_of(gradient, place).to(piece.options(), /*non_blocking=*/false, /*copy=*/true);
  views_->show();
}

void ShardedModel::check_recordable() const {
  if (std::any_of(units_.begin(), units_.end(), [](const auto& unit) { return unit->is_offloaded(); }))
    throw NotRecordable("the shards of its model are in host memory");
  if (!reducer_->is_settled())
    throw NotRecordable("the ranks of its sharded model ask each other in every backward pass which parameters were used");
  if (reducer_->has_local_gradients())
    throw NotRecordable(
        "ranks keep their own gradients of its sharded model over several steps: set gradient_accumulation.sync_each_batch");
}

void ShardedModel::begin_captured() {
  reducer_->begin_replay();
  gatherer_->invalidate();
}

void ShardedModel::end_captured() {
  gatherer_->invalidate();
  reducer_->end_replay();
}

void ShardedModel::abandon_captured() {
  reducer_->abort_backward();
  gatherer_->invalidate();
}

void ShardedModel::gradients_dropped(const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> pieces;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& piece : group.params()) pieces.insert(piece.unsafeGetTensorImpl());
  }
  reducer_->drop_gradients([&](const ShardedWeight& weight) { return pieces.contains(weight.piece.unsafeGetTensorImpl()); });
}

void ShardedModel::zero_grad(bool set_to_none) {
  for (const auto& unit : units_) {
    for (const auto& weight : unit->weights) zero_gradient(weight.piece, set_to_none);
  }
  reducer_->drop_gradients([](const ShardedWeight&) { return true; });
  for (const auto& each : whole_) zero_gradient(each.parameter, set_to_none);
}

std::vector<at::Tensor> ShardedModel::pieces() const {
  std::vector<at::Tensor> pieces;
  for (const auto& [name, piece] : named_pieces()) pieces.push_back(piece);
  return pieces;
}

TensorDict ShardedModel::named_pieces() const {
  TensorDict named;
  for (const auto& item : module_->named_parameters()) {
    const auto piece = piece_of(item.value());
    named[item.key()] = piece ? *piece : item.value();
  }
  return named;
}

std::optional<ShardedModel::Place> ShardedModel::place_of(const at::Tensor& tensor) const {
  const auto found = places_.find(tensor.unsafeGetTensorImpl());
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<at::Tensor> ShardedModel::piece_of(const at::Tensor& parameter) const {
  const auto place = place_of(parameter);
  return place ? std::optional(units_[place->unit]->weights[place->weight].piece) : std::nullopt;
}

at::Tensor ShardedModel::part_of(const at::Tensor& full, const Place& place) const {
  const ShardedUnit& unit = *units_[place.unit];
  const auto& parameter = unit.weights[place.weight].parameter;
  const auto piece = unit.layout.piece(place.weight, shard_.process_index());
  at::Tensor ordered = full;
  if (full.strides() != parameter.strides()) {
    ordered = at::empty_strided(parameter.sizes(), parameter.strides(), full.options());
    ordered.copy_(full);
  }
  return in_memory_order(ordered).narrow(0, piece.begin, piece.length);
}

bool ShardedModel::adopt(torch::optim::Optimizer& optimizer) {
  bool steps = false;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) steps |= place_of(parameter).has_value();
  }
  if (!steps) return false;
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer))
    throw UsageError(
        "LBFGS cannot step a sharded model: it needs the dot products of whole gradients. Use an optimizer that "
        "steps each element by itself, or sharding_strategy no_shard.");
  has_optimizer_ = true;
  std::optional<StateDict> state;
  if (!optimizer.state().empty()) state = shard_optimizer_state(*this, optimizer, accelerate::state_dict(optimizer));
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) {
      if (const auto piece = piece_of(parameter)) parameter = *piece;
    }
  }
  if (state) accelerate::load_state_dict(optimizer, std::move(*state));
  return true;
}

at::Tensor ShardedModel::gather_shards(const ShardedUnit& unit, const at::Tensor& shard, const char* call) const {
  at::Tensor sent = shard.to(unit.device);
  if (shard_.num_processes() == 1) return sent;
  at::Tensor full = at::empty({unit.layout.total()}, sent.options());
  shard_.communicator()->all_gather(full, sent, call, where_);
  return full;
}

std::vector<ShardedModel::Entry> ShardedModel::entries() const {
  std::unordered_map<const void*, Place> by_storage;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t i = 0; i < units_[unit]->weights.size(); ++i)
      by_storage[units_[unit]->weights[i].storage._unsafe_get_target()] = {unit, i};
  }
  std::vector<Entry> entries;
  for (const auto& [name, tensor] : accelerate::state_dict(*module_)) {
    const auto found = by_storage.find(tensor.storage().unsafeGetStorageImpl());
    entries.push_back({name, tensor, found == by_storage.end() ? std::nullopt : std::optional(found->second)});
  }
  return entries;
}

TensorDict ShardedModel::full_state_dict(bool keeps) const {
  const OwnOperators own;
  std::vector<std::vector<at::Tensor>> gathered(units_.size());
  for (size_t number = 0; number < units_.size(); ++number) {
    const auto& unit = units_[number];
    const at::Tensor full = gather_shards(*unit, unit->shard, "get_state_dict");
    for (size_t i = 0; keeps && i < unit->weights.size(); ++i) {
      const auto view = unit->view_in(full, i);
      gathered[number].push_back(view.is_cpu() ? view.clone() : view.cpu());
    }
  }
  TensorDict state;
  if (!keeps) return state;
  for (const auto& [name, tensor, place] : entries()) state[name] = place ? gathered[place->unit][place->weight] : tensor.cpu();
  return state;
}

void ShardedModel::load_full_state_dict(const TensorDict& state) {
  const OwnOperators own;
  for (const auto& [name, tensor, place] : entries()) {
    if (!state.contains(name)) continue;
    if (place) {
      units_[place->unit]->weights[place->weight].piece.detach().copy_(part_of(state.at(name), *place));
    } else {
      at::Tensor(tensor).copy_(state.at(name));
    }
  }
  gatherer_->invalidate();
}

void ShardedModel::load_shards(const std::vector<at::Tensor>& shards, const TensorDict& whole) {
  const OwnOperators own;
  for (size_t i = 0; i < units_.size(); ++i) units_[i]->shard.copy_(shards[i]);
  for (const auto& [name, tensor, place] : entries()) {
    if (!place && whole.contains(name)) at::Tensor(tensor).copy_(whole.at(name));
  }
  gatherer_->invalidate();
}

bool ShardedModel::saves_shards() const {
  return options_.state_dict_type.value_or(options_.version == 2 ? StateDictType::sharded : StateDictType::full) ==
         StateDictType::sharded;
}

int64_t ShardedModel::local_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_) bytes += static_cast<int64_t>(unit->shard.nbytes());
  for (const auto& each : whole_) bytes += static_cast<int64_t>(each.parameter.nbytes());
  return bytes;
}

}  // namespace accelerate::detail
