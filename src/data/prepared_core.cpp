#include "data/prepared_core.h"

#include <accelerate/core/error.h>
#include <accelerate/data/random_sampler.h>

#include "data/dispatch_pass.h"
#include "data/shard_pass.h"

namespace accelerate::detail {
namespace {

const BatchSamplerShard* shard_of(const Reading& reading) {
  auto batches = reading.batches;
  while (const auto* skipping = dynamic_cast<const SkipBatchSampler*>(batches.get())) batches = skipping->whole();
  return dynamic_cast<const BatchSamplerShard*>(batches.get());
}

/// Samples in a batch before it is shared out.
std::optional<int64_t> whole_batch_size(const Reading& reading) {
  if (reading.shard) return reading.shard->batch_size;
  if (reading.iterable()) return reading.iterable_batch;
  return reading.batches ? reading.batches->batch_size() : std::nullopt;
}

}  // namespace

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

std::shared_ptr<LoaderCore> PreparedCore::skipping(Reading what, int64_t batches) {
  auto core = std::make_shared<PreparedCore>(std::move(what), sharing);
  core->iteration = iteration.load();
  core->skip_batches = skip_batches + (skips_by_sampler() ? 0 : batches);
  core->skipped = skipped + batches;
  core->origin = origin ? origin : std::static_pointer_cast<PreparedCore>(shared_from_this());
  // The count replaces the position of a run that goes on; the order of its epoch stays.
  core->resumed = std::exchange(resumed, std::nullopt);
  if (core->resumed) core->resumed->batches = core->resumed->shared = 0;
  return core;
}

SampleSeed PreparedCore::sample_seed() const {
  SampleSeed seed = LoaderCore::sample_seed();
  if (sharing.data_seed) seed.seed = static_cast<uint64_t>(*sharing.data_seed);
  return seed;
}

int64_t PreparedCore::expected_remainder(int64_t shared) const {
  const auto samples = reading.visited(), step = reading.total_batch_size();
  if (sharing.dispatch || !samples || !step) return -1;
  if (shared == 0) return *samples % *step;
  const auto size = whole_batch_size(reading);
  return reading.iterable() || !size ? -1 : (*samples - shared * *size) % *step;
}

int PreparedCore::num_processes() const {
  if (sharing.dispatch) return sharing.state.num_processes();
  if (reading.shard) return reading.shard->num_processes;
  const auto* shard = shard_of(reading);
  return shard ? shard->options().num_processes : 1;
}

int64_t PreparedCore::shared_by(int64_t batches) const {
  const auto size = reading.iterable() ? whole_batch_size(reading) : std::nullopt;
  return batches * (sharing.split_batches ? 1 : num_processes()) * size.value_or(1);
}

StateDict PreparedCore::state_dict() const {
  const LoaderProgress& at = *progress;
  StateDict state = {{"epoch", at.under_way ? at.epoch : iteration.load()},
                     {"under_way", at.under_way},
                     {"batches", at.batches},
                     {"shared", at.shared},
                     {"num_processes", at.num_processes},
                     {"batch_size", whole_batch_size(reading) ? Value(*whole_batch_size(reading)) : Value()},
                     {"start", at.start.to_value()},
                     {"now", RandomNumbers::of(reading).to_value()}};
  if (const auto* seedable = dynamic_cast<const SeedableRandomSampler*>(reading.sampler.get())) {
    state["seed"] = static_cast<int64_t>(seedable->initial_seed());
  }
  return state;
}

void PreparedCore::load_state_dict(const StateDict& state) {
  LoaderProgress at{.epoch = state.at("epoch").get<int64_t>(),
                    .under_way = state.at("under_way").get<bool>(),
                    .batches = state.at("batches").get<int64_t>(),
                    .shared = state.at("shared").get<int64_t>(),
                    .num_processes = state.at("num_processes").get<int>(),
                    .start = RandomNumbers::from_value(state.at("start"))};
  const auto now = RandomNumbers::from_value(state.at("now"));
  const auto saved = state.at("batch_size");
  const auto mine = whole_batch_size(reading);
  if (at.under_way && (saved.is_none() ? mine.has_value() : saved.get<int64_t>() != mine)) {
    throw UsageError("a loader of " + reading.dataset_type + " cannot go on in the middle of its epoch: its batch_size is " +
                     (mine ? std::to_string(*mine) : "not known") + ", and that of the run that was saved was " +
                     to_string(saved) + ". Use the same one, or save at the end of an epoch.");
  }
  auto* seedable = dynamic_cast<SeedableRandomSampler*>(reading.sampler.get());
  if (seedable && state.contains("seed")) seedable->set_initial_seed(static_cast<uint64_t>(state.at("seed").get<int64_t>()));
  iteration = at.epoch;
  now.give_to(reading);
  resumed = at.under_way ? std::optional(at) : std::nullopt;
}

}  // namespace accelerate::detail
