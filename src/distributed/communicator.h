#pragma once

#include <accelerate/distributed/process_state.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <source_location>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "distributed/detective.h"
#include "distributed/watchful_group.h"
#include "rendezvous/c10d_compat.h"

namespace accelerate {

/// What a group is made of.
struct GroupParts {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  /// The backend for CUDA tensors where it is not the one for CPU tensors: it wants to be told of the end.
  c10::intrusive_ptr<c10d::Backend> device_backend;
  /// For signals between processes; may be null for a group of the application's own.
  c10::intrusive_ptr<c10d::Store> store;
  /// False for a group of the application's own, which is left alone at the end.
  bool owned = true;
  /// Rank 0 serves the store, so it ends last.
  bool first_serves_store = false;
  std::chrono::milliseconds timeout{};
};

/// While it lives, this thread runs no collective on the host: `refuse` is called instead, and throws. What
/// collectives on a device throw meanwhile is the caller's own matter, and the group stays usable.
class NoHostCollectives {
 public:
  explicit NoHostCollectives(void (*refuse)());
  ~NoHostCollectives();
  NoHostCollectives(const NoHostCollectives&) = delete;
  NoHostCollectives& operator=(const NoHostCollectives&) = delete;

  /// Whether one lives in this thread.
  static bool refused();

 private:
  void (*before_)();
};

/// The group cannot be used any more, because of a call that differs (by its number) or for a reason that is known already.
struct GroupLost : std::runtime_error {
  explicit GroupLost(int64_t differing = 0) : std::runtime_error("The group is lost."), mismatch(differing) {}
  int64_t mismatch;
};

/// What the user's program has given to a collective, where that is not what is sent. It must agree on all ranks, and is compared
/// before anything is sent, between hosts too.
struct Given {
  const at::Tensor* tensor = nullptr;
  /// "by sum", "from 0".
  std::string how = {};
  /// See CallNote.
  const Nesting* nesting = nullptr;
  std::optional<size_t> leaf = {};
};

/// The collectives of one group: c10d underneath, errors that tell the story above. Tensors must be contiguous and dense;
/// collectives.cpp sees to that. Every call names itself and its caller.
class Communicator {
 public:
  explicit Communicator(GroupParts parts);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::string backend_name(at::DeviceType device);

  /// From now on calls are written down, and one that waits longer than `threshold` (zero: none) is told. Every rank calls it.
  /// `machine` is the same text on every process of a machine.
  void watch(const std::string& machine, std::chrono::milliseconds threshold, std::source_location where);

  /// Debug mode: tells the others what this rank is about to do. DistributedError, on all of them and with a line for each, when
  /// it is not the same everywhere; nothing else has been sent then, and the group stays usable.
  void agree(const char* call, const std::string& what, std::source_location where);

  /// A barrier, also for a collective of nothing.
  void barrier(const char* call, std::source_location where, const Given& given = {});
  // Those that the library makes for itself are given nothing: what is sent is compared, on each host.
  /// `output` holds the `input` of each rank, one after the other.
  void all_gather(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where,
                  const Given* given = nullptr);
  void all_reduce(at::Tensor& tensor, c10d::ReduceOp::RedOpType operation, const char* call, std::source_location where,
                  const Given* given = nullptr);
  void broadcast(at::Tensor& tensor, int from, const char* call, std::source_location where, const Given* given = nullptr);
  /// Bytes of any length from each rank, in the order of ranks.
  std::vector<std::string> all_gather_bytes(std::string_view bytes, const char* call, std::source_location where);
  /// The bytes of `from`, on every rank.
  std::string broadcast_bytes(std::string_view bytes, int from, const char* call, std::source_location where);

  /// Runs `action`, in which collectives go on in the background: a pass over a model. When one of them fails, that is told as
  /// `call` at `where`; what else `action` throws comes out as it is. Written down from when the rank has nothing to do but to
  /// wait.
  void during(const char* call, std::source_location where, const std::function<void()>& action);
  /// Gives calls the same numbers on all ranks again, after some of them have made more than others.
  void align_calls(const char* call, std::source_location where);
  /// The group as something that starts collectives in the background sees it.
  c10::intrusive_ptr<WatchfulGroup> background_group();

  // --- For WatchfulGroup -------------------------------------------------------------------------------------------------
  /// Starts a collective of CPU tensors.
  c10::intrusive_ptr<c10d::Work> start(const std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>& action);
  void wait_for_work(c10d::Work& work);
  c10::intrusive_ptr<c10::ivalue::Future> watched(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  /// Before a collective in the background: writes down, for the first of a pass, which call this rank is in, and raises when
  /// another rank makes another call.
  void announce_pass();
  /// From now on this rank only waits, until the end of what `during` runs.
  void begin_waiting();
  /// The same as soon as the backward pass that runs in this thread has calculated everything. One that `during` does not run is
  /// told as `backward`, without a place. `how` must agree between ranks.
  void expect_waiting(const char* how = "");

  /// The number of the next scope: the same on every rank, since all enter scopes in the same order. UsageError, naming
  /// `call`, when there is no store to signal through.
  int next_scope(const char* call);
  /// Sets a key that others wait for. Never throws.
  void signal(const std::string& key, const std::string& value = "1") noexcept;
  /// Waits for a key that rank `from` sets.
  void wait_for(const std::string& key, int from, const char* call, std::source_location where);
  /// Writes down that this rank has passed a scope that it need not wait for.
  void pass(const char* call, std::source_location where);
  /// The first rank of this machine, as far as it is known.
  int first_here() const { return detective_ ? detective_->first_here() : 0; }

 private:
  /// Calls `action` when no rank of this host makes another call. What it throws is told as `call`, now and by every later call.
  template <class Action>
  void guarded(const CallNote& call, Action&& action);
  /// Starts a collective on the backend of `device` and waits for its end. `between_hosts`: calls are compared there too.
  template <class Start>
  void run_collective(at::DeviceType device, CallNote call, bool between_hosts, Start&& start);
  /// GroupLost when another rank of this host makes another call of that number. Waits for one that is too far behind to compare.
  void compare_on_host(int64_t number, const CallNote& call) const;
  /// The same for all ranks, by a message.
  void compare_between_hosts(int64_t number);
  /// The marks of all ranks. Throws, on all of them and with nothing sent, where a backend of the application's own cannot.
  std::vector<uint64_t> gather_marks(uint64_t mine);
  /// GroupLost when the story of its end has been told.
  void check_not_lost() const;
  /// For who looks again and again: not every look is thorough.
  bool is_lost(int look) const;
  void gather_bytes(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where);
  void send_bytes(at::Tensor& tensor, int from, const char* call, std::source_location where);
  void wait_watchfully(c10d::Work& work);
  CollectiveWatch& collective_watch();
  void check_usable(const char* call, std::source_location where);
  void end_group();
  void serve_until_all_have_ended() noexcept;
  /// `reason`: the backend's words, or nothing. `mismatch`: the number of a call that differs, or 0.
  [[noreturn]] void fail(const char* call, std::source_location where, const std::string& reason, int64_t mismatch = 0);
  /// The same for a collective in the background.
  [[noreturn]] void fail_pass(const std::string& reason);
  void end_pass();
  c10d::Backend& backend_for(at::DeviceType device);

  GroupParts parts_;
  const int rank_, size_;
  c10::intrusive_ptr<c10d::Backend> cpu_backend_;
  const int exceptions_before_ = std::uncaught_exceptions();
  const pid_t process_ = ::getpid();
  std::atomic<int> scopes_ = 0;
  std::atomic<bool> abandoned_ = false;  // a collective that cannot end
  std::atomic<bool> failed_ = false;
  std::mutex story_mutex_;
  std::string story_;
  std::shared_ptr<Logbook> logbook_;
  std::shared_ptr<Detective> detective_;  // shared with a thread that may be left behind
  bool hosts_compare_ = false;            // some rank cannot read the notes of another, and the backend can compare them

  /// What `during` runs now, or a backward pass that it does not run.
  struct Pass {
    const char* call = "backward";
    std::source_location where = {};
    const char* how = "";
    int64_t number = 0;
    bool waiting = false;
    bool expected = false;
    /// Nobody ends it but the pass itself.
    bool unguided = false;
  };
  std::mutex pass_mutex_;
  std::optional<Pass> pass_;
  std::unique_ptr<CollectiveWatch> collective_watch_;
};

}  // namespace accelerate
