#pragma once

#include <accelerate/distributed/process_state.h>

#include <functional>
#include <source_location>
#include <string>

/// How all ranks learn of a failure on one of them.
namespace accelerate::detail {

/// What a call throws, as text; nothing when it throws nothing. A DistributedError goes through: every rank gets it.
std::string failure_of(const std::function<void()>& call);
/// Tells all ranks the first failure of any; nothing when there is none. A collective.
std::string shared_failure(const ProcessState& state, const std::string& mine, std::source_location where);
/// CheckpointError, as one of `call`, unless it is empty.
void throw_failure(const char* call, const std::string& failure);

}  // namespace accelerate::detail
