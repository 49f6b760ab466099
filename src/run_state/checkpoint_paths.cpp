#include "run_state/checkpoint_paths.h"

#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>

#include "checkpoint/staged_folder.h"
#include "core/file.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

constexpr char kUnfinished[] = "unfinished_checkpoints";  // not among the others: listing those finds complete ones only
constexpr char kProjectLock[] = "accelerate_checkpoints.lock";
constexpr char kPrefix[] = "checkpoint_";

bool begins_a_file_system(const fs::path& folder) {
  struct stat own {
  }, above{};
  return stat(folder.c_str(), &own) == 0 && stat(folder.parent_path().c_str(), &above) == 0 && own.st_dev != above.st_dev;
}

/// The current folder would be one that nobody can reach any more.
void check_not_around_current(const fs::path& place, const std::string& named) {
  std::error_code problem;
  const fs::path current = fs::current_path(problem);
  for (fs::path above = current; !above.empty(); above = above == above.parent_path() ? fs::path() : above.parent_path()) {
    if (!fs::equivalent(place, above, problem)) continue;
    throw CheckpointError(fmt::format(
        "Cannot write the folder {}: it {} the current one, and a checkpoint replaces the whole folder. Give a folder below it.",
        named, above == current ? "is" : "holds"));
  }
}

}  // namespace

std::vector<int64_t> checkpoint_numbers(const fs::path& folder) {
  std::vector<int64_t> numbers;
  std::error_code problem;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end; entry.increment(problem)) {
    const auto number = checkpoint_number(entry->path().filename().string());
    if (!number) continue;
    std::error_code unknown;
    if (entry->is_directory(unknown)) numbers.push_back(*number);
    // One that was removed meanwhile, or a link to nothing, is none; of what cannot be looked at nobody knows.
    if (!unknown || unknown == std::errc::no_such_file_or_directory) continue;
    problem = unknown;
    break;
  }
  if (problem && problem != std::errc::no_such_file_or_directory) {
    throw CheckpointError(fmt::format("Cannot list the checkpoints in {}: {}.", folder.string(), problem.message()));
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::optional<int64_t> checkpoint_number(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t number = 0;
  const char* begin = name.data() + sizeof(kPrefix) - 1;
  const auto [end, problem] = std::from_chars(begin, name.data() + name.size(), number);
  return problem == std::errc() && end == name.data() + name.size() && number >= 0 ? std::optional(number) : std::nullopt;
}

std::string checkpoint_name(int64_t number) { return kPrefix + std::to_string(number); }

std::string expand_user(const std::string& path) {
  const auto home = process_environment("HOME");
  return home && (path == "~" || path.starts_with("~/")) ? *home + path.substr(1) : path;
}

fs::path without_links(const fs::path& path) {
  std::error_code problem;
  const fs::path place = fs::weakly_canonical(fs::absolute(path, problem), problem);
  if (problem) throw CheckpointError(fmt::format("Cannot use the folder {}: {}.", path.string(), problem.message()));
  const fs::path named = place.has_filename() ? place : place.parent_path();  // of a trailing slash
  if (fs::is_symlink(fs::symlink_status(named, problem))) {
    throw CheckpointError(fmt::format("Cannot use the folder {}: it is a symbolic link to {}, which does not exist.",
                                      path.string(), fs::read_symlink(named, problem).string()));
  }
  return named;
}

ProjectPaths project_paths(const fs::path& checkpoints) {
  const fs::path folder = without_links(checkpoints);
  // A folder cannot be renamed from one file system to another.
  const fs::path parent = begins_a_file_system(folder) ? folder : folder.parent_path();
  return {.checkpoints = folder, .unfinished = parent / kUnfinished, .lock = parent / kProjectLock};
}

SavePaths numbered_paths(const std::string& folder) {
  const fs::path named = folder;
  const auto project = project_paths(named.parent_path());
  // Only the folder of all checkpoints is followed: what a link in it leads to is not ours to replace or to remove.
  const SavePaths paths{
      .target = project.checkpoints / named.filename(), .staging = project.unfinished / named.filename(), .lock = project.lock};
  check_not_around_current(paths.target, folder);
  return paths;
}

SavePaths own_paths(const std::string& folder) {
  const fs::path place = without_links(folder);
  check_not_around_current(place, folder);
  const fs::path staging = place.parent_path() / staging_name(place.filename().string());
  return {.target = place, .staging = staging, .lock = staging.string() + ".lock"};
}

}  // namespace accelerate::detail
