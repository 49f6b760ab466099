#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// What distinguishes a complete checkpoint from an incomplete one.
namespace accelerate::detail {

/// One file of a checkpoint as it was written.
struct FileRecord {
  /// Its path from the folder.
  std::string name;
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
};

/// The list of all files of a checkpoint. It is written last, so a folder that has one had all of them.
struct Manifest {
  std::vector<FileRecord> files = {};
  /// Processes that saved together.
  int num_processes = 1;
};

inline constexpr char kManifestName[] = "accelerate_manifest.json";

/// Files sorted by name: the same checkpoint gives the same text. CheckpointError for a name that is not UTF-8.
std::string manifest_text(const Manifest& manifest);
/// CheckpointError, naming `file`, for a text that is no manifest. It is not to be trusted: a name never leaves its folder.
Manifest parse_manifest(const std::string& text, const std::string& file);
/// That of a folder; nothing when it has none, as those that Python wrote.
std::optional<Manifest> read_manifest(const std::filesystem::path& folder);

/// What is wrong with the files of a folder that has this manifest: one that is missing or of another size; empty when nothing
/// is. The content is compared by FolderFiles. FileAccessError when it cannot be known.
std::string find_defect(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace accelerate::detail
