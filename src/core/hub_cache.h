#pragma once

#include <accelerate/core/launch_environment.h>

#include <filesystem>
#include <string>

/// Models that huggingface_hub has downloaded.
namespace accelerate::detail {

/// Where downloads are kept: HF_HUB_CACHE, or hub in HF_HOME, or huggingface/hub in XDG_CACHE_HOME or ~/.cache.
std::filesystem::path hub_cache_folder(const Environment& environment = process_environment);

/// The file or folder that a user means: a path that exists, or the newest downloaded snapshot of a model of the hub, named as
/// "org/model". UsageError, with the command that downloads it, when there is neither.
std::filesystem::path find_model(const std::string& path_or_name, const Environment& environment = process_environment);

}  // namespace accelerate::detail
