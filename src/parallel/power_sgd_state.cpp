#include "parallel/power_sgd_state.h"

#include <accelerate/core/error.h>

#include <sstream>
#include <string>

namespace accelerate::detail {
namespace {

StateDict by_bucket(const std::map<size_t, at::Tensor>& tensors) {
  StateDict dict;
  for (const auto& [bucket, tensor] : tensors) dict[std::to_string(bucket)] = tensor;
  return dict;
}

std::map<size_t, at::Tensor> copied_by_bucket(const StateDict& dict, at::Device device) {
  std::map<size_t, at::Tensor> tensors;
  for (const auto& [bucket, value] : dict) {
    tensors[std::stoul(bucket)] =
        value.get<at::Tensor>().to(device, value.get<at::Tensor>().scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  return tensors;
}

}  // namespace

uint64_t PowerSgdState::next_seed() {
  // As numpy's RandomState draws from [0, 1e9): as few bits as it takes, again and again until they fit.
  constexpr uint32_t kEnd = 1'000'000'000, kMask = (uint32_t{1} << 30) - 1;
  for (;;) {
    const auto number = static_cast<uint32_t>(random_()) & kMask;
    if (number < kEnd) return number;
  }
}

StateDict PowerSgdState::state_dict() const {
  std::ostringstream random;
  random << random_;
  return {{"iteration", iteration_}, {"random", random.str()}, {"errors", by_bucket(errors_)}, {"factors", by_bucket(factors_)}};
}

void PowerSgdState::load_state_dict(const StateDict& state, at::Device device) {
  std::mt19937 random;
  std::istringstream text(state.at("random").get<std::string>());
  if (!(text >> random)) throw UsageError("the state of PowerSGD's random number generator is invalid.");
  const int64_t iteration = state.at("iteration").get<int64_t>();
  auto errors = copied_by_bucket(state.at("errors").as<StateDict>(), device);
  auto factors = copied_by_bucket(state.at("factors").as<StateDict>(), device);
  iteration_ = iteration;
  random_ = random;
  errors_ = options_.use_error_feedback ? std::move(errors) : std::map<size_t, at::Tensor>();
  factors_ = options_.warm_start ? std::move(factors) : std::map<size_t, at::Tensor>();
}

}  // namespace accelerate::detail
