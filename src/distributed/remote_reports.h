#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "distributed/hang_diagnosis.h"
#include "rendezvous/c10d_compat.h"

namespace accelerate::detail {

/// What is known of some ranks, by their number: what hosts tell each other.
using NumberedReports = std::vector<std::pair<int64_t, RankReport>>;

std::string pack(const NumberedReports& reports);
/// Bytes that `pack` did not write give fewer reports or none: a report with holes is better than no diagnosis.
NumberedReports unpack(std::string_view bytes);

/// How detectives of different hosts ask each other: a rank that wants to know increments a number in the store; a thread of
/// every rank looks at it once a second and answers with what it sees on its own host. A store whose host is stopped does not
/// answer, so that thread can be left behind, and callers come with a limit of their own (bounded.h).
class RemoteReports {
 public:
  using Look = std::function<NumberedReports()>;
  using Hear = std::function<void(const std::string&)>;

  /// Starts to answer. `look` reports about this rank's host, `hear` is given the text that was settled elsewhere. Both are
  /// called by another thread and may outlive the caller. `first`: the first rank of this one's host.
  static std::shared_ptr<RemoteReports> start(c10::intrusive_ptr<c10d::Store> store, int rank, int first, Look look, Hear hear);
  /// Answers no more.
  void stop();

  // The following throw when the store cannot be reached. It is not tried again then.

  /// Asks, and collects the answers about `ranks` as far as they come within `patience`.
  NumberedReports ask(const std::vector<int64_t>& ranks, std::chrono::milliseconds patience);
  /// The first text that anybody of the group proposed.
  std::string settle(const std::string& text);
  /// That text, if there is one already.
  std::optional<std::string> settled();
  /// For the rank that serves the store: returns when on the host of each of `ranks`, its first, somebody has settled, or
  /// `patience` is over, so that they can.
  void serve(const std::vector<int64_t>& ranks, std::chrono::milliseconds patience);

  /// True when the store could not be reached.
  bool lost() const { return lost_; }

 private:
  RemoteReports(c10::intrusive_ptr<c10d::Store> store, int rank, int first, Look look, Hear hear)
      : store_(std::move(store)), rank_(rank), first_(first), look_(std::move(look)), hear_(std::move(hear)) {}
  template <class Action>
  auto with_store(Action action);
  void answer_questions();
  void answer(int64_t question);
  void listen();
  void note_settled(c10d::Store& store) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, first_;
  const Look look_;
  const Hear hear_;
  std::atomic<bool> lost_ = false;
  bool heard_ = false;  // of the answering thread alone
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool stopped_ = false;
};

}  // namespace accelerate::detail
