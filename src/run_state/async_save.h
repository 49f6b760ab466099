#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "run_state/part_writer.h"
#include "run_state/staged_reports.h"

namespace accelerate::detail {
class StagedFolder;
}

namespace accelerate::detail {

/// What one rank does for a checkpoint.
struct SavePart {
  RunSnapshot snapshot = {};
  /// Where it is written before it is committed.
  std::string staging = {};
  /// The same, with whoever may commit it: the rank that made it, and in an asynchronous save all that write into it.
  std::shared_ptr<StagedFolder> staged = {};
  int rank = 0;
  /// Of each rank the one that made the folder it writes into.
  std::vector<int> leaders = {};
  /// Called by the rank that has committed the checkpoint. It does not throw.
  std::function<void()> on_commit = {};

  int leader_of(int other) const { return leaders[static_cast<size_t>(other)]; }
  /// The ranks that write into this one's folder.
  std::vector<int> writers() const;
};

/// Commits, from the reports of all ranks. Returns what went wrong, or nothing.
std::string commit_part(const SavePart& part, std::vector<PartReport> reports);

/// What a rank knows of a checkpoint when its thread has ended.
inline constexpr char kUndecided[] = "", kCommitted[] = "committed";

/// A thread that copies and writes this rank's part of a checkpoint while the run continues. The rank that is the last to have
/// written its part commits the checkpoint: no rank waits for another.
class AsyncSave {
 public:
  explicit AsyncSave(SavePart part);
  /// Finishes this rank's own work and waits for nobody else's: the checkpoint of a run that ends is committed by the rank that
  /// ends last. A failure that nobody asked for is printed to stderr.
  ~AsyncSave();
  AsyncSave(const AsyncSave&) = delete;
  AsyncSave& operator=(const AsyncSave&) = delete;

  /// Waits until this rank's files are written.
  const PartReport& written();
  /// Waits for the thread, and releases the folder unless this rank made it. kCommitted when this rank has committed,
  /// kUndecided when it was not the last to write, or else why the checkpoint was not committed.
  const std::string& outcome();
  /// Whether for every staging folder some rank has committed or failed, by the outcomes of all ranks.
  bool all_decided(const std::vector<std::string>& outcomes) const;
  /// Commits where none has, on the rank that made the folder: a network file system may have shown a report late. Returns what
  /// went wrong, or nothing.
  std::string commit_undecided(const std::vector<std::string>& outcomes, const std::vector<PartReport>& reports);
  /// A peer is gone, or has failed: nothing is committed unless some rank is doing so already.
  void discard();

 private:
  bool leads() const;
  bool is_decided(const std::vector<std::string>& outcomes, int leader) const;
  void work();
  void decide();

  SavePart part_;
  StagedReports reports_;
  PartReport report_;
  std::atomic<bool> written_ = false;
  bool told_ = false;
  // Written by the thread.
  std::string outcome_ = kUndecided, problem_;
  std::thread thread_;
};

}  // namespace accelerate::detail
