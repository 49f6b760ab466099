#include "run_state/run_checkpoints.h"

#include <accelerate/checkpoint/module_state.h>
#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <filesystem>

#include "core/escaped.h"
#include "core/file.h"
#include "distributed/logbook.h"
#include "parallel/replica_check.h"
#include "run_state/checkpoint_places.h"
#include "run_state/parameter_names.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

constexpr char kCheckpoints[] = "checkpoints";

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

/// Why a checkpoint cannot be used, or nothing. What was read to find out is kept in `files`. FileAccessError when it cannot be
/// known.
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
  } catch (const FileAccessError&) {
    throw;  // it says nothing about the checkpoint
  } catch (const std::bad_alloc&) {
    throw;  // nor does this
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Whether a live run that this one only reads from has removed it meanwhile.
bool is_gone(const fs::path& folder) {
  std::error_code ignored;
  return !fs::exists(folder, ignored);
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
      state, std::vector<std::string>{mine.empty() ? "" : fmt::format("rank {}: {}", state.process_index(), mine)}, where);
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
    if (!present.empty() && present.back() == INT64_MAX)
      throw UsageError(fmt::format("no number is left after {} in {}.", checkpoint_name(present.back()), checkpoints_folder()));
    if (!present.empty()) number = present.back() + 1;
    // Something else may have that name: a file, a link to nothing.
    while (fs::exists(fs::symlink_status(fs::path(checkpoints_folder()) / checkpoint_name(number)))) ++number;
  });
  throw_failure("save_state", shared_failure(state, failure, where));
  // The highest: machines that keep their own checkpoints may have been stopped between two of them.
  for (const int64_t other : gather_object(state, std::vector<int64_t>{number}, where)) number = std::max(number, other);
  return {.folder = (fs::path(checkpoints_folder()) / checkpoint_name(number)).string(), .number = number};
}

void RunCheckpoints::own_project() {
  if (project_lock_) return;
  const auto project = project_places(checkpoints_folder());
  make_folder(project.lock.parent_path());
  project_lock_.emplace(project.lock, project.lock.parent_path().string());
  if (!project_lock_->is_first()) return;  // another accelerator of this process may be saving
  try {
    recover_checkpoints(checkpoints_folder());
  } catch (...) {
    project_lock_.reset();
    throw;
  }
  std::error_code ignored;
  fs::remove_all(project.unfinished, ignored);  // of interrupted saves and removals, under whatever number
}

void RunCheckpoints::release() {
  copies_.release();
  project_lock_.reset();
}

std::string RunCheckpoints::save(const RunParts& parts, const std::string& folder, const SaveStateOptions& options,
                                 std::source_location where) {
  finish(parts.state, where);
  if (options.check_replicas) {
    throw_failure("save_state", replicas_that_differ(parts.state, parts.models, "save_state", where));
  }
  const Target target = choose_target(parts.state, folder, where);
  const Busy busy("save_state", target.folder);
  SaveJob job{.process = parts.state.process_index(), .num_processes = parts.state.num_processes()};
  std::string failure = failure_of([&] {
    const auto places = target.number ? numbered_places(target.folder) : own_places(target.folder);
    job.aside = places.aside.string();
    if (!leads(parts.state)) return;
    if (target.number) own_project();
    job.staged = std::make_shared<StagedFolder>(places.target, places.aside, places.lock);
  });
  throw_failure("save_state", shared_failure(parts.state, failure, where));
  failure = failure_of([&] {
    auto* const copies = options.async ? &copies_ : nullptr;
    job.content = take_snapshot(parts, job.aside, {options.safe_serialization, copies, leads(parts.state)});
  });
  throw_failure("save_state", shared_failure(parts.state, failure, where));
  job.writers = writers_of(parts.state, where);
  if (target.number) job.afterwards = [this, number = *target.number] { remove_oldest(number); };
  write(parts.state, std::move(job), options.async, where);
  if (target.number) project_.iteration = *target.number + 1;
  return target.folder;
}

void RunCheckpoints::write(const ProcessState& state, SaveJob job, bool async, std::source_location where) {
  if (async) {
    const std::string mine = failure_of([&] { writing_ = std::make_unique<BackgroundSave>(std::move(job)); });
    std::string failure;
    try {
      failure = shared_failure(state, mine, where);
    } catch (...) {
      if (writing_) writing_->give_up();  // a peer is gone: nothing more comes from it
      throw;
    }
    if (failure.empty()) return;
    // One has no thread: what the others have begun comes to nothing.
    if (const auto begun = std::move(writing_)) {
      begun->give_up();
      begun->result();
    }
    throw_failure("save_state", failure);
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
    // A collective, so that a process that is gone is missed here, by name, and not by the one that waits for its part.
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

void RunCheckpoints::remove_oldest(int64_t saved) const {
  if (!project_.total_limit) return;
  const auto warn = [](const std::string& failure) {
    if (!failure.empty())
      get_logger("accelerate")
          .warning({.main_process_only = false}, "save_state could not remove an old checkpoint: {}", escaped_lines(failure));
  };
  const fs::path folder = checkpoints_folder();
  std::vector<int64_t> numbers;
  warn(failure_of([&] {
    // What is new is there and whole, or nothing older goes.
    const auto manifest = read_manifest(folder / checkpoint_name(saved));
    const auto defect = manifest ? find_defect(folder / checkpoint_name(saved), *manifest) : "it has no manifest";
    if (!defect.empty()) throw CheckpointError(fmt::format("{} is not complete: {}", checkpoint_name(saved), defect));
    numbers = checkpoint_numbers(folder);
  }));
  std::erase(numbers, saved);
  const auto others = static_cast<size_t>(std::max(1, *project_.total_limit)) - 1;
  // One that cannot be removed, as one that is mounted, does not keep the others.
  for (size_t i = 0; i + others < numbers.size(); ++i)
    warn(failure_of([&] { remove_checkpoint((folder / checkpoint_name(numbers[i])).string()); }));
}

// --- Loading --------------------------------------------------------------------------------------------------------------

namespace {

/// The checkpoints of this machine, from which the newest that can be used is chosen.
struct Candidates {
  fs::path folder;
  std::vector<int64_t> numbers = checkpoint_numbers(folder);
  std::vector<int64_t> refused = {};
  std::string last_defect = {};

  /// Passes over those above `limit`, and those in which something is wrong. FileAccessError when that cannot be known.
  void pass_over(const RunParts& parts, bool verify, int64_t limit, std::unique_ptr<FolderFiles>& files) {
    while (!numbers.empty()) {
      const fs::path candidate = folder / checkpoint_name(numbers.back());
      std::string defect = "another host does not have it";
      if (numbers.back() <= limit) {
        try {
          defect = defect_of(parts, candidate.string(), verify, files);
        } catch (const FileAccessError&) {
          if (!is_gone(candidate)) throw;  // gone: NFS answers with a stale handle
        }
      }
      if (defect.empty()) return;
      if (is_gone(candidate)) {  // its run has newer ones
        numbers = checkpoint_numbers(folder);
        std::erase_if(numbers,
                      [&](int64_t number) { return std::find(refused.begin(), refused.end(), number) != refused.end(); });
        continue;
      }
      get_logger("accelerate")
          .warning({.main_process_only = false}, "load_state skips {}: {}", escaped(candidate.string()), escaped_lines(defect));
      last_defect = fmt::format("{}: {}", candidate.string(), defect);
      refused.push_back(numbers.back());
      numbers.pop_back();
    }
  }
};

}  // namespace

std::optional<int64_t> RunCheckpoints::newest_checkpoint(const RunParts& parts, bool verify, std::unique_ptr<FolderFiles>& files,
                                                         std::source_location where) const {
  constexpr int64_t kNone = -1, kNotAsked = -2;
  std::optional<Candidates> own;
  for (int64_t limit = INT64_MAX;;) {
    const std::string failure = failure_of([&] {
      if (!leads(parts.state)) return;
      if (!own) {
        recover_checkpoints(checkpoints_folder());
        own.emplace(Candidates{.folder = checkpoints_folder()});
      }
      own->pass_over(parts, verify, limit, files);
      if (!own->numbers.empty() || own->refused.empty() || limit != INT64_MAX) return;
      throw CheckpointError(
          fmt::format("no checkpoint in {} can be used, of {}. {}. Repair one, or move them away to start from scratch.",
                      checkpoints_folder(), own->refused.size(), own->last_defect));
    });
    throw_failure("load_state", shared_failure(parts.state, failure, where));
    const int64_t mine = !own ? kNotAsked : own->numbers.empty() ? kNone : own->numbers.back();
    auto all = gather_object(parts.state, std::vector<int64_t>{mine}, where);
    std::erase(all, kNotAsked);
    const auto [lowest, highest] = std::minmax_element(all.begin(), all.end());
    if (*lowest == *highest) return *lowest == kNone ? std::nullopt : std::optional(*lowest);
    if (*lowest == kNone) {
      throw CheckpointError(
          fmt::format("load_state: a host has no complete checkpoint in {}; another one has {}. Copy it "
                      "there, or remove it to start from scratch.",
                      checkpoints_folder(), checkpoint_name(*highest)));
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
    return number ? std::optional((fs::path(checkpoints_folder()) / checkpoint_name(*number)).string()) : std::nullopt;
  }
  const std::string path = expand_user(folder);
  const std::string failure = failure_of([&] {
    if (!leads(parts.state)) return;
    recover_checkpoint(path);
    std::error_code problem;
    const bool is_folder = fs::is_directory(path, problem);
    const auto defect = is_folder ? defect_of(parts, path, verify, files) : problem ? problem.message() : "it is no folder";
    if (!defect.empty()) throw CheckpointError(fmt::format("{} cannot be used: {}", path, defect));
  });
  throw_failure("load_state", shared_failure(parts.state, failure, where));
  return path;
}

bool RunCheckpoints::is_gone_anywhere(const ProcessState& state, const std::string& folder, std::source_location where) const {
  const auto gone = gather_object(state, std::vector<int64_t>{is_gone(folder) ? 1 : 0}, where);
  return std::find(gone.begin(), gone.end(), 1) != gone.end();
}

std::shared_ptr<LoadedRun> RunCheckpoints::read(RunParts& parts, const std::string& folder, const LoadStateOptions& options,
                                                std::source_location where) const {
  const auto models = parts.models;
  for (;;) {
    parts.models = models;
    std::unique_ptr<FolderFiles> files;
    const auto found = find_checkpoint(parts, folder, options.verify, files, where);
    if (!found) return nullptr;
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
      loaded->restart_epoch = options.restart_epoch;
    });
    failure = shared_failure(parts.state, failure, where);
    if (failure.empty()) return loaded;
    // The newest of a live run may be removed, for a newer one, between two looks at it.
    if (!folder.empty() || !is_gone_anywhere(parts.state, *found, where)) throw_failure("load_state", failure);
  }
}

std::optional<std::string> RunCheckpoints::load(RunParts parts, const std::string& folder, const LoadStateOptions& options,
                                                std::source_location where) {
  finish(parts.state, where);
  const RunParts all_parts = parts;  // hooks take models out, which optimizers still have parameters of
  const auto loaded = read(parts, folder, options, where);
  if (!loaded) return std::nullopt;
  const Busy busy("load_state", loaded->folder);
  // What was set is set back unless it could be set everywhere.
  UndoList undo;
  const std::string failure = failure_of([&] {
    restore_small_parts(parts, *loaded, undo);
    check_parameter_names(all_parts, *loaded);
  });
  throw_failure("load_state", shared_failure(parts.state, failure, where));
  undo.forget();
  restore_weights(parts, *loaded);
  python_random_ = loaded->random ? loaded->random->python : nullptr;
  return loaded->folder;
}

}  // namespace accelerate::detail
