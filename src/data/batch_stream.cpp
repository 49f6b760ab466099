#include "data/batch_stream.h"

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

std::unique_ptr<BatchStream> open_stream(const Reading& reading, const SampleSeed& seed) {
  if (reading.options.num_workers == 0) return std::make_unique<InlineStream>(reading, make_plan(reading, seed, true));
  bool fresh = true;
  auto pool = reading.workers ? reading.workers->get(reading.options.num_workers, fresh)
                              : std::make_shared<WorkerPool>(reading.options.num_workers);
  return std::make_unique<WorkerStream>(reading, make_plan(reading, seed, fresh), std::move(pool));
}

}  // namespace accelerate::detail
