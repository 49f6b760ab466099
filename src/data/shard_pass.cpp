#include "data/shard_pass.h"

#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

/// Rows of the batch, for the one process that dispatches to itself alone.
int64_t rows_of(const Leaves& batch) {
  if (batch.tensors.empty() || !batch.tensors.front()->defined() || batch.tensors.front()->dim() == 0) return -1;
  return batch.tensors.front()->size(0);
}

}  // namespace

ShardPass::ShardPass(std::shared_ptr<LoaderCore> core, std::source_location where)
    : PreparedPass(std::move(core), where),
      stream_(open_stream(spec(), core_->sample_seed(), start_)),
      feed_(sharding().device, sharding().non_blocking) {}

void ShardPass::read_first() {
  begun_ = true;
  ahead_ = stream_->next();
  end_replay();
  had_batches_ = ahead_ != nullptr || start_.own > 0 || start_.shared > 0;
  for (int64_t i = 0; i < core_->skip_batches && ahead_; ++i) ahead_ = stream_->next();
  if (!had_batches_ && sharding().dispatch) {
    throw UsageError("there is no batch to dispatch: " + spec().dataset_type +
                     " has no samples, or fewer than one batch with drop_last.");
  }
  if (!ahead_) position().end_of_dataloader = had_batches_;
  send(ahead_);
}

ErasedBatch ShardPass::next_batch() {
  if (!begun_) read_first();
  ErasedBatch batch = std::move(ahead_);
  ahead_ = nullptr;
  if (!batch) {
    finish(had_batches_);
    return nullptr;
  }
  if (feed_.active()) feed_.receive(spec().reader->leaves(batch));
  ahead_ = stream_->next();
  send(ahead_);
  if (!ahead_) {
    position().end_of_dataloader = true;
    if (sharding().dispatch) position().remainder = rows_of(spec().reader->leaves(batch));
  }
  return batch;
}

void ShardPass::send(const ErasedBatch& batch) {
  if (batch && feed_.active()) feed_.send(spec().reader->leaves(batch));
}

}  // namespace accelerate::detail
