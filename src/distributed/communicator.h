#pragma once

#include <accelerate/distributed/process_state.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <source_location>
#include <string_view>
#include <vector>

#include "distributed/c10d_compat.h"
#include "distributed/detective.h"
#include "distributed/watchful_group.h"

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

/// While it lives, this thread exchanges nothing by way of the host: `refuse` is called in its place, and throws. What exchanges
/// on a device throw meanwhile is the caller's own matter, and the group stays usable.
class NoHostExchanges {
 public:
  explicit NoHostExchanges(void (*refuse)());
  ~NoHostExchanges();
  NoHostExchanges(const NoHostExchanges&) = delete;
  NoHostExchanges& operator=(const NoHostExchanges&) = delete;

 private:
  void (*before_)();
};

/// The exchanges of one group: c10d underneath, errors that tell the story above. Tensors must be contiguous and dense;
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
  /// it is not the same everywhere; nothing else has been exchanged then, and the group stays usable.
  void agree(const char* call, const std::string& what, std::source_location where);

  void barrier(std::source_location where);
  /// `output` holds the `input` of each rank, one after the other.
  void all_gather(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where);
  void all_reduce(at::Tensor& tensor, c10d::ReduceOp::RedOpType operation, const char* call, std::source_location where);
  void broadcast(at::Tensor& tensor, int from, const char* call, std::source_location where);
  /// Bytes of any length from each rank, in the order of ranks.
  std::vector<std::string> all_gather_bytes(std::string_view bytes, const char* call, std::source_location where);
  /// The bytes of `from`, on every rank.
  std::string broadcast_bytes(std::string_view bytes, int from, const char* call, std::source_location where);

  /// Runs `action`, in which exchanges go on in the background: a pass over a model. When one of them fails, that is told as
  /// `call` at `where`; what else `action` throws comes out as it is. Written down from when the rank has nothing to do but to
  /// wait.
  void during(const char* call, std::source_location where, const std::function<void()>& action);
  /// Gives calls the same numbers on all ranks again, after some of them have made more than others.
  void align_calls(const char* call, std::source_location where);
  /// The group as something that starts exchanges in the background sees it.
  c10::intrusive_ptr<WatchfulGroup> background_group();

  // --- For WatchfulGroup -------------------------------------------------------------------------------------------------
  /// Starts an exchange of CPU tensors.
  c10::intrusive_ptr<c10d::Work> start(const std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>& action);
  void wait_for_work(c10d::Work& work);
  c10::intrusive_ptr<c10::ivalue::Future> watched(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  /// From now on this rank only waits, until the end of what `during` runs.
  void begin_waiting();
  /// The same as soon as the backward pass that runs in this thread has calculated everything. One that `during` does not run is
  /// told as `backward`, without a place.
  void expect_waiting();

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
  /// Calls `action`. What it throws is told as `call` at `where`, now and by every later call. `exchanged` may be null.
  template <class Action>
  void guarded(const char* call, std::source_location where, const at::Tensor* exchanged, Action&& action);
  /// Starts an exchange on the backend of `device` and waits for its end. `compared`: shape and dtype must agree on all ranks.
  template <class Start>
  void exchange(at::DeviceType device, const char* call, std::source_location where, const at::Tensor* compared, Start&& start);
  void gather_bytes(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where);
  void send_bytes(at::Tensor& tensor, int from, const char* call, std::source_location where);
  void wait_watchfully(c10d::Work& work);
  ExchangeWatch& exchange_watch();
  void check_usable(const char* call, std::source_location where);
  void end_group();
  void serve_until_all_have_ended() noexcept;
  [[noreturn]] void fail(const char* call, std::source_location where, const std::string& reason);
  /// The same for an exchange in the background.
  [[noreturn]] void fail_pass(const std::string& reason);
  void end_pass();
  c10d::Backend& backend_for(at::DeviceType device);

  GroupParts parts_;
  const int rank_, size_;
  c10::intrusive_ptr<c10d::Backend> cpu_backend_;
  const int exceptions_before_ = std::uncaught_exceptions();
  const pid_t process_ = ::getpid();
  std::atomic<int> scopes_ = 0;
  std::atomic<bool> abandoned_ = false;  // an exchange that cannot end
  std::atomic<bool> failed_ = false;
  std::mutex story_mutex_;
  std::string story_;
  std::shared_ptr<Logbook> logbook_;
  std::shared_ptr<Detective> detective_;  // shared with a thread that may be left behind

  /// What `during` runs now, or a backward pass that it does not run.
  struct Pass {
    const char* call = "backward";
    std::source_location where = {};
    int64_t number = 0;
    bool expected = false;
    /// Nobody ends it but the pass itself.
    bool unguided = false;
  };
  std::mutex pass_mutex_;
  std::optional<Pass> pass_;
  std::unique_ptr<ExchangeWatch> exchange_watch_;
};

}  // namespace accelerate
