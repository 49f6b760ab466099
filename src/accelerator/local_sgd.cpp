#include <ATen/ops/cat.h>
#include <accelerate/accelerator/accelerator.h>
#include <accelerate/accelerator/local_sgd.h>
#include <accelerate/core/error.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <map>

#include "distributed/communicator.h"
#include "parallel/data_parallel.h"

namespace accelerate {

using namespace detail;
namespace {

/// What travels together: one dtype on one device.
std::map<std::string, std::vector<at::Tensor>> weights_by_kind(const ModelCore& model) {
  std::map<std::string, std::vector<at::Tensor>> kinds;
  for (const auto& parameter : model.parameters()) {
    if (parameter.defined() && parameter.numel() > 0) {
      kinds[fmt::format("{} {}", parameter.device().str(), static_cast<int>(parameter.scalar_type()))].push_back(
          parameter.detach());
    }
  }
  return kinds;
}

}  // namespace

LocalSGD::LocalSGD(const Accelerator& accelerator, std::shared_ptr<ModelCore> model, int64_t local_sgd_steps, bool enabled)
    : model_(std::move(model)), local_sgd_steps_(local_sgd_steps) {
  if (local_sgd_steps < 1)
    throw UsageError(fmt::format("local_sgd_steps is {}: weights are averaged after at least 1 step.", local_sgd_steps));
  if (!enabled || !accelerator.state().use_distributed()) return;
  if (model_->sharded())
    throw UsageError(
        fmt::format("LocalSGD cannot train {}, which is sharded: no rank has weights of its own to step. Use "
                    "sharding_strategy no_shard.",
                    model_->module().name()));
  no_sync_.emplace(std::vector{model_});
  if (const auto& parallel = model_->data_parallel()) parallel->expect_local_steps();
}

void LocalSGD::step(std::source_location where) {
  ++steps_;
  if (no_sync_ && steps_ % local_sgd_steps_ == 0) average(where);
}

void LocalSGD::finish(std::source_location where) {
  if (!no_sync_) return;
  average(where);
  no_sync_.reset();
}

void LocalSGD::average(std::source_location where) {
  const c10::NoGradGuard no_grad;
  const auto communicator = model_->state().communicator();
  for (auto& [kind, weights] : weights_by_kind(*model_)) {
    std::vector<at::Tensor> flat;
    for (const auto& weight : weights) flat.push_back(weight.reshape({-1}));
    at::Tensor all = at::cat(flat);
    communicator->all_reduce(all, c10d::ReduceOp::SUM, "LocalSGD", where);
    all.div_(communicator->size());
    int64_t at = 0;
    for (const auto& weight : weights) {
      weight.copy_(all.narrow(0, at, weight.numel()).view(weight.sizes()));
      at += weight.numel();
    }
  }
  model_->weights_loaded();
}

}  // namespace accelerate
