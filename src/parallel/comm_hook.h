#pragma once

#include <accelerate/parallel/ddp_options.h>

#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "parallel/power_sgd_state.h"

namespace accelerate::detail {

/// A hook of the reducer and what it remembers.
struct ChosenHook {
  std::unique_ptr<c10d::CommHookInterface> hook;
  /// Null for a hook that remembers nothing.
  std::shared_ptr<PowerSgdState> state;
};

/// What the options ask for; no hook when they ask for none.
ChosenHook choose_comm_hook(const DdpOptions& options, const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace accelerate::detail
