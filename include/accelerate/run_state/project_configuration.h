#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accelerate {

/// Where a run keeps its files.
struct ProjectConfiguration {
  /// A std::filesystem::path is a string here.
  std::string project_dir = {};
  /// Where trackers write; by default project_dir. UsageError: there are no trackers yet.
  std::string logging_dir = {};
  /// save_state and load_state without a folder use project_dir/checkpoints/checkpoint_N, N increasing.
  bool automatic_checkpoint_naming = false;
  /// How many of those are kept; the oldest goes when a new one is durable.
  std::optional<int> total_limit = {};
  /// The number of the first one; by default one more than the highest that is there.
  std::optional<int64_t> iteration = {};
  /// Every host writes the files, not the first alone: for folders that hosts do not share.
  bool save_on_each_node = false;
};

}  // namespace accelerate
