#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "distributed/peer_process.h"
#include "distributed/remote_reports.h"

namespace accelerate::detail {

class Detective;

/// What a detective knows when its group begins.
struct DetectiveParts {
  int rank = 0;
  /// Of every rank, this one's included.
  std::vector<ProcessCard> cards = {};
  /// This rank's own.
  std::shared_ptr<Logbook> logbook = {};
  /// Through which hosts ask each other; null for a group without one.
  c10::intrusive_ptr<c10d::Store> store = {};
  /// Rank 0 serves that store: it goes with it.
  bool first_serves_store = false;
  /// After how long a waiting call is reported; zero: never.
  std::chrono::milliseconds threshold{};
  RankNames names = {};
  /// Of the group that this one was split from, which knows who serves the store; or null.
  std::shared_ptr<const Detective> parent = {};
};

/// Knows what every rank of a group does, and tells it when something goes wrong. Every rank writes its calls into memory that
/// the others of its host read, also after its death. Nothing is sent until somebody asks: a watcher whose rank has waited
/// for too long, or a rank whose call has failed. Then the hosts share reports through the store.
class Detective {
 public:
  explicit Detective(DetectiveParts parts);
  ~Detective();
  Detective(const Detective&) = delete;
  Detective& operator=(const Detective&) = delete;

  /// The report of a call that failed because of `reason`: the same on every rank that asks. `mismatch`: the number of a call
  /// that was found to differ, or 0.
  std::string explain(const std::string& reason, int64_t mismatch = 0);

  /// True when a rank of this host has reached call `number`, as this one has, and makes another call of it. Of two ranks that
  /// ask before they send, at least one hears of it.
  bool is_contradicted(int64_t number) const;
  /// Returns when no rank of this host is so far behind call `number` that it could no longer compare what this one did.
  /// runtime_error when that takes longer than `patience`, or one of them has left.
  void let_others_catch_up(int64_t number, std::chrono::milliseconds patience) const;
  /// True when this rank can read the call log of all others.
  bool sees_everyone() const;

  /// What other hosts may read about this rank when it has left.
  std::string last_report() const;

  /// True when the group is lost: a rank of this host is dead, or the report is out.
  bool is_lost() const;
  /// The latter alone, which costs nothing to ask.
  bool is_told() const;
  /// True when the store has gone with rank 0 of the run, on this host.
  bool store_is_lost() const;
  /// True when `rank` is of this host and has left the group or is dead.
  bool has_left(int rank) const;
  /// True when all ranks are of this host and each but this one has left the group or is dead.
  bool nobody_is_left() const;
  /// The first rank of this host.
  int first_here() const;

 private:
  struct Machine;

  std::vector<RankReport> look_around() const;
  std::vector<RankReport> investigate(const std::string& reason, int64_t mismatch) const;
  void let_culprits_end(const std::vector<RankReport>& reports) const;
  std::string tell(const std::string& reason, int64_t mismatch) const;
  std::optional<std::string> diagnosis_of_others() const;
  std::string settle(const std::vector<RankReport>& reports, int64_t mismatch) const;
  bool someone_died() const;
  void watch();
  void look_at_own_call();
  void look_at_own_message(const RankEntry& entry);
  bool speaks_for_machine(const Call& call) const;
  void warn(const Call& call);
  void look_for_news(const Call& call);
  void say_or_tell(const Call& call, const std::vector<RankReport>& reports, bool again);

  const DetectiveParts parts_;
  const std::shared_ptr<const Machine> machine_;
  std::shared_ptr<RemoteReports> remote_;

  // Of the watcher alone.
  Call warned_ = {};
  /// The send or receive that has been warned of; none when it has not begun.
  Activity warned_message_ = {};
  /// What has been warned of, and what there is to tell since when, should it last.
  std::string gist_, news_;
  std::chrono::steady_clock::time_point news_since_ = {}, next_look_ = {};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread watcher_;
};

}  // namespace accelerate::detail
