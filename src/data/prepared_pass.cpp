#include "data/prepared_pass.h"

#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>

#include <algorithm>
#include <limits>

namespace accelerate::detail {

PreparedPass::PreparedPass(std::shared_ptr<LoaderCore> core, std::source_location where)
    : core_(std::move(core)), where_(where), loop_(/*prepared=*/true, where), position_(std::make_shared<LoaderPosition>()) {
  progress_ = std::make_shared<LoaderProgress>(begin_or_resume());
  core_->set_epoch(core_->iteration);  // before lengths are asked for: those of a dataset may depend on it
  progress_->order = PassOrder::of(spec());
  if (!replay_) compare_lengths();
  core_->progress = progress_;
  if (core_->origin) core_->origin->progress = progress_;
  position_->remainder = core_->expected_remainder(start_.shared);
  core_->position = position_;
  if (sharding().active_loaders) sharding().active_loaders->enter(position_);
}

LoaderProgress PreparedPass::begin_or_resume() {
  const auto resumed = core_->take_resumed();
  if (!resumed) {
    synchronize_rng_states(sharding().state, sharding().rng_types, sharding().synchronized, where_);
    return {.epoch = core_->iteration.load(),
            .under_way = true,
            .batches = core_->skipped,
            .shared = core_->shared_by(core_->skipped),
            .num_processes = core_->num_processes(),
            .split_batches = sharding().split_batches,
            .start = RandomNumbers::of(spec())};
  }
  replay_.emplace(spec(), resumed->start);
  LoaderProgress progress = *resumed;
  const bool same_parts = resumed->num_processes == core_->num_processes() && resumed->split_batches == sharding().split_batches;
  if (resumed->ended) {
    start_.own = std::numeric_limits<int64_t>::max();
  } else if (core_->skipped > 0 || same_parts) {
    start_.own = resumed->batches;
    progress.batches += core_->skipped;
  } else {
    // The parts of the others and of this process are no longer the same: the rest is sharded again.
    start_.shared = begun_at_ = resumed->shared;
    progress.batches = 0;
    progress.num_processes = core_->num_processes();
    progress.split_batches = sharding().split_batches;
  }
  return progress;
}

/// Ranks that draw the same numbers shuffle alike only as many samples. Where they have just been given these numbers, they meet
/// anyway; elsewhere beginning a pass is no collective.
void PreparedPass::compare_lengths() const {
  const auto& types = sharding().rng_types;
  const bool drawn_alike = std::find(types.begin(), types.end(), RngType::generator) != types.end();
  if (!drawn_alike || !sharding().state.use_distributed()) return;
  const auto mine = progress_->order->sampler_length ? progress_->order->sampler_length : progress_->order->dataset_length;
  const auto all = gather_lists(sharding().state, {mine ? Value(*mine) : Value()}, where_);
  const auto differs = [&](const Value::List& other) { return other != all.front(); };
  if (std::none_of(all.begin(), all.end(), differs)) return;
  std::string lengths;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    lengths += (rank == 0 ? "" : ", ") + to_string(all[rank].front()) + " on rank " + std::to_string(rank);
  }
  throw UsageError("the number of samples of " + spec().dataset_type +
                   " is not the same on all processes when a pass begins: " + lengths +
                   ". Each would shuffle differently, and samples would be repeated or skipped: resize the dataset equally on "
                   "all processes, between passes.");
}

ErasedBatch PreparedPass::next() {
  if (failed_) return nullptr;
  failed_ = true;
  ErasedBatch batch = next_batch();
  failed_ = false;
  if (batch) count();
  progress_->ended = position().end_of_dataloader;
  return batch;
}

void PreparedPass::finish(bool had_batches) {
  if (had_batches) ++core_->iteration;
  leave();
  if (sharding().active_loaders) sharding().active_loaders->data_ended();
}

void PreparedPass::leave() {
  progress_->under_way = false;
  if (sharding().active_loaders) sharding().active_loaders->leave(position_.get());
}

}  // namespace accelerate::detail
