#pragma once

#include <string>
#include <vector>

#include <accelerate/core/launch_environment.h>

namespace accelerate {

/// What becomes of all that one rank writes.
struct RankOutputPlan {
  /// Its number among the ranks of all machines.
  int rank = 0;
  /// Streams that are written to a file as well as to the launcher's own.
  bool stdout_to_file = false;
  bool stderr_to_file = false;
  /// Begins each line of those streams on the launcher's own. Empty: as for the others, where a terminal shows the rank.
  std::string prefix = {};
};

/// What becomes of all that the ranks of a launch write.
struct OutputPlan {
  /// Those of this machine, by local rank.
  std::vector<RankOutputPlan> ranks = {};
  /// Folder for the files; empty: a new one among the temporary files.
  std::string log_dir = {};
  /// The launcher itself says nothing.
  bool quiet = false;

  /// True when a rank writes to a file.
  bool has_files() const;
};

/// Reads --tee, --log_dir and --role as torchrun does, for the `processes` ranks of this machine, of which the first is
/// `first_rank`. TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE chooses another prefix for teed lines. Throws UsageError naming --tee.
OutputPlan plan_output(const std::string& tee, const std::string& log_dir, const std::string& role, int first_rank, int processes,
                       const Environment& environment);

}  // namespace accelerate
