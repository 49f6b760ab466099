#pragma once

#include <accelerate/distributed/value.h>

#include <optional>

#include "checkpoint/folder_files.h"

namespace accelerate::detail {

struct RunParts;

/// What the communication hooks of gradients remember of this rank, by the number of the model; empty when they remember nothing.
StateDict hook_states_of(const RunParts& parts);
/// This rank's; where another number of ranks saved, the first one's with the mean of what all of them have yet to send.
/// Nothing when there is none.
std::optional<StateDict> read_hook_states(const FolderFiles& files, const RunParts& parts);
/// Each hook resumes from its part. UsageError when one does not fit.
void load_hook_states(const RunParts& parts, const StateDict& states);

}  // namespace accelerate::detail
