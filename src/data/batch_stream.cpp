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
  InlineStream(const Reading& reading, std::unique_ptr<BatchPlan> plan)
      : plan_(std::move(plan)), dataset_type_(reading.dataset_type) {}

  Anything next() override {
    if (ended_) return nullptr;
    const Busy busy("DataLoader", dataset_type_);
    ended_ = true;  // also when reading fails
    const auto ingredients = plan_->next();
    if (!ingredients) return nullptr;
    Anything batch = plan_->make(*ingredients);
    ended_ = false;
    return batch;
  }

 private:
  const std::unique_ptr<BatchPlan> plan_;
  const std::string dataset_type_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<BatchStream> open_stream(const Reading& reading, const SampleSeed& seed, const PassStart& start) {
  follow_stream(reading);
  auto plan = make_plan(reading, seed, start);
  const int workers = reading.options.num_workers;
  if (workers == 0) return std::make_unique<InlineStream>(reading, std::move(plan));
  auto pool = reading.workers ? reading.workers->get(workers) : std::make_shared<WorkerPool>(workers);
  return std::make_unique<WorkerStream>(reading, std::move(plan), std::move(pool));
}

void follow_stream(const Reading& reading) {
  // torch's loader draws one number at the start of each pass, or once for workers that persist. Ours needs none, but what is
  // drawn afterwards shall be the same.
  if (reading.workers && !reading.workers->begin_first_pass()) return;
  at::empty({}, at::kLong).random_(reading.options.generator);
}

}  // namespace accelerate::detail
