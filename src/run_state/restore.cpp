#include "run_state/restore.h"

#include <accelerate/checkpoint/module_state.h>
#include <accelerate/checkpoint/optimizer_state.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/objects.h>
#include <accelerate/parallel/model.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "checkpoint/module_fit.h"
#include "data/loader_core.h"
#include "parallel/data_parallel.h"
#include "run_state/checkpoint_files.h"
#include "run_state/checkpoint_reader.h"
#include "run_state/hook_states.h"
#include "run_state/run_parts.h"
#include "run_state/snapshot.h"
#include "sharding/sharded_model.h"
#include "sharding/sharded_optimizer_state.h"

namespace accelerate::detail {
namespace {

/// Calls `load`. What it throws is reported with the file of the state: the state's owner does not know it.
template <class Load>
void load_from(const std::string& file, Load&& load) {
  try {
    load();
  } catch (const std::exception& error) {
    throw CheckpointError(fmt::format("{} does not fit this run: {}", file, error.what()));
  }
}

/// Loads into anything that has a state_dict. `kept` is how it was before.
template <class Object>
void load_reversibly(Object object, StateDict kept, const StateDict& state, Rollback& rollback) {
  // Before the call: what throws in its middle may have changed a part of itself.
  rollback.add([object, kept = std::move(kept)]() mutable { object.load_state_dict(kept); });
  object.load_state_dict(state);
}

void load_optimizers(RunParts& parts, LoadedRun& loaded, Rollback& rollback) {
  for (size_t i = 0; i < parts.optimizers.size(); ++i) {
    auto* optimizer = &parts.optimizers[i].optimizer();
    // Its tensors are replaced, not written to, so that those that are kept stay as they are.
    rollback.add([optimizer, kept = state_dict(*optimizer)]() mutable { load_state_dict(*optimizer, std::move(kept)); });
    const auto& source = loaded.optimizer_sources[i];
    load_from(loaded.file(source.name), [&] {
      for (const auto& model : parts.stepped_models()) {
        if (model->sharded() && !source.is_part)
          loaded.optimizers[i] = shard_optimizer_state(*model->sharded(), *optimizer, std::move(loaded.optimizers[i]));
      }
      load_state_dict(*optimizer, std::move(loaded.optimizers[i]));
    });
  }
}

/// Not what was read, which may lie in the middle of a file's bytes.
at::Tensor own_copy(const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.to(parameter.options(), /*non_blocking=*/false, /*copy=*/true);
}

/// The state of a loader that begins an epoch again of which batches were left.
StateDict at_start_of_epoch(StateDict state) {
  const bool ended = state.contains("ended") && state.at("ended").get<bool>();
  if (!ended) state["under_way"] = false;
  return state;
}

/// The order in which the gradients of each model came; of none in checkpoints of earlier versions.
std::vector<std::vector<std::string>> loaded_gradient_orders(const LoadedRun& loaded) {
  if (!loaded.own || !loaded.own->contains("gradient_orders")) return {};
  return from_value<std::vector<std::vector<std::string>>>(loaded.own->at("gradient_orders"));
}

void load_loaders(RunParts& parts, const LoadedRun& loaded, Rollback& rollback) {
  if (!loaded.own) return;
  load_from(loaded.file(kOwnState), [&] {
    const auto& states = loaded.own->at("loaders").as<Value::List>();
    for (size_t i = 0; i < std::min(states.size(), parts.loaders.size()); ++i) {
      const auto& saved = states[i].as<StateDict>();
      rollback.add(undo_of_load(parts.loaders[i]));
      parts.loaders[i].load_state_dict(loaded.restart_epoch ? at_start_of_epoch(saved) : saved);
    }
    loaded.own->at("sync_gradients").get<bool>();  // throws here, not when weights have been set
    loaded.own->at("step").get<int64_t>();
    loaded_gradient_orders(loaded);
  });
}

}  // namespace

Rollback::~Rollback() {
  for (auto undo = undos_.rbegin(); undo != undos_.rend(); ++undo) {
    try {
      (*undo)();
    } catch (...) {  // it refuses its own state: there is nothing more to be done for it
    }
  }
}

void restore_states(RunParts& parts, LoadedRun& loaded, Rollback& rollback) {
  for (size_t i = 0; i < parts.models.size(); ++i) {
    load_from("The weights of model " + std::to_string(i) + " in " + loaded.folder,
              [&] { check_fit(parts.models[i]->module(), loaded.models[i], {}); });
  }
  rollback.add([now = current_random_states(0, nullptr)] { restore_random_states(now); });
  load_optimizers(parts, loaded, rollback);
  for (size_t i = 0; i < parts.schedulers.size(); ++i) {
    load_from(loaded.file(numbered_name("scheduler", i, ".bin")),
              [&] { load_reversibly(parts.schedulers[i], parts.schedulers[i].state_dict(), loaded.schedulers[i], rollback); });
  }
  if (loaded.scaler && !parts.scaler->state_dict().empty()) {
    auto* scaler = parts.scaler.get();
    rollback.add([scaler, kept = scaler->state_dict()] { scaler->load_state_dict(kept); });
    load_from(loaded.file(kScaler), [&] { scaler->load_state_dict(*loaded.scaler); });
  }
  for (size_t i = 0; i < parts.registered.size(); ++i) {
    HostCopies copies;
    StateDict kept = copied_value(parts.registered[i].state_dict(), copies).as<StateDict>();
    copies.finish();
    load_from(loaded.file(registered_name(i)),
              [&] { load_reversibly(parts.registered[i], std::move(kept), loaded.registered[i], rollback); });
  }
  load_loaders(parts, loaded, rollback);
  if (loaded.hooks) {
    // Their tensors are replaced, not written to.
    rollback.add([parts, kept = hook_states_of(parts)] { load_hook_states(parts, kept); });
    load_from(loaded.file(hook_states_name(parts.state.process_index())), [&] { load_hook_states(parts, *loaded.hooks); });
  }
  if (loaded.random) {
    load_from(loaded.file(random_states_name(parts.state.process_index())), [&] { restore_random_states(*loaded.random); });
  }
}

namespace {

/// The elements of a dense parameter's memory, in its shape. What follows them is another copy.
at::Tensor shaped_as(const at::Tensor& parameter, const at::Tensor& elements) {
  const bool is_dense = parameter.is_non_overlapping_and_dense();
  return is_dense ? elements.as_strided(parameter.sizes(), parameter.strides())
                  : elements.narrow(0, 0, parameter.numel()).view(parameter.sizes());
}

void set_gradient(RunParts& parts, const at::Tensor& parameter, const at::Tensor& gradient) {
  if (parts.buffers) {
    parts.buffers->set_sum(parameter, gradient);
  } else {
    at::Tensor(parameter).mutable_grad() = own_copy(gradient, parameter);
  }
}

}  // namespace

void restore_weights(RunParts& parts, const LoadedRun& loaded) {
  if (parts.buffers) parts.buffers->clear();
  for (size_t i = 0; i < parts.models.size(); ++i) {
    auto* sharded = parts.models[i]->sharded();
    if (loaded.shards[i]) {
      sharded->load_shards(loaded.shards[i]->shards, loaded.shards[i]->whole);
    } else {
      parts.models[i]->load_state_dict(loaded.models[i]);
    }
    parts.models[i]->weights_loaded();
    for (const auto& [name, parameter] : parts.models[i]->named_parameters()) {
      const std::string key = parameter_key(i, name);
      const bool is_piece = sharded && sharded->piece_of(parameter);
      if (loaded.averaged_gradients.contains(key)) {
        const at::Tensor gradient = shaped_as(parameter, loaded.averaged_gradients.at(key));
        is_piece ? sharded->set_averaged_gradient(parameter, gradient) : set_gradient(parts, parameter, gradient);
      }
      if (!loaded.gradients.contains(key)) continue;
      const at::Tensor& sum = loaded.gradients.at(key);
      is_piece ? sharded->reducer().set_local_gradient(name, sum) : set_gradient(parts, parameter, sum);
    }
  }
  const auto orders = loaded_gradient_orders(loaded);
  for (size_t i = 0; i < std::min(orders.size(), parts.models.size()); ++i) {
    if (const auto& parallel = parts.models[i]->data_parallel()) parallel->expect_gradient_order(orders[i]);
  }
  if (loaded.own) {
    parts.gradients->set_sync_gradients(loaded.own->at("sync_gradients").get<bool>());
    // Also for a process that the saved run did not have, and that has no random states to read it from.
    parts.gradients->set_step(loaded.own->at("step").get<int64_t>());
  } else if (loaded.random) {
    parts.gradients->set_step(loaded.random->step);
  }
}

}  // namespace accelerate::detail
