#include <accelerate/parallel/model.h>
#include <accelerate/parallel/sync_scope.h>

#include "parallel/data_parallel.h"
#include "sharding/sharded_model.h"

namespace accelerate {

using namespace detail;
namespace detail {

SyncScope::SyncScope(const std::vector<std::shared_ptr<ModelCore>>& models, Restores restores) {
  for (const auto& model : models) {
    if (model->sharded()) before_.push_back({model, model->sharded()->reducer().syncs(), {}});
    const auto& parallel = model->data_parallel();
    if (!parallel) continue;
    before_.push_back({model, parallel->syncs().gradients, {}});
    if (restores == Restores::gradients_and_buffers) before_.back().buffers = parallel->syncs().buffers;
  }
}

SyncScope::~SyncScope() {
  for (const auto& before : before_) {
    if (before.model->sharded()) {
      before.model->sharded()->reducer().set_syncs(before.gradients);
      continue;
    }
    const auto& parallel = before.model->data_parallel();
    parallel->set_syncs(before.gradients, before.buffers.value_or(parallel->syncs().buffers));
  }
}

}  // namespace detail

NoSyncScope::NoSyncScope(const std::vector<std::shared_ptr<detail::ModelCore>>& models) : SyncScope(models, Restores::gradients) {
  for (const auto& model : models) {
    if (model->sharded()) model->sharded()->reducer().set_syncs(false);
    if (const auto& parallel = model->data_parallel()) parallel->set_syncs(/*gradients=*/false, parallel->syncs().buffers);
  }
}

TriggerSyncScope::TriggerSyncScope(const std::shared_ptr<detail::ModelCore>& model)
    : SyncScope({model}, Restores::gradients_and_buffers) {
  if (model->sharded()) {
    model->sharded()->reducer().set_syncs(true);
    model->sharded()->reducer().expect_sync();
  }
  const auto& parallel = model->data_parallel();
  if (!parallel) return;
  parallel->expect_gradients();
  parallel->set_syncs(/*gradients=*/true, /*buffers=*/true);
}

}  // namespace accelerate
