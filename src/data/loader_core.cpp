#include "data/loader_core.h"

#include <ATen/Context.h>
#include <accelerate/core/error.h>
#include <accelerate/data/random_sampler.h>

namespace accelerate::detail {
namespace {

/// UsageError when the position of `at`, which is in the middle of an epoch, means other samples here.
void check_resumable(const LoaderCore& loader, const StateDict& state, const LoaderProgress& at) {
  const LoaderSpec& spec = loader.spec;
  std::string difference;
  const auto saved = state.at("batch_size");
  const auto mine = spec.whole_batch_size();
  if (saved.is_none() ? mine.has_value() : saved.get<int64_t>() != mine) {
    difference = "its batch_size is " + (mine ? std::to_string(*mine) : "unknown") + ", and was " + to_string(saved) +
                 " when the checkpoint was saved";
  } else if (at.order && (!loader.sharding->dispatch || loader.sharding->state.is_main_process())) {
    difference = at.order->difference_to(PassOrder::of(spec));
  }
  if (difference.empty()) return;
  throw UsageError("a loader of " + spec.dataset_type + " cannot resume in the middle of epoch " + std::to_string(at.epoch) +
                   ": " + difference +
                   ", so samples would be repeated or skipped. Resume with the same data, or restart the epoch: "
                   "load_state(folder, {.restart_epoch = true}).");
}

}  // namespace

std::optional<LoaderProgress> LoaderCore::take_resumed() {
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

BatchSamplerShard* LoaderCore::shard() const {
  auto batches = spec.batches;
  while (const auto* skipping = dynamic_cast<const SkipBatchSampler*>(batches.get())) batches = skipping->whole();
  return dynamic_cast<BatchSamplerShard*>(batches.get());
}

SeedableRandomSampler* LoaderCore::seedable() const { return dynamic_cast<SeedableRandomSampler*>(spec.sampler.get()); }

SampleSeed LoaderCore::sample_seed() const {
  if (sharding && sharding->data_seed) return {static_cast<uint64_t>(*sharding->data_seed), iteration};
  const auto& generator = spec.options.generator ? *spec.options.generator : at::globalContext().defaultGenerator(at::kCPU);
  return {generator.current_seed(), iteration};
}

int64_t LoaderCore::expected_remainder(int64_t shared) const {
  const auto samples = spec.visited(), step = spec.total_batch_size();
  if (sharding->dispatch || !samples || !step) return -1;
  if (shared == 0) return *samples % *step;
  const auto size = spec.whole_batch_size();
  return spec.iterable() || !size ? -1 : (*samples - shared * *size) % *step;
}

int LoaderCore::num_processes() const {
  if (sharding->dispatch) return sharding->state.num_processes();
  if (spec.shard) return spec.shard->num_processes;
  const auto* part = shard();
  return part ? part->options().num_processes : 1;
}

int64_t LoaderCore::shared_by(int64_t batches) const {
  const auto size = spec.iterable() ? spec.whole_batch_size() : std::nullopt;
  return batches * (sharding->split_batches ? 1 : num_processes()) * size.value_or(1);
}

StateDict AnyDataLoader::state_dict() const {
  if (!prepared()) throw UsageError("only a prepared loader has a state, and this one was not prepared.");
  const LoaderSpec& spec = core_->spec;
  // Until the next pass begins, what was loaded is where the run is.
  const LoaderProgress& at = core_->resumed ? *core_->resumed : *core_->progress;
  StateDict state = {{"epoch", at.under_way ? at.epoch : core_->iteration.load()},
                     {"under_way", at.under_way},
                     {"ended", at.ended},
                     {"batches", at.batches},
                     {"shared", at.shared},
                     {"num_processes", at.num_processes},
                     {"split_batches", at.split_batches},
                     {"batch_size", spec.whole_batch_size() ? Value(*spec.whole_batch_size()) : Value()},
                     {"start", at.start.to_value()},
                     {"now", RandomNumbers::of(spec).to_value()}};
  if (at.order) state["order"] = at.order->to_value();
  if (const auto* sampler = core_->seedable()) state["seed"] = static_cast<int64_t>(sampler->initial_seed());
  return state;
}

void AnyDataLoader::load_state_dict(const StateDict& state) {
  if (!prepared()) state_dict();  // says why not
  LoaderProgress at{.epoch = state.at("epoch").get<int64_t>(),
                    .under_way = state.at("under_way").get<bool>(),
                    .batches = state.at("batches").get<int64_t>(),
                    .shared = state.at("shared").get<int64_t>(),
                    .num_processes = state.at("num_processes").get<int>(),
                    .split_batches = core_->sharding->split_batches,
                    .start = RandomNumbers::from_value(state.at("start"))};
  const auto now = RandomNumbers::from_value(state.at("now"));
  if (state.contains("order")) at.order = PassOrder::from_value(state.at("order"));
  if (state.contains("ended")) {  // older checkpoints have neither
    at.ended = state.at("ended").get<bool>();
    at.split_batches = state.at("split_batches").get<bool>();
  }
  const int64_t before = core_->iteration;
  set_epoch(at.epoch);  // the length of a dataset may depend on it
  try {
    if (at.under_way && !at.ended) check_resumable(*core_, state, at);
  } catch (...) {
    set_epoch(before);
    throw;
  }
  if (auto* sampler = core_->seedable(); sampler && state.contains("seed")) {
    sampler->set_initial_seed(static_cast<uint64_t>(state.at("seed").get<int64_t>()));
  }
  now.give_to(core_->spec);
  core_->resumed = at.under_way ? std::optional(at) : std::nullopt;
}

std::function<void()> undo_of_load(const AnyDataLoader& loader) {
  const auto core = loader.core();
  const auto seed = core->seedable() ? std::optional(core->seedable()->initial_seed()) : std::nullopt;
  return [core, seed, epoch = core->iteration.load(), position = core->resumed, now = RandomNumbers::of(core->spec)] {
    core->set_epoch(epoch);
    if (seed) core->seedable()->set_initial_seed(*seed);
    now.give_to(core->spec);
    core->resumed = position;
  };
}

}  // namespace accelerate::detail
