#include "accelerator/run_checkpoints.h"

#include <accelerate/checkpoint/module_state.h>
#include <accelerate/core/error.h>
#include <accelerate/core/logging.h>
#include <accelerate/distributed/collectives.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <filesystem>

#include "checkpoint/staged_folder.h"
#include "core/file.h"
#include "distributed/logbook.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

constexpr char kCheckpoints[] = "checkpoints";
constexpr char kUnfinished[] = "unfinished_checkpoints";  // not among the others: whoever lists those finds whole ones only
constexpr char kPrefix[] = "checkpoint_";

std::optional<int> number_in(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int number = 0;
  const char* begin = name.data() + sizeof(kPrefix) - 1;
  const auto [end, problem] = std::from_chars(begin, name.data() + name.size(), number);
  return problem == std::errc() && end == name.data() + name.size() && number >= 0 ? std::optional(number) : std::nullopt;
}

/// The numbers of the checkpoints in a folder, lowest first. CheckpointError when it is there and cannot be read: to take it for
/// an empty one would begin a run again.
std::vector<int> checkpoint_numbers(const fs::path& folder) {
  std::vector<int> numbers;
  std::error_code problem;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end; entry.increment(problem)) {
    if (const auto number = number_in(entry->path().filename().string())) numbers.push_back(*number);
  }
  if (problem && problem != std::errc::no_such_file_or_directory) {
    throw CheckpointError(fmt::format("Cannot look for checkpoints in {}: {}.", folder.string(), problem.message()));
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::string expand_user(const std::string& path) {
  const auto home = process_environment("HOME");
  return home && (path == "~" || path.starts_with("~/")) ? *home + path.substr(1) : path;
}

/// Where a path leads. What is not there yet is kept as it is.
fs::path without_links(const fs::path& path) {
  std::error_code problem;
  const fs::path place = fs::weakly_canonical(fs::absolute(path, problem), problem);
  if (problem) throw CheckpointError(fmt::format("Cannot use the folder {}: {}.", path.string(), problem.message()));
  const fs::path named = place.has_filename() ? place : place.parent_path();  // of a trailing slash
  if (fs::is_symlink(fs::symlink_status(named, problem))) {
    throw CheckpointError(fmt::format("Cannot write the folder {}: it is a symbolic link to {}, which is not there.",
                                      path.string(), fs::read_symlink(named, problem).string()));
  }
  return named;
}

/// A folder cannot be renamed from one file system to another.
bool begins_a_file_system(const fs::path& folder) {
  struct stat own {
  }, above{};
  return stat(folder.c_str(), &own) == 0 && stat(folder.parent_path().c_str(), &above) == 0 && own.st_dev != above.st_dev;
}

/// Where checkpoints are that cannot be seen yet, or any more.
fs::path unfinished_folder(const fs::path& checkpoints) {
  return (begins_a_file_system(checkpoints) ? checkpoints : checkpoints.parent_path()) / kUnfinished;
}

std::string name_of(int number) { return kPrefix + std::to_string(number); }

std::vector<torch::nn::Module*> modules_of(const RunParts& parts) {
  std::vector<torch::nn::Module*> modules;
  for (const auto& model : parts.models) modules.push_back(&model->module());
  return modules;
}

template <class Hook>
HookHandle keep_hook(const std::shared_ptr<std::list<Hook>>& hooks, Hook hook) {
  const auto place = hooks->insert(hooks->end(), std::move(hook));
  return HookHandle([hooks, place] { hooks->erase(place); });
}

/// Why a checkpoint cannot be used, or nothing. What was read to find out is kept in `files`.
std::string defect_of(const RunParts& parts, const std::string& folder, bool verify, std::unique_ptr<FolderFiles>& files) {
  files.reset();  // the memory of the one before
  files = std::make_unique<FolderFiles>(folder);
  try {
    if (const auto manifest = read_manifest(folder)) {
      return verify ? files->verify(*manifest, [&](const auto& name) { return is_read_by(parts, name); })
                    : find_defect(folder, *manifest);
    }
    check_run(parts, *files);  // Python wrote it, and left nothing to tell by
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// What a call throws, as text.
template <class Call>
std::string failure_of(Call&& call) {
  try {
    call();
  } catch (const DistributedError&) {
    throw;  // everyone hears of it
  } catch (const std::exception& error) {
    return *error.what() != '\0' ? error.what() : "an exception without a word";
  } catch (...) {
    return "an exception that is no std::exception";
  }
  return "";
}

void throw_failure(const char* call, const std::string& failure) {
  if (!failure.empty()) throw CheckpointError(fmt::format("{}: {}", call, failure));
}

}  // namespace

std::string shared_failure(const ProcessState& state, const std::string& mine, std::source_location where) {
  const auto all = gather_object(
      state, std::vector<std::string>{mine.empty() ? "" : fmt::format("process {}: {}", state.process_index(), mine)}, where);
  const auto found = std::find_if(all.begin(), all.end(), [](const auto& text) { return !text.empty(); });
  return found == all.end() ? "" : *found;
}

HookHandle RunCheckpoints::before_saving(SaveStateHook hook) { return keep_hook(save_hooks_, std::move(hook)); }

HookHandle RunCheckpoints::before_loading(LoadStateHook hook) { return keep_hook(load_hooks_, std::move(hook)); }

bool RunCheckpoints::leads(const ProcessState& state) const {
  return project_.save_on_each_node ? state.is_local_main_process() : state.is_main_process();
}

std::string RunCheckpoints::checkpoints_folder() const {
  return (fs::path(expand_user(project_.project_dir)) / kCheckpoints).string();
}

// --- Saving ---------------------------------------------------------------------------------------------------------------

RunCheckpoints::Target RunCheckpoints::choose_target(const ProcessState& state, const std::string& folder,
                                                     std::source_location where) {
  if (!folder.empty()) {
    const fs::path target = expand_user(folder);
    return {.folder = (target.has_filename() ? target : target.parent_path()).string(), .number = {}};
  }
  if (!project_.automatic_checkpoint_naming || project_.project_dir.empty()) {
    throw UsageError(
        "save_state was given no folder. Give one, or set project_dir and automatic_checkpoint_naming in "
        "ProjectConfiguration.");
  }
  int64_t number = project_.iteration.value_or(0);
  const std::string failure = failure_of([&] {
    if (project_.iteration || !leads(state)) return;
    const auto present = checkpoint_numbers(checkpoints_folder());
    if (!present.empty()) number = present.back() + 1;
  });
  throw_failure("save_state", shared_failure(state, failure, where));
  // The highest: machines that keep their own checkpoints may have been stopped between two of them.
  for (const int64_t other : gather_object(state, std::vector<int64_t>{number}, where)) number = std::max(number, other);
  return {.folder = (fs::path(checkpoints_folder()) / name_of(static_cast<int>(number))).string(),
          .number = static_cast<int>(number)};
}

void RunCheckpoints::find_place(Target& target) const {
  const fs::path place = without_links(target.folder);
  std::error_code problem;
  if (fs::equivalent(place, fs::current_path(problem), problem)) {
    throw CheckpointError(
        fmt::format("Cannot write the folder {}: it is the current one, and a checkpoint takes the place of a "
                    "folder as a whole. Give one below it.",
                    target.folder));
  }
  target.place = place.string();
  target.aside = target.number ? (unfinished_folder(place.parent_path()) / place.filename()).string()
                               : (place.parent_path() / ("." + place.filename().string() + ".unfinished")).string();
}

std::string RunCheckpoints::save(const RunParts& parts, const std::string& folder, const SaveStateOptions& options,
                                 std::source_location where) {
  finish(parts.state, where);
  Target target = choose_target(parts.state, folder, where);
  const Busy busy("save_state", target.folder);
  SaveJob job{.process = parts.state.process_index(), .num_processes = parts.state.num_processes()};
  std::string failure = failure_of([&] {
    find_place(target);
    if (!leads(parts.state)) return;
    std::error_code ignored;
    // Of saves and removals that were cut short, under whatever number.
    if (target.number) fs::remove_all(fs::path(target.aside).parent_path(), ignored);
    job.staged = std::make_shared<StagedFolder>(target.place, target.aside);
  });
  throw_failure("save_state", shared_failure(parts.state, failure, where));
  failure = failure_of([&] {
    auto* const copies = options.async ? &copies_ : nullptr;
    job.content = take_snapshot(parts, target.aside, {options.safe_serialization, copies, leads(parts.state)});
  });
  throw_failure("save_state", shared_failure(parts.state, failure, where));
  job.aside = target.aside;
  job.writers = writers_of(parts.state, where);
  if (target.number) job.afterwards = [this, number = *target.number] { remove_oldest(number); };
  write(parts.state, std::move(job), options.async, where);
  if (target.number) project_.iteration = *target.number + 1;
  return target.folder;
}

void RunCheckpoints::write(const ProcessState& state, SaveJob job, bool async, std::source_location where) {
  if (async) {
    writing_ = std::make_unique<BackgroundSave>(std::move(job));
    return;
  }
  throw_failure("save_state", shared_failure(state, job.write(), where));
  throw_failure("save_state", shared_failure(state, job.staged ? job.put_together() : "", where));
}

RunSnapshot RunCheckpoints::take_snapshot(const RunParts& parts, const std::string& folder, const SnapshotOptions& options) {
  std::vector<TensorDict> weights;
  for (const auto* module : modules_of(parts)) weights.push_back(state_dict(*module));
  for (const auto& hook : *save_hooks_) hook(modules_of(parts), weights, folder);
  return snapshot_of(parts, weights, python_random_, options);
}

std::vector<int> RunCheckpoints::writers_of(const ProcessState& state, std::source_location where) const {
  std::vector<int64_t> places = {state.local_process_index()};
  if (project_.save_on_each_node) {
    places = gather_object(state, places, where);
  } else {
    places.assign(static_cast<size_t>(state.num_processes()), 1);
    places[0] = 0;
  }
  // Every 0 begins a machine.
  std::vector<int> writers;
  for (int i = 0; i < state.num_processes(); ++i) {
    if (places[static_cast<size_t>(i)] == 0) {
      if (i > state.process_index()) break;
      writers.clear();
    }
    writers.push_back(i);
  }
  return writers;
}

void RunCheckpoints::finish(const ProcessState& state, std::source_location where) {
  if (!writing_) return;
  const auto writing = std::move(writing_);
  std::string failure;
  try {
    // An exchange, so that a process that is gone is missed here, by name, and not by the one that waits for its part.
    failure = shared_failure(state, writing->part(), where);
  } catch (...) {
    writing->give_up();
    throw;
  }
  if (!failure.empty()) writing->give_up();
  const std::string whole = writing->result();
  if (failure.empty()) failure = shared_failure(state, whole, where);
  throw_failure("save_state", failure);
}

void RunCheckpoints::remove_oldest(int saved) const {
  if (!project_.total_limit) return;
  const std::string failure = failure_of([&] {
    const fs::path folder = without_links(checkpoints_folder()), unfinished = unfinished_folder(folder);
    auto numbers = checkpoint_numbers(folder);
    std::erase(numbers, saved);
    const auto others = static_cast<size_t>(std::max(1, *project_.total_limit)) - 1;
    for (size_t i = 0; i + others < numbers.size(); ++i) {
      // Out of sight before anything of it is gone, so that no half of it can be found.
      const fs::path hidden = unfinished / name_of(numbers[i]);
      make_folder(unfinished);
      fs::remove_all(hidden);
      fs::rename(folder / name_of(numbers[i]), hidden);
      fs::remove_all(hidden);
    }
    std::error_code ignored;
    fs::remove(unfinished, ignored);  // when it is empty
  });
  if (!failure.empty()) get_logger("accelerate").warning("save_state could not remove an old checkpoint: {}", failure);
}

// --- Loading --------------------------------------------------------------------------------------------------------------

std::optional<int> RunCheckpoints::newest_checkpoint(const RunParts& parts, bool verify, std::unique_ptr<FolderFiles>& files,
                                                     std::source_location where) const {
  constexpr int64_t kNone = -1, kNotAsked = INT64_MAX;
  std::vector<int> numbers;
  const std::string failure = failure_of([&] {
    if (leads(parts.state)) numbers = checkpoint_numbers(checkpoints_folder());
  });
  throw_failure("load_state", shared_failure(parts.state, failure, where));
  for (int64_t limit = INT_MAX;;) {
    while (!numbers.empty()) {
      const std::string candidate = (fs::path(checkpoints_folder()) / name_of(numbers.back())).string();
      const std::string defect =
          numbers.back() > limit ? "another machine does not have it" : defect_of(parts, candidate, verify, files);
      if (defect.empty()) break;
      get_logger("accelerate").warning({.main_process_only = false}, "load_state passes over {}: {}", candidate, defect);
      numbers.pop_back();
    }
    const int64_t mine = !leads(parts.state) ? kNotAsked : numbers.empty() ? kNone : numbers.back();
    auto all = gather_object(parts.state, std::vector<int64_t>{mine}, where);
    std::erase(all, kNotAsked);
    const auto [lowest, highest] = std::minmax_element(all.begin(), all.end());
    if (*lowest == *highest) return *lowest == kNone ? std::nullopt : std::optional(static_cast<int>(*lowest));
    if (*lowest == kNone) {
      throw CheckpointError(
          fmt::format("load_state: a machine has no complete checkpoint in {}; another one has {}. Copy it "
                      "there, or remove it to begin again.",
                      checkpoints_folder(), name_of(static_cast<int>(*highest))));
    }
    limit = *lowest;
  }
}

std::optional<std::string> RunCheckpoints::find_checkpoint(const RunParts& parts, const std::string& folder, bool verify,
                                                           std::unique_ptr<FolderFiles>& files,
                                                           std::source_location where) const {
  if (folder.empty()) {
    if (!project_.automatic_checkpoint_naming || project_.project_dir.empty()) {
      throw UsageError(
          "load_state was given no folder. Give one, or set project_dir and automatic_checkpoint_naming in "
          "ProjectConfiguration.");
    }
    const auto number = newest_checkpoint(parts, verify, files, where);
    return number ? std::optional((fs::path(checkpoints_folder()) / name_of(*number)).string()) : std::nullopt;
  }
  const std::string path = expand_user(folder);
  std::string defect;
  if (leads(parts.state)) {
    std::error_code problem;
    const bool is_folder = fs::is_directory(path, problem);
    defect = is_folder ? defect_of(parts, path, verify, files) : problem ? problem.message() : "it is no folder";
    if (!defect.empty()) defect = fmt::format("{} cannot be used: {}", path, defect);
  }
  throw_failure("load_state", shared_failure(parts.state, defect, where));
  return path;
}

std::optional<std::string> RunCheckpoints::load(RunParts parts, const std::string& folder, const LoadStateOptions& options,
                                                std::source_location where) {
  finish(parts.state, where);
  std::unique_ptr<FolderFiles> files;
  const auto found = find_checkpoint(parts, folder, options.verify, files, where);
  if (!found) return std::nullopt;
  if (!files || files->folder() != *found) files = std::make_unique<FolderFiles>(*found);
  const Busy busy("load_state", *found);
  std::shared_ptr<LoadedRun> loaded;
  std::string failure = failure_of([&] {
    auto modules = modules_of(parts);
    for (const auto& hook : *load_hooks_) hook(modules, *found);
    std::erase_if(parts.models, [&](const auto& model) {
      return std::find(modules.begin(), modules.end(), &model->module()) == modules.end();
    });
    loaded = read_run(parts, *files);
    files.reset();  // tensors hold the memory that they lie in
  });
  throw_failure("load_state", shared_failure(parts.state, failure, where));
  // What was set is set back unless it could be set everywhere.
  UndoList undo;
  failure = failure_of([&] { restore_small_parts(parts, *loaded, undo); });
  throw_failure("load_state", shared_failure(parts.state, failure, where));
  undo.forget();
  restore_weights(parts, *loaded);
  python_random_ = loaded->random ? loaded->random->python : nullptr;
  return found;
}

}  // namespace accelerate::detail
