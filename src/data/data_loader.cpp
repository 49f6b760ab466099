#include <ATen/Context.h>
#include <accelerate/core/error.h>
#include <accelerate/data/data_loader.h>

#include "data/batch_stream.h"
#include "data/loader_core.h"
#include "data/open_loop.h"

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
  throw UsageError(std::string(what) + " of a loader of " + spec.dataset_type + " is not known.");
}

}  // namespace

std::shared_ptr<LoaderPass> LoaderCore::begin(std::source_location where) {
  return std::make_shared<PlainPass>(shared_from_this(), where);
}

StateDict LoaderCore::state_dict() const {
  throw UsageError("a loader has a state when an accelerator has prepared it, and this one was not.");
}

void LoaderCore::load_state_dict(const StateDict&) { state_dict(); }

std::function<void()> LoaderCore::undo_of_load() {
  return [] {};
}

std::shared_ptr<LoaderCore> LoaderCore::skipping(LoaderSpec what, int64_t batches) {
  auto core = std::make_shared<LoaderCore>(std::move(what));
  core->iteration = iteration.load();
  core->skip_batches = skip_batches + (skips_by_sampler() ? 0 : batches);
  return core;
}

SampleSeed LoaderCore::sample_seed() const {
  const auto& generator = spec.options.generator ? *spec.options.generator : at::globalContext().defaultGenerator(at::kCPU);
  return {generator.current_seed(), iteration};
}

std::optional<int64_t> LoaderHandle::known_size() const { return core_->length(); }

int64_t LoaderHandle::size() const { return known(core_->length(), "the number of batches (size)", core_->spec); }

std::optional<int64_t> LoaderHandle::batch_size() const {
  const auto& options = core_->spec.options;
  return options.batch_sampler ? std::nullopt : options.batch_size;
}

int64_t LoaderHandle::total_batch_size() const { return known(core_->total_batch_size(), "total_batch_size", core_->spec); }

int64_t LoaderHandle::total_dataset_length() const { return known(core_->spec.samples(), "total_dataset_length", core_->spec); }

void LoaderHandle::set_epoch(int64_t epoch) { core_->set_epoch(epoch); }

int64_t LoaderHandle::iteration() const { return core_->iteration; }

bool LoaderHandle::end_of_dataloader() const { return core_->position->end_of_dataloader; }

int64_t LoaderHandle::remainder() const { return core_->position->remainder; }

std::optional<bool> LoaderHandle::set_even_batches(bool even_batches) {
  auto batches = core_->spec.batches;
  while (const auto* skipping = dynamic_cast<const SkipBatchSampler*>(batches.get())) batches = skipping->whole();
  auto* shard = dynamic_cast<BatchSamplerShard*>(batches.get());
  if (!shard) return std::nullopt;
  const bool before = shard->options().even_batches;
  shard->set_even_batches(even_batches);
  return before;
}

StateDict LoaderHandle::state_dict() const { return core_->state_dict(); }

void LoaderHandle::load_state_dict(const StateDict& state) { core_->load_state_dict(state); }

bool LoaderHandle::prepared() const { return core_->prepared(); }

std::shared_ptr<LoaderPass> LoaderHandle::begin_pass(std::source_location where) const { return core_->begin(where); }

LoaderHandle make_loader(std::unique_ptr<BatchReader> reader, DataLoaderOptions options) {
  return LoaderHandle(std::make_shared<LoaderCore>(make_loader_spec(std::move(reader), std::move(options))));
}

LoaderHandle skip_first_batches(const LoaderHandle& loader, int64_t num_batches) {
  if (num_batches < 0) {
    throw UsageError("skip_first_batches was given " + std::to_string(num_batches) + "; expected 0 or more.");
  }
  LoaderSpec spec = loader.core()->spec;
  if (loader.core()->skips_by_sampler()) spec.batches = std::make_shared<SkipBatchSampler>(spec.batches, num_batches);
  return LoaderHandle(loader.core()->skipping(std::move(spec), num_batches));
}

}  // namespace accelerate::detail
