#pragma once

#include <vector>

#include "run_state/part_writer.h"

namespace accelerate::detail {
class StagedFolder;
}

namespace accelerate::detail {

/// Commits a checkpoint whose parts are all in the staging folder: writes the manifest, checks that every file is there, and
/// renames the folder. CheckpointError, with what was there before as it was, when a part or anything else has failed.
void commit_checkpoint(StagedFolder& staged, const std::vector<PartReport>& reports, int num_processes);

}  // namespace accelerate::detail
