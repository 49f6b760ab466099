#include <accelerate/core/error.h>
#include <accelerate/data/data_loader.h>

#include "data/dispatch_pass.h"
#include "data/shard_pass.h"

namespace accelerate::detail {
namespace {

/// A pass over a loader that nobody has prepared.
class PlainPass : public LoaderPass {
 public:
  PlainPass(std::shared_ptr<LoaderCore> core, std::source_location where)
      : core_(std::move(core)),
        stream_(open_stream(core_->spec, core_->sample_seed())),
        to_skip_(core_->skip_batches),
        loop_(/*prepared=*/false, where) {}

  ErasedBatch next() override {
    for (; to_skip_ > 0; --to_skip_) {
      if (!stream_->next()) to_skip_ = 1;
    }
    ErasedBatch batch = stream_->next();
    if (!batch) ++core_->iteration;
    return batch;
  }

 private:
  const std::shared_ptr<LoaderCore> core_;
  const std::unique_ptr<BatchStream> stream_;
  int64_t to_skip_;
  const OpenLoop loop_;
};

int64_t known(const std::optional<int64_t>& number, const char* what, const LoaderSpec& spec) {
  if (number) return *number;
  throw UsageError(std::string(what) + " of a loader over " + spec.dataset_type + " is unknown.");
}

}  // namespace

std::optional<int64_t> AnyDataLoader::known_size() const {
  const auto batches = core_->spec.length();
  const auto& sharding = core_->sharding;
  if (!batches || !sharding || !sharding->dispatch || sharding->split_batches) return batches;
  const int64_t processes = sharding->state.num_processes();
  return core_->spec.options.drop_last ? *batches / processes : (*batches + processes - 1) / processes;
}

int64_t AnyDataLoader::size() const { return known(known_size(), "the number of batches (size)", core_->spec); }

std::optional<int64_t> AnyDataLoader::batch_size() const {
  const auto& options = core_->spec.options;
  return options.batch_sampler ? std::nullopt : options.batch_size;
}

int64_t AnyDataLoader::total_batch_size() const {
  auto size = core_->spec.total_batch_size();
  const auto& sharding = core_->sharding;
  if (size && sharding && sharding->dispatch && !sharding->split_batches) *size *= sharding->state.num_processes();
  return known(size, "total_batch_size", core_->spec);
}

int64_t AnyDataLoader::total_dataset_length() const { return known(core_->spec.samples(), "total_dataset_length", core_->spec); }

void AnyDataLoader::set_epoch(int64_t epoch) { core_->set_epoch(epoch); }

int64_t AnyDataLoader::iteration() const { return core_->iteration; }

bool AnyDataLoader::end_of_dataloader() const { return core_->position->end_of_dataloader; }

int64_t AnyDataLoader::remainder() const { return core_->position->remainder; }

std::optional<bool> AnyDataLoader::set_even_batches(bool even_batches) {
  auto* shard = core_->shard();
  if (!shard) return std::nullopt;
  const bool before = shard->options().even_batches;
  shard->set_even_batches(even_batches);
  return before;
}

bool AnyDataLoader::prepared() const { return core_->sharding.has_value(); }

std::shared_ptr<LoaderPass> AnyDataLoader::begin_pass(std::source_location where) const {
  if (!prepared()) return std::make_shared<PlainPass>(core_, where);
  const bool dispatched = core_->sharding->dispatch && core_->sharding->state.use_distributed();
  if (dispatched) return std::make_shared<DispatchPass>(core_, where);
  return std::make_shared<ShardPass>(core_, where);
}

AnyDataLoader make_loader(std::unique_ptr<BatchReader> reader, DataLoaderOptions options) {
  return AnyDataLoader(std::make_shared<LoaderCore>(make_loader_spec(std::move(reader), std::move(options))));
}

AnyDataLoader skip_first_batches(const AnyDataLoader& loader, int64_t num_batches) {
  if (num_batches < 0) {
    throw UsageError("skip_first_batches was given " + std::to_string(num_batches) + "; expected 0 or more.");
  }
  const auto& whole = loader.core();
  LoaderSpec spec = whole->spec;
  const bool by_sampler = spec.batches != nullptr;
  if (by_sampler) spec.batches = std::make_shared<SkipBatchSampler>(spec.batches, num_batches);
  auto rest = std::make_shared<LoaderCore>(std::move(spec), whole->sharding);
  rest->iteration = whole->iteration.load();
  rest->skip_batches = whole->skip_batches + (by_sampler ? 0 : num_batches);
  rest->skipped = whole->skipped + num_batches;
  rest->origin = whole->origin ? whole->origin : whole;
  return AnyDataLoader(std::move(rest));
}

}  // namespace accelerate::detail
