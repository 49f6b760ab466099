#pragma once

#include <accelerate/core/launch_environment.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>
#include <source_location>
#include <string>

namespace c10d {
class ProcessGroup;
}

namespace accelerate {

namespace detail {
class Communicator;
}

/// How the processes of a run are spread. Prints as in Python: "DistributedType.MULTI_CPU".
enum class DistributedType { no, multi_cpu, multi_gpu };
const char* to_string(DistributedType type);

/// A process group that the application made, to be used and never destroyed by this library. Made from the
/// c10::intrusive_ptr<c10d::ProcessGroup> that the application holds.
class ProcessGroupHandle {
 public:
  ProcessGroupHandle() = default;
  template <std::same_as<c10d::ProcessGroup> Group>
  ProcessGroupHandle(c10::intrusive_ptr<Group> group) : group_(group.get(), [group](Group*) {}) {}
  explicit operator bool() const { return group_ != nullptr; }
  c10d::ProcessGroup* get() const { return group_.get(); }

 private:
  // shared_ptr, because unlike intrusive_ptr it can be held, copied and dropped where the group's type is not known.
  std::shared_ptr<c10d::ProcessGroup> group_;
};

/// Options of a ProcessState beside its environment.
struct ProcessStateOptions {
  /// Use the CPU although there is a GPU. The variable ACCELERATE_USE_CPU says the same.
  bool cpu = false;
  /// A group to use instead of making one.
  ProcessGroupHandle process_group = {};
  /// How long to wait for a peer. Default: 30 minutes, with NCCL 10, as in Python; 5 minutes to find each other.
  std::optional<std::chrono::milliseconds> timeout = {};
  /// Where variables are looked up.
  Environment environment = process_environment;
};

/// Lets one process through first: see ProcessState::main_process_first.
class [[nodiscard]] FirstScope {
 public:
  FirstScope(FirstScope&&) noexcept = default;
  FirstScope& operator=(FirstScope&&) = delete;
  /// Lets the others in. Never throws, never waits.
  ~FirstScope();

 private:
  friend class ProcessState;
  FirstScope(std::shared_ptr<detail::Communicator> communicator, std::string key);
  std::shared_ptr<detail::Communicator> communicator_;
  std::string key_;
};

/// The rank of this process, and its process group. A value: copies share the same group, which ends with
/// the last of them. Several may live in one process.
class ProcessState {
 public:
  /// Reads the environment of the launcher and joins the group it describes; without one, a single process.
  /// ConfigError names the variable that is wrong; DistributedError when the peers were not found.
  explicit ProcessState(ProcessStateOptions options = {});

  int num_processes() const;
  int process_index() const;
  int local_process_index() const;
  bool is_main_process() const { return process_index() == 0; }
  bool is_local_main_process() const { return local_process_index() == 0; }
  bool is_last_process() const { return process_index() == num_processes() - 1; }
  /// True when there are peers.
  bool use_distributed() const { return num_processes() > 1; }
  DistributedType distributed_type() const;
  /// "gloo", "nccl", or "" for a single process that nobody launched.
  const std::string& backend() const;
  c10::Device device() const;
  /// ACCELERATE_DEBUG_MODE: every collective first compares the shapes of all processes.
  bool debug() const;

  /// Returns when every process has called it.
  void wait_for_everyone(std::source_location where = std::source_location::current()) const;

  /// A scope that the main process enters at once and the others when it has left it, also by an exception.
  FirstScope main_process_first(std::source_location where = std::source_location::current()) const;
  /// The same for the processes of each host.
  FirstScope local_main_process_first(std::source_location where = std::source_location::current()) const;

  /// Splits this group: processes that pass the same `color` form one, in the order of their indexes here. All processes of this
  /// group call it. The result has every collective, can be split again, and keeps this group alive; messages name its
  /// processes by their rank in it and in the whole run. UsageError when the application's own group has no store through which
  /// to connect; a single process that nobody launched is a group of itself.
  ProcessState split_group(int color, std::source_location where = std::source_location::current()) const;

  /// For the collectives in collectives.h; null for a single process that nobody launched.
  const std::shared_ptr<detail::Communicator>& communicator() const;

  /// As Python prints it, in five lines.
  friend std::string to_string(const ProcessState& state);

 private:
  struct Facts;
  std::shared_ptr<const Facts> facts_;
};

namespace detail {
/// How many states this program holds now, copies not counted.
int living_process_states();
}  // namespace detail

}  // namespace accelerate
