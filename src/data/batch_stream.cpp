#include "data/batch_stream.h"

#include <ATen/ops/empty.h>

#include "data/batch_plan.h"
#include "data/worker_pool.h"
#include "data/worker_stream.h"
#include "distributed/logbook.h"

namespace accelerate::detail {
namespace {

/// Batches that are read when they are asked for.
class InlineStream : public BatchStream {
 public:
  InlineStream(const LoaderSpec& spec, std::unique_ptr<BatchPlan> plan)
      : plan_(std::move(plan)), dataset_type_(spec.dataset_type) {}

  ErasedBatch next() override {
    if (ended_) return nullptr;
    const Busy busy("DataLoader", dataset_type_);
    ended_ = true;  // also when reading fails
    const auto batch_spec = plan_->next();
    if (!batch_spec) return nullptr;
    ErasedBatch batch = plan_->make(*batch_spec);
    ended_ = false;
    return batch;
  }

 private:
  const std::unique_ptr<BatchPlan> plan_;
  const std::string dataset_type_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<BatchStream> open_stream(const LoaderSpec& spec, const SampleSeed& seed, const PassStart& start) {
  follow_stream(spec);
  auto plan = make_plan(spec, seed, start);
  const int workers = spec.options.num_workers;
  if (workers == 0) return std::make_unique<InlineStream>(spec, std::move(plan));
  auto pool = spec.workers ? spec.workers->get(workers) : std::make_shared<WorkerPool>(workers);
  return std::make_unique<WorkerStream>(spec, std::move(plan), std::move(pool));
}

void follow_stream(const LoaderSpec& spec) {
  // torch's loader draws one number at the start of each pass, or once for workers that persist. Ours needs none, but what is
  // drawn afterwards shall be the same.
  if (spec.workers && !spec.workers->begin_first_pass()) return;
  at::empty({}, at::kLong).random_(spec.options.generator);
}

}  // namespace accelerate::detail
