#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// What becomes of checkpoints that are too many, and of saves that were interrupted. Everything that is refused is a
/// CheckpointError.
namespace accelerate::detail {

/// Removes the oldest numbered checkpoints in a folder above `total_limit`, after `saved` was committed, which is never among
/// them. What cannot be removed is a warning. Does not throw.
void prune_checkpoints(const std::string& checkpoints, int64_t saved, std::optional<int> total_limit);

/// Puts right what a save left half done that replaced a folder and was interrupted: of one in a folder of the user's own, and of
/// all with numbers. Nothing is touched while another process saves there.
void recover_checkpoint(const std::string& folder);
void recover_checkpoints(const std::string& checkpoints);

}  // namespace accelerate::detail
