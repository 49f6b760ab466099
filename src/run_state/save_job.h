#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/staged_folder.h"
#include "run_state/run_files.h"

namespace accelerate::detail {

/// What one process does for a checkpoint, whichever thread does it. Functions return what went wrong, or nothing; they do not
/// throw.
struct SaveJob {
  RunSnapshot content = {};
  /// Where it is written before it takes its place.
  std::string aside = {};
  int process = 0, num_processes = 1;
  /// The processes whose files lie in the same folder as this one's.
  std::vector<int> writers = {};
  /// Only with the process that puts the checkpoint together.
  std::shared_ptr<StagedFolder> staged = {};
  /// Called when the checkpoint is durable. It does not throw.
  std::function<void()> afterwards = {};

  /// Writes the files, and a report on them beside them. One that could not be written leaves none of this process's files, so
  /// that there is room for the report.
  std::string write();
  /// Waits, without a word to them, until all writers have written their reports, or `give_up` is set.
  std::string await_reports(const std::atomic<bool>& give_up) const;
  /// From all reports the manifest; then the folder takes its place.
  std::string put_together() const;
};

}  // namespace accelerate::detail
