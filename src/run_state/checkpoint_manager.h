#pragma once

#include <accelerate/run_state/project_configuration.h>
#include <accelerate/run_state/save_state.h>

#include <list>
#include <memory>
#include <optional>
#include <source_location>

#include "checkpoint/host_copies.h"
#include "checkpoint/save_lock.h"

namespace accelerate {
class ProcessState;
}

namespace accelerate::detail {
struct PythonRandomStates;
}  // namespace accelerate::detail

namespace accelerate::detail {

class AsyncSave;
struct LoadedRun;
struct RunParts;
struct RunSnapshot;
struct SavePart;
struct SavePaths;

/// Saves and restores the state of a run: which folder and number, how many are kept, which locks are held, and in which order
/// the ranks snapshot, write, commit, read and restore. Every function that takes a place in the source is called by all ranks.
class CheckpointManager {
 public:
  explicit CheckpointManager(ProjectConfiguration project);
  /// Finishes this rank's part of an asynchronous save. It waits for no other rank: see AsyncSave.
  ~CheckpointManager();

  /// Returns the folder. Nothing of it is visible before all of it is durable.
  std::string save(const RunParts& parts, const std::string& folder, const SaveStateOptions& options, std::source_location where);
  /// Returns the folder, or nothing when there is no complete checkpoint and none was asked for by name.
  std::optional<std::string> load(RunParts parts, const std::string& folder, const LoadStateOptions& options,
                                  std::source_location where);
  /// Returns when the last save is durable. CheckpointError on all ranks when one of them could not write.
  void finish(const ProcessState& state, std::source_location where);
  /// Gives back the memory that is kept for the next asynchronous save, and lets other runs save here.
  void release();

  HookHandle before_saving(SaveStateHook hook);
  HookHandle before_loading(LoadStateHook hook);

 private:
  /// Where a checkpoint is going to be.
  struct Target {
    /// As its user names it.
    std::string folder;
    /// The number in its name; nothing when the user gave it.
    std::optional<int64_t> number;
  };
  /// Decides on the name. The same on all ranks.
  Target choose_target(const ProcessState& state, const std::string& folder, std::source_location where);
  /// Whether this rank makes the staging folder, and writes what is the same on all.
  bool leads(const ProcessState& state) const;
  /// Of each rank the one that leads where it writes.
  std::vector<int> leaders(const ProcessState& state, std::source_location where) const;
  /// Makes the staging folder, on the rank that leads.
  SavePart stage(const ProcessState& state, const Target& target, SavePaths& paths, std::source_location where);
  /// The ranks join what they are about to write of sharded models. Returns what went wrong on any of them.
  std::string plan_shards(const ProcessState& state, SavePart& part, std::source_location where);
  void save_now(const ProcessState& state, SavePart part, std::source_location where);
  void save_async(const ProcessState& state, SavePart part, std::source_location where);
  /// Keeps other runs away from numbered checkpoints from now on, and puts right what one that ended left half done.
  void own_project();
  RunSnapshot snapshot(const RunParts& parts, const std::string& staging, const SaveStateOptions& options);

  std::string checkpoints_folder() const;
  void check_naming(const char* call) const;
  /// Reads what load_state is given, after the load hooks, which may take models out of `parts`. Null when there is none.
  std::shared_ptr<LoadedRun> read(RunParts& parts, const std::string& folder, const LoadStateOptions& options,
                                  std::source_location where) const;

  ProjectConfiguration project_;
  // Shared with the handles that remove hooks.
  std::shared_ptr<std::list<SaveStateHook>> save_hooks_ = std::make_shared<std::list<SaveStateHook>>();
  std::shared_ptr<std::list<LoadStateHook>> load_hooks_ = std::make_shared<std::list<LoadStateHook>>();
  std::shared_ptr<const PythonRandomStates> python_random_;
  HostCopies copies_;
  std::optional<SaveLock> project_lock_;
  std::unique_ptr<AsyncSave> saving_;  // the last: it uses the others
};

}  // namespace accelerate::detail
