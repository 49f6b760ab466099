#include "run_state/checkpoint_manager.h"

#include <accelerate/checkpoint/module_state.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>
#include <accelerate/parallel/model.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/host_group.h"
#include "checkpoint/shared_failure.h"
#include "checkpoint/staged_folder.h"
#include "distributed/busy.h"
#include "parallel/replica_check.h"
#include "run_state/async_save.h"
#include "run_state/checkpoint_cleanup.h"
#include "run_state/checkpoint_finder.h"
#include "run_state/checkpoint_paths.h"
#include "run_state/checkpoint_reader.h"
#include "run_state/file_broadcast.h"
#include "run_state/parameter_names.h"
#include "run_state/restore.h"
#include "run_state/run_parts.h"
#include "run_state/sharded_snapshot.h"

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

/// Those of all ranks.
std::vector<PartReport> gather_reports(const ProcessState& state, const PartReport& mine, std::source_location where) {
  std::vector<PartReport> reports;
  for (const auto& text : gather_object(state, std::vector<std::string>{report_text(mine)}, where))
    reports.push_back(parse_report(text));
  return reports;
}

bool is_gone_anywhere(const ProcessState& state, const std::string& folder, std::source_location where) {
  const auto gone = gather_object(state, std::vector<int64_t>{is_gone(folder) ? 1 : 0}, where);
  return std::find(gone.begin(), gone.end(), 1) != gone.end();
}

}  // namespace

CheckpointManager::CheckpointManager(ProjectConfiguration project) : project_(std::move(project)) {}

CheckpointManager::~CheckpointManager() = default;

HookHandle CheckpointManager::before_saving(SaveStateHook hook) { return keep_hook(save_hooks_, std::move(hook)); }

HookHandle CheckpointManager::before_loading(LoadStateHook hook) { return keep_hook(load_hooks_, std::move(hook)); }

bool CheckpointManager::leads(const ProcessState& state) const {
  return project_.save_on_each_node ? state.is_local_main_process() : state.is_main_process();
}

std::string CheckpointManager::checkpoints_folder() const {
  return (fs::path(expand_user(project_.project_dir)) / kCheckpoints).string();
}

void CheckpointManager::check_naming(const char* call) const {
  if (project_.automatic_checkpoint_naming && !project_.project_dir.empty()) return;
  throw UsageError(fmt::format(
      "{} was given no folder. Give one, or set project_dir and automatic_checkpoint_naming in ProjectConfiguration.", call));
}

// --- Saving ---------------------------------------------------------------------------------------------------------------

CheckpointManager::Target CheckpointManager::choose_target(const ProcessState& state, const std::string& folder,
                                                           std::source_location where) {
  if (!folder.empty()) {
    const fs::path target = expand_user(folder);
    return {.folder = (target.has_filename() ? target : target.parent_path()).string(), .number = {}};
  }
  check_naming("save_state");
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
  // The highest: hosts that keep their own checkpoints may have been stopped between two of them.
  for (const int64_t other : gather_object(state, std::vector<int64_t>{number}, where)) number = std::max(number, other);
  return {.folder = (fs::path(checkpoints_folder()) / checkpoint_name(number)).string(), .number = number};
}

void CheckpointManager::own_project() {
  if (project_lock_) return;
  const auto project = project_paths(checkpoints_folder());
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

void CheckpointManager::release() {
  copies_.release();
  project_lock_.reset();
}

std::vector<int> CheckpointManager::leaders(const ProcessState& state, std::source_location where) const {
  if (project_.save_on_each_node) return first_ranks_of_hosts(state, where);
  return std::vector<int>(static_cast<size_t>(state.num_processes()), 0);
}

SavePart CheckpointManager::stage(const ProcessState& state, const Target& target, SavePaths& paths, std::source_location where) {
  SavePart part{.rank = state.process_index()};
  const std::string failure = failure_of([&] {
    paths = target.number ? numbered_paths(target.folder) : own_paths(target.folder);
    part.staging = paths.staging.string();
    if (!leads(state)) return;
    if (target.number) own_project();
    part.staged = std::make_shared<StagedFolder>(paths.target, paths.staging, paths.lock);
  });
  throw_failure("save_state", shared_failure(state, failure, where));
  part.leaders = leaders(state, where);
  return part;
}

RunSnapshot CheckpointManager::snapshot(const RunParts& parts, const std::string& staging, const SaveStateOptions& options) {
  std::vector<TensorDict> weights = model_weights(parts, leads(parts.state));
  const auto optimizers = optimizer_states(parts, leads(parts.state));
  for (const auto& hook : *save_hooks_) hook(modules_of(parts), weights, staging);
  return take_snapshot(parts, weights, optimizers, python_random_,
                       {options.safe_serialization, options.async ? &copies_ : nullptr, leads(parts.state)});
}

std::string CheckpointManager::save(const RunParts& parts, const std::string& folder, const SaveStateOptions& options,
                                    std::source_location where) {
  finish(parts.state, where);
  if (options.check_replicas) throw_failure("save_state", replicas_that_differ(parts.state, parts.models, "save_state", where));
  const Target target = choose_target(parts.state, folder, where);
  const Busy busy("save_state", target.folder);
  SavePaths paths;
  SavePart part = stage(parts.state, target, paths, where);
  std::string failure = failure_of([&] {
    // Any of them may turn out to be the one that commits.
    if (options.async && !part.staged) part.staged = StagedFolder::join(paths.target, paths.staging, paths.lock);
    part.snapshot = snapshot(parts, part.staging, options);
  });
  failure = shared_failure(parts.state, failure, where);
  const bool has_shards =
      std::any_of(parts.models.begin(), parts.models.end(), [](const auto& model) { return saves_shards(*model); });
  if (failure.empty() && has_shards) failure = plan_shards(parts.state, part, where);
  if (!failure.empty() && options.async) {  // all release the folder before the next save may create it again
    part.staged.reset();
    shared_failure(parts.state, "", where);
  }
  throw_failure("save_state", failure);
  if (target.number) {
    part.on_commit = [checkpoints = checkpoints_folder(), number = *target.number, limit = project_.total_limit] {
      prune_checkpoints(checkpoints, number, limit);
    };
  }
  options.async ? save_async(parts.state, std::move(part), where) : save_now(parts.state, std::move(part), where);
  if (target.number) project_.iteration = *target.number + 1;
  return target.folder;
}

std::string CheckpointManager::plan_shards(const ProcessState& state, SavePart& part, std::source_location where) {
  const std::string failure = failure_of([&] {
    if (std::any_of(part.leaders.begin(), part.leaders.end(), [](int leader) { return leader != 0; }))
      throw UsageError(
          "save_on_each_node is set, but the shards of a model are on all hosts. Save them to a folder that the hosts share, or "
          "set state_dict_type of FsdpOptions to full.");
    join_folders(part.snapshot, state, leads(state), where);
  });
  return shared_failure(state, failure, where);
}

void CheckpointManager::save_now(const ProcessState& state, SavePart part, std::source_location where) {
  const auto reports = gather_reports(state, write_part(part.snapshot, part.staging, part.rank), where);
  throw_failure("save_state", first_failure(reports));
  throw_failure("save_state", shared_failure(state, part.staged ? commit_part(part, reports) : "", where));
}

void CheckpointManager::save_async(const ProcessState& state, SavePart part, std::source_location where) {
  const auto made = leads(state) ? part.staged : nullptr;
  const std::string mine = failure_of([&] { saving_ = std::make_unique<AsyncSave>(std::move(part)); });
  std::string failure;
  try {
    failure = shared_failure(state, mine, where);
    if (failure.empty()) return;
    // One has no thread. The folder is removed when nobody writes into it any more.
    if (saving_) saving_->outcome();
    shared_failure(state, "", where);
  } catch (...) {
    if (saving_) saving_->discard();  // a peer is gone: nothing more comes from it
    throw;
  }
  if (const auto begun = std::move(saving_)) begun->discard();
  throw_failure("save_state", failure);
}

void CheckpointManager::finish(const ProcessState& state, std::source_location where) {
  if (!saving_) return;
  const auto saving = std::move(saving_);
  std::vector<PartReport> reports;
  std::vector<std::string> outcomes;
  try {
    // A collective, so that a rank that is gone is missed here, by name. When it returns, every part is written.
    reports = gather_reports(state, saving->written(), where);
    outcomes = gather_object(state, std::vector<std::string>{saving->outcome()}, where);
  } catch (...) {
    saving->discard();
    throw;
  }
  std::string failure = first_failure(reports);
  for (size_t i = 0; i < outcomes.size() && failure.empty(); ++i) {
    if (outcomes[i] != kUndecided && outcomes[i] != kCommitted) failure = fmt::format("rank {}: {}", i, outcomes[i]);
  }
  if (!saving->all_decided(outcomes)) {
    if (!failure.empty()) saving->discard();
    if (failure.empty()) failure = shared_failure(state, saving->commit_undecided(outcomes, reports), where);
  }
  throw_failure("save_state", failure);
}

// --- Loading --------------------------------------------------------------------------------------------------------------

std::shared_ptr<LoadedRun> CheckpointManager::read(RunParts& parts, const std::string& folder, const LoadStateOptions& options,
                                                   std::source_location where) const {
  if (folder.empty()) check_naming("load_state");
  const auto models = parts.models;
  parts.all_models = models;
  for (;;) {
    parts.models = models;
    CheckpointFinder finder(parts, leads(parts.state), options.verify, where);
    std::string found = expand_user(folder);
    if (folder.empty()) {
      const auto number = finder.newest(checkpoints_folder());
      if (!number) return nullptr;
      found = (fs::path(checkpoints_folder()) / checkpoint_name(*number)).string();
    } else {
      finder.check(found);
    }
    auto files = finder.take_files();
    if (!files || files->folder() != found) files = std::make_unique<FolderFiles>(found);
    const Busy busy("load_state", found);
    std::shared_ptr<LoadedRun> loaded;
    const auto read_all = [&] {
      auto modules = modules_of(parts);
      for (const auto& hook : *load_hooks_) hook(modules, found);
      std::erase_if(parts.models, [&](const auto& model) {
        return std::find(modules.begin(), modules.end(), &model->module()) == modules.end();
      });
      loaded = read_checkpoint(parts, *files);
      loaded->restart_epoch = options.restart_epoch;
    };
    std::string failure = options.broadcast_from_rank0 ? broadcast_files(parts, *files, where) : "";
    if (failure.empty()) failure = shared_failure(parts.state, failure_of(read_all), where);
    if (failure.empty()) return loaded;
    // The newest of a live run may be removed, for a newer one, between two looks at it.
    if (!folder.empty() || !is_gone_anywhere(parts.state, found, where)) throw_failure("load_state", failure);
  }
}

std::optional<std::string> CheckpointManager::load(RunParts parts, const std::string& folder, const LoadStateOptions& options,
                                                   std::source_location where) {
  finish(parts.state, where);
  const RunParts all_parts = parts;  // hooks take models out, which optimizers still have parameters of
  const auto loaded = read(parts, folder, options, where);
  if (!loaded) return std::nullopt;
  const Busy busy("load_state", loaded->folder);
  // What was restored is rolled back unless it could be restored on all ranks.
  Rollback rollback;
  const std::string failure = failure_of([&] {
    restore_states(parts, *loaded, rollback);
    check_parameter_names(all_parts, *loaded);
  });
  throw_failure("load_state", shared_failure(parts.state, failure, where));
  rollback.commit();
  restore_weights(parts, *loaded);
  python_random_ = loaded->random ? loaded->random->python : nullptr;
  return loaded->folder;
}

}  // namespace accelerate::detail
