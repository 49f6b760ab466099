#pragma once

#include <string>
#include <vector>

#include <accelerate/core/launch_environment.h>

namespace accelerate {

/// Where the output of one rank goes.
struct RankOutputPlan {
  /// Its global rank.
  int rank = 0;
  /// What its lines begin with on a terminal, in brackets. Empty: its rank.
  std::string name = {};
  /// Streams that are also written to a log file.
  bool stdout_to_file = false;
  bool stderr_to_file = false;
  /// Prefix of each line of those streams on the launcher's own, in which `${rank}` stands for the rank. Empty: the default,
  /// which is the rank on a terminal.
  std::string prefix = {};

  /// The prefix with the rank.
  std::string line_prefix() const;
};

/// Where the output of the ranks of a launch goes.
struct OutputPlan {
  /// The ranks of this host, by local rank.
  std::vector<RankOutputPlan> ranks = {};
  /// Folder for log files; empty: a new temporary folder.
  std::string log_dir = {};
  /// Suppress the launcher's own messages.
  bool quiet = false;

  /// True when a rank has a log file.
  bool has_files() const;
};

/// Reads --tee, --log_dir and --role as torchrun does, for the `processes` ranks of this machine, of which the first is
/// `first_rank`. TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE chooses another prefix for teed lines. Throws UsageError naming --tee.
OutputPlan plan_output(const std::string& tee, const std::string& log_dir, const std::string& role, int first_rank, int processes,
                       const Environment& environment);

}  // namespace accelerate
