#pragma once

#include <accelerate/elastic/machine_settings.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct pollfd;

namespace accelerate::detail {

/// The ranks of all machines are started together: what one of them needs for that.
struct Round {
  /// 0, and one more with each start.
  int number = 0;
  /// How many of the earlier rounds count as restarts: those that a rank's failure ended.
  int restarts = 0;
  /// Where rank 0 listens. A port of its own for each round: ranks of an earlier one are never met.
  int port = 0;
  /// The rank of this machine, and how many there are.
  int machine = 0, machines = 1;
  /// The first rank of this machine, and how many ranks all machines have.
  int first_rank = 0, world_size = 1;
  /// The interface of this machine by which it reaches the others; empty when there are several.
  std::string interface = {};

  bool operator==(const Round&) const = default;
};

/// What follows a failure, once all ranks have ended.
enum class Sequel {
  restart,  ///< another round, if a restart is left
  regroup,  ///< another round: machines have joined, left or were lost, and those that remain suffice
  end,      ///< nothing: the rendezvous is gone
};

/// Why the ranks of all machines are ended: a failure, or another number of machines.
struct MachineFailure {
  int machine = 0;
  std::string host = {};
  /// The rank to blame; none when the launcher itself was stopped or lost, or a machine has joined.
  std::optional<int> rank = {};
  int exit_code = 1;
  /// False when a collective failed there: the cause may be another rank.
  bool by_itself = true;
  Sequel sequel = Sequel::restart;
  /// "was killed by SIGKILL after 4.2 s".
  std::string text = {};
};

/// The launchers of all machines, which start and end their ranks together. Nothing in it waits: a launcher polls the
/// descriptors, until the next deadline, and serves.
class MachineGroup {
 public:
  using Clock = std::chrono::steady_clock;

  /// Machine 0 listens, the others begin to connect. DistributedError when machine 0 cannot listen.
  static std::unique_ptr<MachineGroup> join(const MachineSettings& settings);
  virtual ~MachineGroup() = default;
  /// In a fork: closes what only the launcher may use.
  virtual void release() = 0;

  virtual void add_to(std::vector<pollfd>& watched) const = 0;
  /// When it must be served although nothing has arrived.
  virtual std::optional<Clock::time_point> deadline() const = 0;
  virtual void serve() = 0;

  /// This machine has no ranks now, and can start the next round.
  virtual void be_ready() = 0;
  /// The round that has begun, once.
  virtual std::optional<Round> take_round() = 0;
  /// Why no round will begin; empty while one may.
  virtual std::string refusal() const = 0;
  /// Whom it waits for: "machines 1, 3".
  virtual std::string awaited() const = 0;
  /// What a user should know of how it listens; empty when there is nothing.
  virtual std::string warning() const { return ""; }

  /// The ranks of this machine fail. The others are told.
  virtual void report(const MachineFailure& failure) = 0;
  /// The ranks of this machine have all ended with 0.
  virtual void report_success() = 0;
  /// Those of all machines have.
  virtual bool all_succeeded() const = 0;
  /// What another machine has reported, or the loss of one, in this round.
  virtual std::optional<MachineFailure> take_failure() = 0;
};

}  // namespace accelerate::detail
