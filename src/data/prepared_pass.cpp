#include "data/prepared_pass.h"

namespace accelerate::detail {

PreparedPass::PreparedPass(std::shared_ptr<PreparedCore> core, std::source_location where)
    : core_(std::move(core)), where_(where), position_(std::make_shared<LoaderPosition>()) {
  synchronize_rng_states(sharing().state, sharing().rng_types, sharing().synchronized, where);
  position_->remainder = core_->expected_remainder();
  core_->position = position_;
  if (sharing().gradient_state) sharing().gradient_state->enter(position_);
  core_->set_epoch(core_->iteration);
}

Anything PreparedPass::next() {
  if (failed_) return nullptr;
  failed_ = true;
  Anything batch = next_batch();
  failed_ = false;
  return batch;
}

void PreparedPass::finish(bool had_batches) {
  if (had_batches) ++core_->iteration;
  leave();
  if (sharing().gradient_state) sharing().gradient_state->data_ended();
}

void PreparedPass::leave() {
  if (sharing().gradient_state) sharing().gradient_state->leave(position_.get());
}

}  // namespace accelerate::detail
