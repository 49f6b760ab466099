#include "data/batch_stream.h"

#include <ATen/ops/empty.h>

#include "data/batch_spec.h"
#include "data/worker_pool.h"
#include "data/worker_stream.h"
#include "distributed/busy.h"

namespace accelerate::detail {
namespace {

/// Batches that are read when they are asked for.
class InlineStream : public BatchStream {
 public:
  InlineStream(const LoaderSpec& spec, BatchMaker make, Source<BatchSpec> specs)
      : make_(std::move(make)), specs_(std::move(specs)), dataset_type_(spec.dataset_type) {}

  ErasedBatch next() override {
    if (ended_) return nullptr;
    const Busy busy("DataLoader", dataset_type_);
    ended_ = true;  // also when reading fails
    const auto batch_spec = specs_();
    if (!batch_spec) return nullptr;
    ErasedBatch batch = make_(*batch_spec);
    ended_ = false;
    return batch;
  }

 private:
  const BatchMaker make_;
  const Source<BatchSpec> specs_;
  const std::string dataset_type_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<BatchStream> open_stream(const LoaderSpec& spec, const SampleSeed& seed, const PassStart& start) {
  follow_stream(spec);
  auto make = batch_maker(spec, seed);
  auto specs = batch_specs(spec, seed, start);
  const int workers = spec.options.num_workers;
  if (workers == 0) return std::make_unique<InlineStream>(spec, std::move(make), std::move(specs));
  auto pool = spec.workers ? spec.workers->get(workers) : std::make_shared<WorkerPool>(workers);
  return std::make_unique<WorkerStream>(spec, std::move(make), std::move(specs), std::move(pool));
}

void follow_stream(const LoaderSpec& spec) {
  // torch's loader draws one number at the start of each pass, or once for workers that persist. Ours needs none, but what is
  // drawn afterwards shall be the same.
  if (spec.workers && !spec.workers->begin_first_pass()) return;
  at::empty({}, at::kLong).random_(spec.options.generator);
}

}  // namespace accelerate::detail
