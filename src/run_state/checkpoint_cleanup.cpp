#include "run_state/checkpoint_cleanup.h"

#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/shared_failure.h"
#include "checkpoint/staged_folder.h"
#include "core/escaped.h"
#include "core/file.h"
#include "run_state/checkpoint_paths.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

/// Out of sight before anything of it is gone, so that no half of it can be found. Of a symbolic link the link alone.
void remove_checkpoint(const std::string& folder) {
  const auto paths = numbered_paths(folder);
  if (fs::is_symlink(fs::symlink_status(paths.target))) {
    fs::remove(paths.target);
    return;
  }
  if (const auto mounted = mounted_in(paths.target); !mounted.empty())
    throw CheckpointError(fmt::format("{}: something is mounted at {}", paths.target.string(), mounted.string()));
  make_folder(paths.staging.parent_path());
  fs::remove_all(paths.staging);
  fs::rename(paths.target, paths.staging);
  fs::remove_all(paths.staging);
  std::error_code ignored;
  fs::remove(paths.staging.parent_path(), ignored);  // when it is empty
}

void warn_of_failure(const std::function<void()>& removal) {
  const std::string failure = failure_of(removal);
  if (failure.empty()) return;
  get_logger("accelerate")
      .warning({.main_process_only = false}, "save_state could not remove an old checkpoint: {}", escaped_lines(failure));
}

}  // namespace

void prune_checkpoints(const std::string& checkpoints, int64_t saved, std::optional<int> total_limit) {
  if (!total_limit) return;
  const fs::path folder = checkpoints;
  std::vector<int64_t> numbers;
  warn_of_failure([&] {
    // What is new is there and whole, or nothing older goes.
    const auto manifest = read_manifest(folder / checkpoint_name(saved));
    const auto defect = manifest ? find_defect(folder / checkpoint_name(saved), *manifest) : "it has no manifest";
    if (!defect.empty()) throw CheckpointError(fmt::format("{} is not complete: {}", checkpoint_name(saved), defect));
    numbers = checkpoint_numbers(folder);
  });
  std::erase(numbers, saved);
  const auto others = static_cast<size_t>(std::max(1, *total_limit)) - 1;
  // One that cannot be removed, as one that is mounted, does not keep the others.
  for (size_t i = 0; i + others < numbers.size(); ++i)
    warn_of_failure([&] { remove_checkpoint((folder / checkpoint_name(numbers[i])).string()); });
}

void recover_checkpoint(const std::string& folder) {
  std::error_code ignored;
  if (fs::exists(folder, ignored)) return;
  const auto recover = [](const SavePaths& paths) {
    if (!StagedFolder::is_interrupted(paths.staging)) return false;
    const SaveLock lock(paths.lock, paths.target.string());
    StagedFolder::recover(paths.target, paths.staging);
    return true;
  };
  if (!recover(own_paths(folder)) && checkpoint_number(fs::path(folder).filename().string())) recover(numbered_paths(folder));
}

void recover_checkpoints(const std::string& checkpoints) {
  checkpoint_numbers(checkpoints);  // tells when they cannot be read
  const auto project = project_paths(checkpoints);
  std::error_code problem;
  std::vector<fs::path> interrupted;
  for (fs::directory_iterator entry(project.unfinished, problem), end; !problem && entry != end; entry.increment(problem)) {
    if (StagedFolder::is_interrupted(entry->path())) interrupted.push_back(entry->path());
    const fs::path replaced = entry->path().parent_path() / entry->path().stem();  // of one whose new folder is in its place
    if (entry->path().extension() == ".old" && !fs::exists(replaced)) interrupted.push_back(replaced);
  }
  if (problem && problem != std::errc::no_such_file_or_directory)
    throw FileAccessError(fmt::format("Cannot read {}: {}.", project.unfinished.string(), problem.message()));
  if (interrupted.empty() || SaveLock::is_held(project.lock)) return;
  const SaveLock lock(project.lock, checkpoints);
  for (const auto& staging : interrupted) StagedFolder::recover(project.checkpoints / staging.filename(), staging);
}

}  // namespace accelerate::detail
