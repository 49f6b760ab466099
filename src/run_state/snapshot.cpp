#include "run_state/snapshot.h"

#include <accelerate/checkpoint/module_state.h>
#include <accelerate/checkpoint/optimizer_state.h>
#include <accelerate/parallel/model.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "checkpoint/tensor_file.h"
#include "checkpoint/value_file.h"
#include "parallel/data_parallel.h"
#include "run_state/checkpoint_files.h"
#include "run_state/hook_states.h"
#include "run_state/named_optimizer_state.h"
#include "run_state/parameter_names.h"
#include "run_state/run_parts.h"
#include "run_state/sharded_snapshot.h"
#include "sharding/sharded_model.h"
#include "sharding/sharded_optimizer_state.h"

namespace accelerate::detail {
namespace {

/// Collects files, of copies where the run continues. Those of weights and of optimizers are made later: they are most of it, and
/// nothing but operators writes to them. What objects of the user have is theirs to write to in any way.
class SnapshotFiles {
 public:
  explicit SnapshotFiles(HostCopies* copies) : copies_(copies) {}

  void add(const std::string& name, StateDict state, CopyTime when = CopyTime::now) {
    Value value = copies_ ? copied_value(state, *copies_, when) : Value(std::move(state));
    files.push_back(
        {name, [name, value = std::move(value)](ByteSink& sink) { write_value(sink, torch_archive_name(name), value); }});
  }

  void add(const std::string& name, TensorFormat format, TensorDict tensors, CopyTime when = CopyTime::now) {
    if (copies_) {
      for (auto& item : tensors) item.second = copies_->add(item.second, when);
    }
    files.push_back(
        {name, [name, format, tensors = std::move(tensors)](ByteSink& sink) { write_tensors(sink, format, name, tensors); }});
  }

  std::vector<PendingFile> files;

 private:
  HostCopies* copies_;
};

/// With what the schedulers of Python keep among its options.
StateDict with_group_fields(StateDict state, const AcceleratedOptimizer& optimizer,
                            const std::vector<AcceleratedScheduler>& schedulers) {
  auto& groups = state.at("param_groups").as<Value::List>();
  for (size_t i = 0; i < groups.size(); ++i) {
    StateDict fields;
    for (const auto& [name, value] : groups[i].as<StateDict>()) {
      if (name == "params") {  // Python has them last
        for (const auto& scheduler : schedulers) {
          if (scheduler.optimizer() != &optimizer.optimizer()) continue;
          for (const auto& [field, kept] : scheduler.group_fields(i)) fields[field] = kept;
        }
      }
      fields[name] = value;
    }
    groups[i] = std::move(fields);
  }
  return state;
}

/// Gradients of an accumulation that has not reached its step.
TensorDict pending_gradients(const RunParts& parts) {
  TensorDict gradients;
  for (size_t i = 0; i < parts.models.size(); ++i) {
    const auto* sharded = parts.models[i]->sharded();
    if (sharded) {
      sharded->take_gradient_changes();
      for (const auto& [name, gradient] : sharded->reducer().local_gradients()) gradients[parameter_key(i, name)] = gradient;
    }
    for (const auto& [name, parameter] : parts.models[i]->named_parameters()) {
      if (const auto piece = sharded ? sharded->piece_of(parameter) : std::nullopt) {
        if (piece->grad().defined()) gradients[piece_key(i, name)] = piece->grad();
        continue;
      }
      const auto gradient = parts.buffers ? parts.buffers->sum_of(parameter) : parameter.grad();
      if (gradient.defined()) gradients[parameter_key(i, name)] = gradient;
    }
  }
  return gradients;
}

/// Of each model; see DataParallel.
Value::List gradient_orders_of(const RunParts& parts) {
  Value::List orders;
  for (const auto& model : parts.models) {
    const auto& parallel = model->data_parallel();
    const auto order = parallel ? parallel->gradient_order() : std::vector<std::string>();
    orders.emplace_back(Value::List(order.begin(), order.end()));
  }
  return orders;
}

StateDict own_state(const RunParts& parts) {
  Value::List loaders;
  for (const auto& loader : parts.loaders) loaders.emplace_back(loader.state_dict());
  return {{"format", 1},
          {"step", parts.gradients->step()},
          {"sync_gradients", parts.gradients->sync_gradients()},
          {"loaders", std::move(loaders)},
          {"parameter_names", parameter_names(parts)},
          {"gradient_orders", gradient_orders_of(parts)}};
}

/// A sharded model that is saved as a whole has the name and the format that Python's FSDP looks for.
void add_weights(SnapshotFiles& snapshot, const RunParts& parts, const std::vector<TensorDict>& weights,
                 bool safe_serialization) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const ModelCore* model = i < parts.models.size() ? parts.models[i].get() : nullptr;  // hooks may have changed them
    if (model && saves_shards(*model) && weights[i].empty()) continue;
    if (model && model->sharded()) {
      snapshot.add(sharded_model_name(i), TensorFormat::torch, weights[i], CopyTime::later);
    } else if (safe_serialization) {
      snapshot.add(numbered_name("model", i, ".safetensors"), TensorFormat::safetensors, without_tied(weights[i]),
                   CopyTime::later);
    } else {
      snapshot.add(numbered_name("pytorch_model", i, ".bin"), TensorFormat::torch, weights[i], CopyTime::later);
    }
  }
}

bool steps_sharded(const RunParts& parts, const AcceleratedOptimizer& optimizer) {
  for (const auto& parameter : optimizer.parameters()) {
    for (const auto& model : parts.models) {
      if (model->sharded() && model->sharded()->place_of(parameter)) return true;
    }
  }
  return false;
}

void add_shared(SnapshotFiles& snapshot, const RunParts& parts, const std::vector<StateDict>& optimizers) {
  for (size_t i = 0; i < optimizers.size(); ++i) {
    const auto& optimizer = parts.optimizers[i];
    if (saves_shards(parts, optimizer)) continue;
    snapshot.add(optimizer_name(i),
                 steps_sharded(parts, optimizer) ? named_state(optimizers[i], group_names(parts, optimizer)) : optimizers[i],
                 CopyTime::later);
  }
  for (size_t i = 0; i < parts.schedulers.size(); ++i) {
    snapshot.add(numbered_name("scheduler", i, ".bin"), parts.schedulers[i].state_dict());
  }
  if (parts.scaler) snapshot.add(kScaler, parts.scaler->state_dict());
  for (size_t i = 0; i < parts.registered.size(); ++i) {
    snapshot.add(registered_name(i), parts.registered[i].state_dict());
  }
  snapshot.add(kOwnState, own_state(parts));
}

}  // namespace

Value copied_value(const Value& value, HostCopies& copies, CopyTime when) {
  switch (value.kind()) {
    case Value::Kind::tensor:
      return copies.add(value.as<at::Tensor>(), when);
    case Value::Kind::list: {
      Value::List list;
      for (const auto& item : value.as<Value::List>()) list.push_back(copied_value(item, copies, when));
      return list;
    }
    case Value::Kind::tuple: {
      Value::List list;
      for (const auto& item : value.as<Value::Tuple>().items) list.push_back(copied_value(item, copies, when));
      return Value::Tuple(std::move(list));
    }
    case Value::Kind::dict: {
      StateDict dict;
      dict.set_numbered(value.as<StateDict>().is_numbered());
      for (const auto& [name, item] : value.as<StateDict>()) dict[name] = copied_value(item, copies, when);
      return dict;
    }
    default:
      return value;
  }
}

std::vector<TensorDict> model_weights(const RunParts& parts, bool keeps) {
  std::vector<TensorDict> weights;
  for (const auto& model : parts.models) weights.push_back(saves_shards(*model) ? TensorDict() : model->state_dict(keeps));
  return weights;
}

std::vector<StateDict> optimizer_states(const RunParts& parts, bool keeps) {
  std::vector<StateDict> states;
  for (const auto& optimizer : parts.optimizers) {
    const bool is_sharded = saves_shards(parts, optimizer);
    StateDict state = accelerate::state_dict(optimizer.optimizer());
    for (const auto& model : parts.models) {
      if (model->sharded() && !is_sharded)
        state = gather_optimizer_state(*model->sharded(), optimizer.optimizer(), std::move(state), keeps);
    }
    states.push_back(keeps || is_sharded ? with_group_fields(std::move(state), optimizer, parts.schedulers) : StateDict());
  }
  return states;
}

RunSnapshot take_snapshot(const RunParts& parts, const std::vector<TensorDict>& weights, const std::vector<StateDict>& optimizers,
                          std::shared_ptr<const PythonRandomStates> python_random, const SnapshotOptions& options) {
  if (options.copies) options.copies->begin();
  SnapshotFiles snapshot(options.copies);
  RunSnapshot taken;
  for (size_t i = 0; i < std::min(weights.size(), parts.models.size()); ++i) {  // hooks may have taken some out
    if (saves_shards(*parts.models[i]) && weights[i].empty()) add_shards(taken, parts, i, options.copies);
  }
  for (size_t i = 0; i < parts.optimizers.size(); ++i) {
    if (saves_shards(parts, parts.optimizers[i])) add_shards(taken, parts, i, optimizers[i], options.copies);
  }
  if (options.writes_shared) {
    add_weights(snapshot, parts, weights, options.safe_serialization);
    add_shared(snapshot, parts, optimizers);
  }
  if (!parts.gradients->sync_gradients()) {
    TensorDict gradients = pending_gradients(parts);
    if (!gradients.empty()) {
      snapshot.add(gradients_name(parts.state.process_index()), TensorFormat::safetensors, std::move(gradients));
    }
  }
  if (StateDict hooks = hook_states_of(parts); !hooks.empty()) {
    snapshot.add(hook_states_name(parts.state.process_index()), std::move(hooks));
  }
  const std::string name = random_states_name(parts.state.process_index());
  const auto random = current_random_states(parts.gradients->step(), std::move(python_random));
  snapshot.files.push_back(
      {name, [name, random](ByteSink& sink) { write_random_states(sink, torch_archive_name(name), random); }});
  for (auto& file : snapshot.files) taken.files.push_back(std::move(file));
  if (options.copies) taken.copies = options.copies->finish();
  return taken;
}

}  // namespace accelerate::detail
