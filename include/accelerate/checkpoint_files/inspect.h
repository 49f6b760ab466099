#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace accelerate {

/// The output format of `inspect`.
enum class InspectStyle {
  /// A table for people.
  kTable,
  /// One JSON document for programs.
  kJson,
};

/// Lists the contents of a weights file, a state file or a folder of them: names, dtypes, shapes, sizes, metadata and first
/// values of tensors, and plain values. Reads safetensors, torch.save files of either format, and indexes, without torch or
/// Python, and only those elements that are shown. `write` receives the text in chunks. A corrupt file is a CheckpointError; in a
/// folder it is reported and skipped, and the result is false.
bool inspect(const std::filesystem::path& path, InspectStyle style, const std::function<void(std::string_view)>& write);

}  // namespace accelerate
