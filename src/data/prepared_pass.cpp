#include "data/prepared_pass.h"

namespace accelerate::detail {

PreparedPass::PreparedPass(std::shared_ptr<PreparedCore> core, std::source_location where)
    : core_(std::move(core)), where_(where), position_(std::make_shared<LoaderPosition>()) {
  progress_ = std::make_shared<LoaderProgress>(begin_or_resume());
  core_->progress = progress_;
  if (core_->origin) core_->origin->progress = progress_;
  position_->remainder = core_->expected_remainder(start_.shared);
  core_->position = position_;
  if (sharing().gradient_state) sharing().gradient_state->enter(position_);
  core_->set_epoch(core_->iteration);
}

LoaderProgress PreparedPass::begin_or_resume() {
  const auto resumed = std::exchange(core_->resumed, std::nullopt);
  if (!resumed) {
    synchronize_rng_states(sharing().state, sharing().rng_types, sharing().synchronized, where_);
    return {core_->iteration.load(),     true, core_->skipped, core_->shared_by(core_->skipped), core_->num_processes(),
            RandomNumbers::of(reading())};
  }
  replay_.emplace(reading(), resumed->start);
  LoaderProgress progress = *resumed;
  if (core_->skipped > 0 || resumed->num_processes == core_->num_processes()) {
    start_.own = resumed->batches;
    progress.batches += core_->skipped;
  } else {
    // The parts of the others and of this process are no longer the same: what was left of the whole is shared out anew.
    start_.shared = begun_at_ = resumed->shared;
    progress.batches = 0;
    progress.num_processes = core_->num_processes();
  }
  return progress;
}

Anything PreparedPass::next() {
  if (failed_) return nullptr;
  failed_ = true;
  Anything batch = next_batch();
  failed_ = false;
  if (batch) count();
  return batch;
}

void PreparedPass::finish(bool had_batches) {
  if (had_batches) ++core_->iteration;
  leave();
  if (sharing().gradient_state) sharing().gradient_state->data_ended();
}

void PreparedPass::leave() {
  progress_->under_way = false;
  if (sharing().gradient_state) sharing().gradient_state->leave(position_.get());
}

}  // namespace accelerate::detail
