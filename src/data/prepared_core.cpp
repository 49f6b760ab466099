#include "data/prepared_core.h"

#include <accelerate/core/error.h>
#include <accelerate/data/random_sampler.h>

#include "data/dispatch_pass.h"
#include "data/shard_pass.h"

namespace accelerate::detail {
namespace {

const BatchSamplerShard* shard_of(const LoaderSpec& spec) {
  auto batches = spec.batches;
  while (const auto* skipping = dynamic_cast<const SkipBatchSampler*>(batches.get())) batches = skipping->whole();
  return dynamic_cast<const BatchSamplerShard*>(batches.get());
}

/// Samples in a batch before it is shared out.
std::optional<int64_t> whole_batch_size(const LoaderSpec& spec) {
  if (spec.shard) return spec.shard->batch_size;
  if (spec.iterable()) return spec.iterable_batch;
  return spec.batches ? spec.batches->batch_size() : std::nullopt;
}

}  // namespace

std::shared_ptr<LoaderPass> PreparedCore::begin(std::source_location where) {
  auto self = std::static_pointer_cast<PreparedCore>(shared_from_this());
  if (sharing.dispatch && sharing.state.use_distributed()) return std::make_shared<DispatchPass>(std::move(self), where);
  return std::make_shared<ShardPass>(std::move(self), where);
}

std::optional<int64_t> PreparedCore::length() const {
  const auto batches = spec.length();
  if (!batches || !sharing.dispatch || sharing.split_batches) return batches;
  const int64_t processes = sharing.state.num_processes();
  return spec.options.drop_last ? *batches / processes : (*batches + processes - 1) / processes;
}

std::optional<int64_t> PreparedCore::total_batch_size() const {
  const auto size = spec.total_batch_size();
  return size && sharing.dispatch && !sharing.split_batches ? std::optional(*size * sharing.state.num_processes()) : size;
}

std::shared_ptr<LoaderCore> PreparedCore::skipping(LoaderSpec what, int64_t batches) {
  auto core = std::make_shared<PreparedCore>(std::move(what), sharing);
  core->iteration = iteration.load();
  core->skip_batches = skip_batches + (skips_by_sampler() ? 0 : batches);
  core->skipped = skipped + batches;
  core->origin = origin ? origin : std::static_pointer_cast<PreparedCore>(shared_from_this());
  return core;
}

std::optional<LoaderProgress> PreparedCore::take_resumed() {
  auto taken = std::exchange(resumed, std::nullopt);
  if (taken || !origin) return taken;
  taken = std::exchange(origin->resumed, std::nullopt);
  if (taken) {
    // The count of skipped batches replaces the position; the epoch and its order stay.
    taken->batches = taken->shared = 0;
    taken->ended = false;
    iteration = taken->epoch;
  }
  return taken;
}

SeedableRandomSampler* PreparedCore::seedable() const { return dynamic_cast<SeedableRandomSampler*>(spec.sampler.get()); }

SampleSeed PreparedCore::sample_seed() const {
  SampleSeed seed = LoaderCore::sample_seed();
  if (sharing.data_seed) seed.seed = static_cast<uint64_t>(*sharing.data_seed);
  return seed;
}

int64_t PreparedCore::expected_remainder(int64_t shared) const {
  const auto samples = spec.visited(), step = spec.total_batch_size();
  if (sharing.dispatch || !samples || !step) return -1;
  if (shared == 0) return *samples % *step;
  const auto size = whole_batch_size(spec);
  return spec.iterable() || !size ? -1 : (*samples - shared * *size) % *step;
}

int PreparedCore::num_processes() const {
  if (sharing.dispatch) return sharing.state.num_processes();
  if (spec.shard) return spec.shard->num_processes;
  const auto* shard = shard_of(spec);
  return shard ? shard->options().num_processes : 1;
}

int64_t PreparedCore::shared_by(int64_t batches) const {
  const auto size = spec.iterable() ? whole_batch_size(spec) : std::nullopt;
  return batches * (sharing.split_batches ? 1 : num_processes()) * size.value_or(1);
}

StateDict PreparedCore::state_dict() const {
  // Until the next pass begins, what was loaded is where the run is.
  const LoaderProgress& at = resumed ? *resumed : *progress;
  StateDict state = {{"epoch", at.under_way ? at.epoch : iteration.load()},
                     {"under_way", at.under_way},
                     {"ended", at.ended},
                     {"batches", at.batches},
                     {"shared", at.shared},
                     {"num_processes", at.num_processes},
                     {"split_batches", at.split_batches},
                     {"batch_size", whole_batch_size(spec) ? Value(*whole_batch_size(spec)) : Value()},
                     {"start", at.start.to_value()},
                     {"now", RandomNumbers::of(spec).to_value()}};
  if (at.order) state["order"] = at.order->to_value();
  if (const auto* sampler = seedable()) state["seed"] = static_cast<int64_t>(sampler->initial_seed());
  return state;
}

void PreparedCore::check_resumable(const StateDict& state, const LoaderProgress& at) const {
  std::string difference;
  const auto saved = state.at("batch_size");
  const auto mine = whole_batch_size(spec);
  if (saved.is_none() ? mine.has_value() : saved.get<int64_t>() != mine) {
    difference = "its batch_size is " + (mine ? std::to_string(*mine) : "not known") + ", and was " + to_string(saved) +
                 " when the checkpoint was saved";
  } else if (at.order && (!sharing.dispatch || sharing.state.is_main_process())) {
    difference = at.order->difference_to(PassOrder::of(spec));
  }
  if (difference.empty()) return;
  throw UsageError("a loader of " + spec.dataset_type + " cannot resume in the middle of epoch " + std::to_string(at.epoch) +
                   ": " + difference +
                   ", so that samples would come twice or never. Resume with the same data, or start the epoch anew: "
                   "load_state(folder, {.restart_epoch = true}).");
}

void PreparedCore::load_state_dict(const StateDict& state) {
  LoaderProgress at{.epoch = state.at("epoch").get<int64_t>(),
                    .under_way = state.at("under_way").get<bool>(),
                    .batches = state.at("batches").get<int64_t>(),
                    .shared = state.at("shared").get<int64_t>(),
                    .num_processes = state.at("num_processes").get<int>(),
                    .split_batches = sharing.split_batches,
                    .start = RandomNumbers::from_value(state.at("start"))};
  const auto now = RandomNumbers::from_value(state.at("now"));
  if (state.contains("order")) at.order = PassOrder::from_value(state.at("order"));
  if (state.contains("ended")) {  // older checkpoints have neither
    at.ended = state.at("ended").get<bool>();
    at.split_batches = state.at("split_batches").get<bool>();
  }
  const int64_t before = iteration;
  set_epoch(at.epoch);  // the length of a dataset may depend on it
  try {
    if (at.under_way && !at.ended) check_resumable(state, at);
  } catch (...) {
    set_epoch(before);
    throw;
  }
  if (seedable() && state.contains("seed")) {
    seedable()->set_initial_seed(static_cast<uint64_t>(state.at("seed").get<int64_t>()));
  }
  now.give_to(spec);
  resumed = at.under_way ? std::optional(at) : std::nullopt;
}

std::function<void()> PreparedCore::undo_of_load() {
  const auto self = std::static_pointer_cast<PreparedCore>(shared_from_this());
  const auto seed = seedable() ? std::optional(seedable()->initial_seed()) : std::nullopt;
  return [self, seed, epoch = iteration.load(), position = resumed, now = RandomNumbers::of(spec)] {
    self->set_epoch(epoch);
    if (seed) self->seedable()->set_initial_seed(*seed);
    now.give_to(self->spec);
    self->resumed = position;
  };
}

}  // namespace accelerate::detail
