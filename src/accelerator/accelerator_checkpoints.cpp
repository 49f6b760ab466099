#include <accelerate/accelerator/accelerator.h>
#include <accelerate/checkpoint/module_state.h>
#include <accelerate/core/error.h>
#include <accelerate/parallel/model.h>

#include "checkpoint/fetched_weights.h"
#include "checkpoint/shared_failure.h"
#include "run_state/checkpoint_manager.h"
#include "run_state/run_parts.h"
#include "sharding/deepspeed_config.h"
#include "sharding/weight_gatherer.h"

namespace accelerate {

using namespace detail;

RunParts Accelerator::run_parts() const {
  return {state(), models_, optimizers_, schedulers_, loaders_, scaler_, gradients_, registered_, buffers_};
}

std::string Accelerator::save_state(const std::string& folder, const SaveStateOptions& options, std::source_location where) {
  return checkpoints_->save(run_parts(), folder, options, where);
}

std::optional<std::filesystem::path> Accelerator::load_state(const std::string& folder, const LoadStateOptions& options,
                                                             std::source_location where) {
  const auto found = checkpoints_->load(run_parts(), folder, options, where);
  return found ? std::optional<std::filesystem::path>(*found) : std::nullopt;
}

/// DeepSpeed's zero3_save_16bit_model.
bool Accelerator::exports_16_bits() const {
  return deepspeed_ && deepspeed_->save_16bit_model && mixed_precision() != Precision::no;
}

TensorDict Accelerator::whole_weights(const ModelCore& model, bool keeps) const {
  TensorDict weights = model.state_dict(keeps);
  const auto dtype = mixed_precision() == Precision::bf16 ? at::kBFloat16 : at::kHalf;
  if (!exports_16_bits()) return weights;
  for (auto& item : weights) {
    if (item.second.scalar_type() == at::kFloat) item.second = item.second.to(dtype);
  }
  return weights;
}

void Accelerator::save_model(const ModelCore& model, const std::string& folder, const SaveModelOptions& options,
                             std::source_location where) const {
  const bool writes = options_.project.save_on_each_node ? is_local_main_process() : is_main_process();
  std::string failure;
  if (model.sharded() && options.safe_serialization && !exports_16_bits()) {
    WeightGatherer weights(*model.sharded());
    const auto fetch = [&](const std::string& name) { return weights(name); };
    failure = failure_of([&] { save_fetched_weights(weights.described(), fetch, folder, options.max_shard_size, writes); });
  } else {
    const TensorDict weights = whole_weights(model, writes);
    failure = failure_of([&] {
      if (writes) save_weights(weights, folder, options);
    });
  }
  failure = shared_failure(state(), failure, where);
  if (!failure.empty()) throw CheckpointError("save_model: " + failure);
}

HookHandle Accelerator::register_save_state_pre_hook(SaveStateHook hook) { return checkpoints_->before_saving(std::move(hook)); }

HookHandle Accelerator::register_load_state_pre_hook(LoadStateHook hook) { return checkpoints_->before_loading(std::move(hook)); }

void Accelerator::end_training(std::source_location where) {
  checkpoints_->finish(state(), where);
  checkpoints_->release();
}

}  // namespace accelerate
