#include "activations/checkpoint_region.h"

#include <accelerate/core/error.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

#include "activations/collector.h"
#include "activations/host_hooks.h"

namespace accelerate::detail {

SavedInput::SavedInput(const at::Tensor& tensor, HookMaker* maker) : requires_grad_(tensor.defined() && tensor.requires_grad()) {
  if (!tensor.defined()) return;
  if (maker == nullptr) {
    kept_.emplace(tensor);
  } else {
    const c10::AutoGradMode not_recording(false);
    hooks_ = maker->make_hooks();
    hooks_->call_pack_hook(tensor);
  }
}

at::Tensor SavedInput::get(const RepeatableCall& call) const {
  if (hooks_) return hooks_->call_unpack_hook();
  return kept_ ? kept_->get([&] { return call.name(); }) : at::Tensor();
}

/// What autograd has instead of a tensor of a region.
class RegionHooks final : public SavedVariableHooks {
 public:
  explicit RegionHooks(std::shared_ptr<CheckpointRegion> region) : region_(std::move(region)) {}
  ~RegionHooks() override {
    if (number_) region_->forget(*number_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    const bool is_there = is_weight(tensor) || region_->is_of_kept_input(tensor);
    const size_t number = region_->add(tensor, !is_there);
    if (is_there) {
      kept_.emplace(tensor);
    } else {
      number_ = number;
    }
  }

  at::Tensor call_unpack_hook() override {
    return kept_ ? kept_->get([this] { return region_->call().name(); }) : region_->take(*number_);
  }

 private:
  std::shared_ptr<CheckpointRegion> region_;
  std::optional<KeptTensor> kept_;
  std::optional<size_t> number_;
};

CheckpointRegion::CheckpointRegion(std::unique_ptr<RepeatableCall> call, const CheckpointOptions& options)
    : call_(std::move(call)), state_(options.preserve_rng_state) {
  HostHookMaker host;
  HookMaker* maker = HookScope::current();
  if (maker == nullptr && options.offload) maker = &host;
  for (auto& tensor : call_->take_tensors()) {
    inputs_.emplace_back(tensor, maker);
    const int64_t version = tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
    forward_inputs_.push_back({std::move(tensor), version});
  }
}

std::unique_ptr<SavedVariableHooks> CheckpointRegion::make_hooks() { return std::make_unique<RegionHooks>(shared_from_this()); }

bool CheckpointRegion::is_of_kept_input(const at::Tensor& tensor) const {
  const auto storage_of = [](const at::Tensor& any) {
    return any.has_storage() ? any.storage().unsafeGetStorageImpl() : nullptr;
  };
  const auto* storage = storage_of(tensor);
  for (size_t i = 0; i < forward_inputs_.size(); ++i) {
    const auto& input = forward_inputs_[i].tensor;
    if (!inputs_[i].is_kept()) continue;
    if (input.is_same(tensor) || (storage != nullptr && storage == storage_of(input))) return true;
  }
  return false;
}

size_t CheckpointRegion::add(const at::Tensor& tensor, bool is_recomputed) {
  const std::lock_guard lock(mutex_);
  slots_.push_back({SavedLayout(tensor), is_recomputed});
  return slots_.size() - 1;
}

bool CheckpointRegion::needs_rerun() {
  const std::lock_guard lock(mutex_);
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.is_needed; });
}

void CheckpointRegion::finish_forward() {
  state_.drop_unused_generators();
  const auto inputs = std::exchange(forward_inputs_, {});
  if (!needs_rerun()) return;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& [tensor, version] = inputs[i];
    if (!tensor.defined() || tensor.is_inference() || tensor._version() == version) continue;
    throw UsageError(call_->name() + " changes its input " + std::to_string(i) + " (" + SavedLayout(tensor).text() +
                     ") in place, so that it cannot be called with it again. Use operators that make a new tensor, or change a "
                     "clone() of it.");
  }
}

void CheckpointRegion::forget(size_t number) {
  at::Tensor dropped;  // outside of the lock
  const std::lock_guard lock(mutex_);
  slots_[number].is_needed = false;
  dropped = std::exchange(slots_[number].collected, at::Tensor());
}

std::optional<at::Tensor> CheckpointRegion::take_collected(size_t number) {
  const std::lock_guard lock(mutex_);
  at::Tensor tensor = std::exchange(slots_[number].collected, at::Tensor());
  return tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt;
}

at::Tensor CheckpointRegion::take(size_t number) {
  if (auto tensor = take_collected(number)) return *tensor;
  const std::lock_guard lock(rerun_mutex_);
  if (auto tensor = take_collected(number)) return *tensor;  // another thread of the backward pass has made it
  if (is_rerunning_) {
    throw UsageError(call_->name() + " makes a backward pass through its own call, which is what is being run again for it.");
  }
  return rerun(number);
}

at::Tensor CheckpointRegion::rerun(size_t wanted) {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const auto values = inputs_[i].get(*call_);
    inputs.push_back(values.defined() ? values.detach().set_requires_grad(inputs_[i].requires_grad()) : values);
  }
  Collector collector(*this);
  is_rerunning_ = true;
  const std::shared_ptr<bool> until_the_end(&is_rerunning_, [](bool* flag) { *flag = false; });
  try {
    const ForwardStateScope state(state_);
    const HookScope scope(collector);
    call_->repeat(inputs);
  } catch (const RerunComplete&) {
    // All that is needed is there.
  }
  collector.check();
  release_after_backward();
  auto& tensors = collector.tensors();
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i != wanted && slots_[i].is_needed) slots_[i].collected = std::move(tensors[i]);
  }
  return std::move(tensors[wanted]);
}

void CheckpointRegion::release_after_backward() {
  if (torch::autograd::get_current_graph_task_id() == -1) return;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    const auto region = weak.lock();
    if (!region) return;
    std::vector<at::Tensor> dropped;
    const std::lock_guard lock(region->mutex_);
    for (auto& slot : region->slots_) dropped.push_back(std::exchange(slot.collected, at::Tensor()));
  });
}

}  // namespace accelerate::detail
