#pragma once

#include <map>
#include <string>

#include "launch/launch_settings.h"

namespace accelerate::detail {

/// Variables of workers by name.
using Variables = std::map<std::string, std::string>;

/// What the worker's TorchDynamoPlugin reads. UsageError when the backend is none that Python knows.
Variables dynamo_variables(const LaunchSettings& settings);

/// What the worker's FSDP plugin reads. UsageError when the settings contradict each other.
Variables fsdp_variables(const LaunchSettings& settings);

/// What the worker's Megatron-LM plugin reads.
Variables megatron_variables(const LaunchSettings& settings);

/// What the worker's DeepSpeed plugin reads.
Variables deepspeed_variables(const LaunchSettings& settings);

/// What the worker's ParallelismConfig reads. UsageError when a size is no number.
Variables parallelism_variables(const LaunchSettings& settings);

/// What the worker's fp8 recipes read.
Variables fp8_variables(const LaunchSettings& settings);

}  // namespace accelerate::detail
