#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// Where checkpoints are, and where they are while they are written. Everything that is refused is a CheckpointError.
namespace accelerate::detail {

/// The numbers of the checkpoints in a folder, lowest first. An error when it is there and cannot be read: to take it for an
/// empty one would begin a run again.
std::vector<int64_t> checkpoint_numbers(const std::filesystem::path& folder);
std::string checkpoint_name(int64_t number);

/// With the user's home for a leading ~.
std::string expand_user(const std::string& path);
/// Where a path leads. What is not there yet is kept as it is.
std::filesystem::path without_links(const std::filesystem::path& path);

/// Where the numbered checkpoints of a project are.
struct ProjectPlaces {
  std::filesystem::path checkpoints;
  /// Where they are while they are written, on the same file system.
  std::filesystem::path unfinished;
  std::filesystem::path lock;
};
ProjectPlaces project_places(const std::filesystem::path& checkpoints);

struct SavePlaces {
  std::filesystem::path target;
  /// On the same file system.
  std::filesystem::path aside;
  /// The file whose lock keeps other runs away.
  std::filesystem::path lock;
};
/// Of a checkpoint with a number among others, which share a lock, and of one in a folder of the user's own. An error when the
/// current folder is in it. A link to a folder of the user's own is followed, one among numbered checkpoints is not.
SavePlaces numbered_places(const std::string& folder);
SavePlaces own_places(const std::string& folder);

/// Removes one with a number: out of sight before anything of it is gone, so that no half of it can be found. Of a symbolic link
/// the link alone.
void remove_checkpoint(const std::string& folder);

/// Puts right what a save left half done that replaced a folder and was cut short: of one in a folder of the user's own, and of
/// all with numbers. Nothing is touched while another process saves there.
void recover_checkpoint(const std::string& folder);
void recover_checkpoints(const std::string& checkpoints);

}  // namespace accelerate::detail
