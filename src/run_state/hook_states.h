#pragma once

#include <optional>
#include <string>

#include "checkpoint/folder_files.h"
#include "run_state/run_parts.h"

namespace accelerate::detail {

/// One that Python passes over.
inline constexpr char kHookStates[] = "accelerate_comm_hooks_";
std::string hook_states_name(int process);

/// What the hooks that gradients travel by remember of this process, by the number of the model; empty when they remember
/// nothing.
StateDict hook_states_of(const RunParts& parts);
/// This process's; where another number of processes saved, the first one's with the mean of what all of them have yet to send.
/// Nothing when there is none.
std::optional<StateDict> read_hook_states(const FolderFiles& files, const RunParts& parts);
/// Each hook goes on from its part. UsageError when one does not fit.
void load_hook_states(const RunParts& parts, const StateDict& states);

}  // namespace accelerate::detail
