#pragma once

#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "run_state/snapshot.h"

namespace accelerate::detail {

/// What one rank has written of a checkpoint, or why it could not.
struct PartReport {
  int rank = 0;
  std::string failure = {};
  std::vector<FileRecord> files = {};
};

/// Makes the copies of a snapshot and writes its files into the staging folder, several at a time and durable. Does not throw.
/// A part that could not be written leaves none of its files, so that there is room for the report on it.
PartReport write_part(RunSnapshot& snapshot, const std::string& staging, int rank);

std::string report_text(const PartReport& report);
PartReport parse_report(const std::string& text);
/// "rank 1: No space left on device", of the first rank that failed; nothing when none has.
std::string first_failure(const std::vector<PartReport>& reports);

}  // namespace accelerate::detail
