#include "activations/collector.h"

#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

/// Hooks of a tensor of the graph that a rerun makes, and drops when it ends: a function may make a backward pass in it.
class CollectingHooks final : public SavedVariableHooks {
 public:
  explicit CollectingHooks(Collector& collector) : collector_(collector) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();
    collector_.see(tensor_);
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  Collector& collector_;
  at::Tensor tensor_;
};

}  // namespace

Collector::Collector(CheckpointRegion& region) : region_(region) {
  const std::lock_guard lock(region.mutex_);
  for (const auto& slot : region.slots_) {
    layouts_.push_back(slot.layout);
    needed_.push_back(slot.is_needed);
    missing_ += slot.is_needed ? 1 : 0;
  }
  tensors_.resize(layouts_.size());
}

std::unique_ptr<SavedVariableHooks> Collector::make_hooks() { return std::make_unique<CollectingHooks>(*this); }

void Collector::see(const at::Tensor& tensor) {
  if (missing_ == 0 || !difference_.empty()) return;
  const size_t number = seen_++;
  if (SavedLayout(tensor) != layouts_[number]) {
    difference_ = "tensor " + std::to_string(number) + " that it saved was " + layouts_[number].text() +
                  " in the forward pass and is " + SavedLayout(tensor).text() + " in the rerun";
    check();
  }
  if (!needed_[number]) return;
  tensors_[number] = tensor;
  if (--missing_ == 0) throw RerunComplete();
}

void Collector::check() const {
  std::string difference = difference_;
  if (difference.empty() && missing_ > 0) {
    difference = "it saved " + std::to_string(layouts_.size()) + " tensors in the forward pass and " + std::to_string(seen_) +
                 " in the rerun";
  }
  if (difference.empty()) return;
  throw UsageError(region_.call().name() + " is not deterministic: " + difference +
                   ". Its operators must be the same when the backward pass calls it again: it may not depend on what changes in "
                   "between (train() and eval(), counters, other random numbers, weights that were converted). Move that out of "
                   "the function, or do not checkpoint it.");
}

}  // namespace accelerate::detail
