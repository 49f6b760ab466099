#pragma once

#include <accelerate/accelerator/project_configuration.h>
#include <accelerate/accelerator/save_state.h>

#include <atomic>
#include <list>
#include <optional>
#include <source_location>
#include <thread>

#include "accelerator/run_files.h"

namespace accelerate::detail {

/// Tells all processes the first failure of any; nothing when there is none.
std::string shared_failure(const ProcessState& state, const std::string& mine, std::source_location where);

/// Where the checkpoints of a run are, and how all processes together write and read them. Every function that takes a place in
/// the source is called by all processes.
class RunCheckpoints {
 public:
  explicit RunCheckpoints(ProjectConfiguration project) : project_(std::move(project)) {}
  /// Waits for what is being written; what went wrong is told on stderr, since nobody can be told otherwise.
  ~RunCheckpoints();
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  /// Returns the folder. Nothing of it is to be seen before all of it is durable.
  std::string save(const RunParts& parts, const std::string& folder, const SaveStateOptions& options, std::source_location where);
  /// Returns the folder, or nothing when there is no complete checkpoint and none was asked for by name.
  std::optional<std::string> load(RunParts parts, const std::string& folder, const LoadStateOptions& options,
                                  std::source_location where);
  /// Until the last save is durable. CheckpointError on all processes when one of them could not write.
  void finish(const ProcessState& state, std::source_location where);

  HookHandle before_saving(SaveStateHook hook);
  HookHandle before_loading(LoadStateHook hook);

 private:
  struct Target {
    std::string folder, aside;
  };
  Target choose_target(const ProcessState& state, const std::string& folder, std::source_location where);
  bool leads(const ProcessState& state) const;
  /// The processes whose files lie in the same folder as this one's.
  std::vector<int> writers_of(const ProcessState& state, std::source_location where) const;
  void remove_oldest() const;
  std::vector<RunFile> take_snapshot(const RunParts& parts, const std::string& folder, const SnapshotOptions& options);

  ProjectConfiguration project_;
  // Shared with the handles that remove hooks.
  std::shared_ptr<std::list<SaveStateHook>> save_hooks_ = std::make_shared<std::list<SaveStateHook>>();
  std::shared_ptr<std::list<LoadStateHook>> load_hooks_ = std::make_shared<std::list<LoadStateHook>>();
  std::shared_ptr<const PythonRandomStates> python_random_;
  std::thread writer_;
  std::atomic<bool> part_written_ = false, done_ = false, give_up_ = false;
  std::string writer_failure_;
  bool writing_ = false;
};

}  // namespace accelerate::detail
