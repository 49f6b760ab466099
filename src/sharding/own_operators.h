#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "residency/interception.h"

namespace accelerate::detail {

/// While it lives, operators of this thread are our own: they make no graph, page nothing in, and what they make outlives an
/// InferenceMode of the program.
struct OwnOperators {
  c10::InferenceMode real{false};
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard unseen{kKey};
};

}  // namespace accelerate::detail
