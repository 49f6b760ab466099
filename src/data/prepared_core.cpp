#include "data/prepared_core.h"

#include "data/dispatch_pass.h"
#include "data/shard_pass.h"

namespace accelerate::detail {

std::shared_ptr<LoaderPass> PreparedCore::begin(std::source_location where) {
  auto self = std::static_pointer_cast<PreparedCore>(shared_from_this());
  if (sharing.dispatch && sharing.state.use_distributed()) return std::make_shared<DispatchPass>(std::move(self), where);
  return std::make_shared<ShardPass>(std::move(self), where);
}

std::optional<int64_t> PreparedCore::length() const {
  const auto batches = reading.length();
  if (!batches || !sharing.dispatch || sharing.split_batches) return batches;
  const int64_t processes = sharing.state.num_processes();
  return reading.options.drop_last ? *batches / processes : (*batches + processes - 1) / processes;
}

std::optional<int64_t> PreparedCore::total_batch_size() const {
  const auto size = reading.total_batch_size();
  return size && sharing.dispatch && !sharing.split_batches ? std::optional(*size * sharing.state.num_processes()) : size;
}

std::shared_ptr<LoaderCore> PreparedCore::skipping(Reading what, int64_t batches) const {
  auto core = std::make_shared<PreparedCore>(std::move(what), sharing);
  core->iteration = iteration.load();
  core->skip_batches = batches;
  return core;
}

SampleSeed PreparedCore::sample_seed() const {
  SampleSeed seed = LoaderCore::sample_seed();
  if (sharing.data_seed) seed.seed = static_cast<uint64_t>(*sharing.data_seed);
  return seed;
}

int64_t PreparedCore::expected_remainder() const {
  const auto samples = reading.visited(), step = reading.total_batch_size();
  return !sharing.dispatch && samples && step ? *samples % *step : -1;
}

}  // namespace accelerate::detail
