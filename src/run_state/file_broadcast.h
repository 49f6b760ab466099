#pragma once

#include <source_location>
#include <string>

#include "checkpoint/folder_files.h"

namespace accelerate::detail {

struct RunParts;

/// The main process of each host reads what all ranks read of a checkpoint, and broadcasts it to the ranks of its host, which
/// keep it. A collective. Returns what went wrong on one of them, on all ranks.
std::string broadcast_files(const RunParts& parts, FolderFiles& files, std::source_location where);

}  // namespace accelerate::detail
