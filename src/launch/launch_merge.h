#pragma once

#include <accelerate/launch/machine_facts.h>
#include <nlohmann/json.hpp>

#include "elastic/cluster_place.h"
#include "launch/launch_arguments.h"

namespace accelerate::detail {

/// Merges a config file into the arguments; `config` holds the keys of the file, or is null when there is none.
/// The command line overrides the file, and the file overrides the defaults of the flags. Flags that select the training
/// paradigm count as one: when any was given, the file's distributed_type is ignored.
/// Also sets `use_cpu`, and `deepspeed_fields`: the names of the DeepSpeed settings that come from the file.
/// UsageError when a required setting is still missing.
LaunchArguments merge_config(LaunchArguments arguments, const nlohmann::json* config);

/// Where a scheduler has put this launch, unless that is no concern of it: it is to stand alone, mpirun starts the processes, or
/// it is made by a rank of a launch that has this place.
std::optional<ClusterPlace> place_of(const LaunchArguments& arguments, const Environment& environment);

/// What of a machine is given to this launcher.
MachineFacts as_given(MachineFacts machine, const ClusterPlace& place);

/// Merges where a scheduler has put this launcher into arguments that are merged with the config file: the command line overrides
/// the place, and the place overrides the file. A count of processes in the file is one for its number of machines, and follows
/// that of the place. Adds what the user should know to `notes`. UsageError when the command line contradicts the place.
void merge_place(LaunchArguments& arguments, const ClusterPlace& place, std::vector<std::string>& notes);

}  // namespace accelerate::detail
