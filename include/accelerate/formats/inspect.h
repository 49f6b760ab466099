#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace accelerate {

/// How `inspect` tells what it found.
enum class InspectStyle {
  /// A table for people.
  kTable,
  /// One JSON document for programs.
  kJson,
};

/// Tells what a file of weights or states, or a folder of them, holds: names, dtypes, shapes, sizes, metadata and first values of
/// tensors, and plain values. Reads safetensors, torch.save files of either format, and indexes; no torch, no Python, and of the
/// elements only the few that are shown. `write` receives the text piece by piece. A file that is damaged is a CheckpointError;
/// in a folder it is told and passed over, and the result is false.
bool inspect(const std::filesystem::path& path, InspectStyle style, const std::function<void(std::string_view)>& write);

}  // namespace accelerate
