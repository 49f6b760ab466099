#include "run_state/commit.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "checkpoint/staged_folder.h"
#include "core/crc32.h"
#include "core/file.h"
#include "run_state/checkpoint_files.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

/// The record of a file that a hook wrote, which is made durable.
FileRecord settled_record_of(const fs::path& folder, const std::string& name) {
  const InputFile file(folder / name);
  file.settle();
  FileRecord record{.name = name, .bytes = file.size()};
  std::vector<char> buffer(std::min<uint64_t>(file.size(), uint64_t{1} << 20));
  for (uint64_t offset = 0; offset < file.size(); offset += buffer.size()) {
    const uint64_t size = std::min<uint64_t>(buffer.size(), file.size() - offset);
    file.read(buffer.data(), size, offset);
    record.crc32 = crc32(record.crc32, buffer.data(), size);
  }
  return record;
}

/// Files that hooks have written belong to the checkpoint as well, also those in folders of theirs, at `path` from its top.
void add_hook_files(Manifest& manifest, const std::set<std::string>& known, const fs::path& top, const std::string& path = "") {
  for (const auto& entry : fs::directory_iterator(top / path)) {
    const std::string name = (fs::path(path) / entry.path().filename()).string();
    if (entry.is_symlink() || known.contains(name)) continue;
    if (entry.is_directory()) {
      add_hook_files(manifest, known, top, name);
    } else if (entry.is_regular_file()) {
      manifest.files.push_back(settled_record_of(top, name));
    }
  }
  if (!path.empty()) sync_folder_entries(top / path);
}

/// The names of the files of the checkpoint that is there; empty when nothing tells.
std::set<std::string> files_of(const fs::path& folder) {
  std::set<std::string> names;
  try {
    if (const auto manifest = read_manifest(folder)) {
      for (const auto& record : manifest->files) names.insert(record.name);
    }
  } catch (const Error&) {  // a damaged one tells nothing
  }
  return names;
}

/// Into the staging folder, which is made durable as a whole.
void write_manifest(const fs::path& folder, const Manifest& manifest) {
  const std::string text = manifest_text(manifest);
  OutputFile file(folder / kManifestName);
  file.write(text.data(), text.size());
  file.place();
}

}  // namespace

void commit_checkpoint(StagedFolder& staged, const std::vector<PartReport>& reports, int num_processes) {
  if (const auto failure = first_failure(reports); !failure.empty()) throw CheckpointError(failure);
  Manifest manifest{.num_processes = num_processes};
  std::set<std::string> known;
  for (const auto& report : reports) {
    for (const auto& record : report.files) {
      manifest.files.push_back(record);
      known.insert(record.name);
    }
  }
  add_hook_files(manifest, known, staged.path());
  write_manifest(staged.path(), manifest);
  // Not by trust in the reports: on a network file system, or with a second run in the same place, files may be gone.
  if (const auto defect = find_defect(staged.path(), manifest); !defect.empty())
    throw CheckpointError(fmt::format("{} is not complete: {}.", staged.path().string(), defect));
  const auto before = files_of(staged.target());
  staged.commit([&](const std::string& name) { return before.contains(name) || is_checkpoint_file(name); });
}

}  // namespace accelerate::detail
