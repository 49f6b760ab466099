#pragma once

#include <accelerate/run_state/project_configuration.h>
#include <accelerate/run_state/save_state.h>

#include <list>
#include <optional>
#include <source_location>

#include "run_state/background_save.h"
#include "run_state/checkpoint_places.h"
#include "run_state/run_files.h"

namespace accelerate::detail {

/// Tells all processes the first failure of any; nothing when there is none.
std::string shared_failure(const ProcessState& state, const std::string& mine, std::source_location where);

/// Where the checkpoints of a run are, and how all processes together write and read them. Every function that takes a place in
/// the source is called by all processes.
class RunCheckpoints {
 public:
  /// Its end waits for what is being written.
  explicit RunCheckpoints(ProjectConfiguration project) : project_(std::move(project)) {}

  /// Returns the folder. Nothing of it is to be seen before all of it is durable.
  std::string save(const RunParts& parts, const std::string& folder, const SaveStateOptions& options, std::source_location where);
  /// Returns the folder, or nothing when there is no complete checkpoint and none was asked for by name.
  std::optional<std::string> load(RunParts parts, const std::string& folder, const LoadStateOptions& options,
                                  std::source_location where);
  /// Until the last save is durable. CheckpointError on all processes when one of them could not write.
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
  /// Decides on the name. The same on all processes.
  Target choose_target(const ProcessState& state, const std::string& folder, std::source_location where);
  bool leads(const ProcessState& state) const;
  /// The processes whose files lie in the same folder as this one's.
  std::vector<int> writers_of(const ProcessState& state, std::source_location where) const;
  void write(const ProcessState& state, SaveJob job, bool async, std::source_location where);
  /// Keeps other runs away from numbered checkpoints from now on, and puts right what one that ended left half done.
  void own_project();
  /// Those above the limit, but for the one that was just saved.
  void remove_oldest(int64_t saved) const;
  RunSnapshot take_snapshot(const RunParts& parts, const std::string& folder, const SnapshotOptions& options);

  std::string checkpoints_folder() const;
  /// What load_state is given, checked; nothing when none was asked for by name and there is none. What was read to check it is
  /// kept in `files`, with the process that did.
  std::optional<std::string> find_checkpoint(const RunParts& parts, const std::string& folder, bool verify,
                                             std::unique_ptr<FolderFiles>& files, std::source_location where) const;
  /// The number of the newest one that is complete on every machine that has its own. CheckpointError when there are some and
  /// none can be used.
  std::optional<int64_t> newest_checkpoint(const RunParts& parts, bool verify, std::unique_ptr<FolderFiles>& files,
                                           std::source_location where) const;

  /// Reads what load_state is given, after the load hooks, which may take models out of `parts`. Null when there is none.
  std::shared_ptr<LoadedRun> read(RunParts& parts, const std::string& folder, const LoadStateOptions& options,
                                  std::source_location where) const;
  bool is_gone_anywhere(const ProcessState& state, const std::string& folder, std::source_location where) const;

  ProjectConfiguration project_;
  // Shared with the handles that remove hooks.
  std::shared_ptr<std::list<SaveStateHook>> save_hooks_ = std::make_shared<std::list<SaveStateHook>>();
  std::shared_ptr<std::list<LoadStateHook>> load_hooks_ = std::make_shared<std::list<LoadStateHook>>();
  std::shared_ptr<const PythonRandomStates> python_random_;
  HostCopies copies_;
  std::optional<SaveLock> project_lock_;
  std::unique_ptr<BackgroundSave> writing_;  // the last: it uses the others
};

}  // namespace accelerate::detail
