#include <accelerate/activations/activation_checkpoint.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "activations/checkpoint_region.h"
#include "core/source_line.h"

namespace accelerate::detail {

std::string name_of_call(const std::source_location& where) {
  return "The function that accelerate::checkpoint was given" + at_line(where);
}

bool records_graph() { return c10::GradMode::is_enabled() && !c10::InferenceMode::is_enabled(); }

struct CheckpointedForward::Parts {
  explicit Parts(std::shared_ptr<CheckpointRegion> its_region) : region(std::move(its_region)), scope(*region) {}
  std::shared_ptr<CheckpointRegion> region;
  HookScope scope;
};

CheckpointedForward::CheckpointedForward(std::unique_ptr<RepeatableCall> call, const CheckpointOptions& options)
    : parts_(std::make_unique<Parts>(std::make_shared<CheckpointRegion>(std::move(call), options))) {}

CheckpointedForward::~CheckpointedForward() = default;

void CheckpointedForward::finish() { parts_->region->finish_forward(); }

}  // namespace accelerate::detail
