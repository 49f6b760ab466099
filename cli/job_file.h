#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <accelerate/core/launch_environment.h>
#include "launch/launch_arguments.h"

namespace accelerate::detail::cli {

/// The batch script with which `accelerate launch --submit` hands a launch to Slurm: #SBATCH lines for what the settings need,
/// those of --sbatch, and one launcher on each node with the flags of `line` but for those of submitting. `launcher` is how the
/// launcher is called there. `config` holds the keys of the config file, or is null when there is none. Pure: it depends on
/// nothing but its arguments. Throws UsageError naming the invalid flag or key, as the launch itself would on a node.
std::string slurm_job_file(const LaunchArguments& arguments, const nlohmann::json* config, const std::vector<std::string>& line,
                           const std::string& launcher, const Environment& environment);

}  // namespace accelerate::detail::cli
