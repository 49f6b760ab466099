#include "parallel/power_sgd_hook.h"

#include <accelerate/core/error.h>

#include "parallel/power_sgd_round.h"

namespace accelerate::detail {

PowerSgdHook::PowerSgdHook(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<PowerSgdState> state, Matrix matrix)
    : group_(std::move(group)), state_(std::move(state)), matrix_(matrix) {}

PowerSgdHook::~PowerSgdHook() = default;

c10::intrusive_ptr<c10::ivalue::Future> PowerSgdHook::runHook(c10d::GradBucket& bucket) {
  if (bucket.getBuffer().layout() != at::kStrided)
    throw UsageError("PowerSGD does not support sparse gradients: construct the embedding with sparse(false).");
  // A backward pass that failed may have left some.
  if (bucket.getIndex() == 0) rounds_.clear();
  right_factors_left_ = false;
  const bool plain = state_->warming_up();
  if (bucket.isLast()) state_->count();
  if (plain) {
    rounds_.emplace_back();
    return run_plain(bucket.getBuffer());
  }
  rounds_.push_back(std::make_unique<PowerSgdRound>(group_, *state_, bucket, matrix_ == Matrix::bucket));
  return rounds_.back()->send_left_factors()->getFuture();
}

c10::intrusive_ptr<c10::ivalue::Future> PowerSgdHook::run_plain(const at::Tensor& gradients) {
  gradients.div_(group_->getSize());
  std::vector<at::Tensor> tensors = {gradients};
  return group_->allreduce(tensors)->getFuture();
}

at::Tensor PowerSgdHook::parseHookResult(const c10::IValue& result) {
  if (!right_factors_left_) {
    for (auto& round : rounds_) {
      if (round) round->send_right_factors();
    }
    right_factors_left_ = true;
  }
  const auto round = std::move(rounds_.front());
  rounds_.pop_front();
  return round ? round->finish() : c10d::detail::parseCppCommHookResult(result);
}

}  // namespace accelerate::detail
