#pragma once

#include <c10/util/FunctionRef.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/background_collective.h"
#include "distributed/rank_names.h"
#include "transport/transport.h"

namespace accelerate::detail {

class FailurePolicy;
class PassTracker;
class StoreScopes;
class WatchfulGroup;
struct CallNote;
struct Nesting;

class Communicator;

/// What a group is made of.
struct GroupParts {
  /// The group that this one was split from, which outlives it; null for one that is the whole run.
  std::shared_ptr<Communicator> parent;
  RankNames names;
  std::unique_ptr<Transport> transport;
  /// For signals between processes; may be null for a group of the application's own.
  c10::intrusive_ptr<c10d::Store> store;
  /// False for a group of the application's own, which is left alone at the end.
  bool owned = true;
  /// Rank 0 serves the store, so it ends last.
  bool first_serves_store = false;
  std::chrono::milliseconds timeout{};
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

/// The collectives of one group: joins its transport, failure policy, scopes and passes. Tensors must be contiguous and dense;
/// collectives.cpp sees to that. Every call names itself and its caller.
class Communicator {
 public:
  explicit Communicator(GroupParts parts);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return parts_.transport->rank(); }
  int size() const { return parts_.transport->size(); }
  /// For collectives that are neither written down nor waited for.
  Transport& transport() { return *parts_.transport; }
  StoreScopes& scopes() { return *scopes_; }
  PassTracker& passes() { return *passes_; }
  /// The group as something that starts collectives in the background sees it.
  c10::intrusive_ptr<WatchfulGroup> background_group();
  /// The first rank of this host, as far as it is known.
  int first_here() const;
  /// What it was made of.
  const GroupParts& parts() const { return parts_; }
  /// 0 for the first group that is split from this one, and so on: the same on every rank.
  int next_split() { return splits_++; }

  /// From now on calls are logged, and one that waits longer than `threshold` (zero: none) is reported. Every rank calls it.
  /// `machine` is the same text on every process of a host.
  void watch(const std::string& machine, std::chrono::milliseconds threshold, std::source_location where);

  /// Debug mode: tells the others what this rank is about to do. DistributedError, on all of them and with a line for each, when
  /// it is not the same everywhere; nothing else has been sent then, and the group stays usable.
  void agree(const char* call, const std::string& what, std::source_location where);
  /// Gives calls the same numbers on all ranks again, after some of them have made more than others.
  void align_calls(const char* call, std::source_location where);

  /// A barrier, also for a collective of nothing.
  void barrier(const char* call, std::source_location where, const Given& given = {});
  // Those that the library makes for itself are given nothing: what is sent is compared, on each host.
  /// `output` holds the `input` of each rank, one after the other.
  void all_gather(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where,
                  const Given* given = nullptr);
  void all_reduce(at::Tensor& tensor, c10d::ReduceOp::RedOpType operation, const char* call, std::source_location where,
                  const Given* given = nullptr);
  /// Part i of the inputs of all ranks, reduced, in the `output` of rank i.
  void reduce_scatter(at::Tensor& output, at::Tensor& input, c10d::ReduceOp::RedOpType operation, const char* call,
                      std::source_location where, const Given* given = nullptr);
  /// Part i of `input` goes to rank i, and part i of `output` is from there; all parts are equal.
  void all_to_all(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where,
                  const Given* given = nullptr);
  void broadcast(at::Tensor& tensor, int from, const char* call, std::source_location where, const Given* given = nullptr);
  // The same in the background. `how` tells which one it is, and must agree between ranks.
  BackgroundCollective start_all_gather(at::Tensor& output, at::Tensor& input, std::string how, std::source_location where);
  BackgroundCollective start_all_reduce(at::Tensor& tensor, std::string how, std::source_location where);
  BackgroundCollective start_reduce_scatter(at::Tensor& output, at::Tensor& input, std::string how, std::source_location where);
  /// Runs what all ranks do at the same time and without collectives of this group, as to connect another. It gets a thread of
  /// its own, which is left behind when the group is lost: what `action` uses must be its own or shared.
  void run_aside(const char* call, std::source_location where, std::function<void()> action);
  /// Sends `tensor`, contiguous and dense, to one rank, which calls `receive`: dtype and shape travel ahead. No call of the
  /// group: only these two ranks know of it.
  void send(const at::Tensor& tensor, int to, std::source_location where);
  /// `device`: where a tensor lies that was no CPU tensor.
  at::Tensor receive(int from, at::Device device, std::source_location where);
  /// Bytes of any length from each rank, in the order of ranks.
  std::vector<std::string> all_gather_bytes(std::string_view bytes, const char* call, std::source_location where);
  /// The bytes of `from`, on every rank.
  std::string broadcast_bytes(std::string_view bytes, int from, const char* call, std::source_location where);

 private:
  /// Runs a collective of tensors of `device` to its end. `between_hosts`: calls are compared there too.
  void run_collective(at::DeviceType device, CallNote call, bool between_hosts, c10::function_ref<StartedCollective()> start);
  BackgroundCollective run_in_background(const CallNote& call, c10::function_ref<StartedCollective()> start);
  /// GroupLost when another rank makes another call of that number, by a message between all of them.
  void compare_between_hosts(int64_t number);
  /// The marks of all ranks. Throws, on all of them and with nothing sent, where a backend of the application's own cannot.
  std::vector<uint64_t> gather_marks(uint64_t mine);
  void gather_bytes(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where);
  void send_bytes(at::Tensor& tensor, int from, const char* call, std::source_location where);

  GroupParts parts_;
  std::unique_ptr<FailurePolicy> failures_;
  std::unique_ptr<StoreScopes> scopes_;
  std::unique_ptr<PassTracker> passes_;
  /// One message between two ranks after the other, each of two parts: by peer.
  std::vector<std::mutex> sending_, receiving_;
  std::atomic<int> splits_ = 0;
  bool hosts_compare_ = false;  // some rank cannot read the call log of another, and the backend can compare them
  const int exceptions_before_;
  const pid_t process_;
};

}  // namespace accelerate::detail
