#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// Where checkpoints are, their numbers, and where they are staged. Everything that is refused is a CheckpointError.
namespace accelerate::detail {

/// The numbers of the checkpoints in a folder, lowest first. An error when it is there and cannot be read: to take it for an
/// empty one would begin a run again.
std::vector<int64_t> checkpoint_numbers(const std::filesystem::path& folder);
std::string checkpoint_name(int64_t number);
/// The number in a name.
std::optional<int64_t> checkpoint_number(const std::string& name);

/// With the user's home for a leading ~.
std::string expand_user(const std::string& path);
/// Where a path leads. What is not there yet is kept as it is.
std::filesystem::path without_links(const std::filesystem::path& path);

/// Where the numbered checkpoints of a project are.
struct ProjectPaths {
  std::filesystem::path checkpoints;
  /// Where they are staged, on the same file system.
  std::filesystem::path unfinished;
  std::filesystem::path lock;
};
ProjectPaths project_paths(const std::filesystem::path& checkpoints);

struct SavePaths {
  std::filesystem::path target;
  /// On the same file system.
  std::filesystem::path staging;
  /// The file whose lock keeps other runs away.
  std::filesystem::path lock;
};
/// Of a checkpoint with a number among others, which share a lock, and of one in a folder of the user's own. An error when the
/// current folder is in it. A link to a folder of the user's own is followed, one among numbered checkpoints is not.
SavePaths numbered_paths(const std::string& folder);
SavePaths own_paths(const std::string& folder);

}  // namespace accelerate::detail
