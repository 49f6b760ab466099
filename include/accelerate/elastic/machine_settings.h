#pragma once

#include <accelerate/core/launch_environment.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace accelerate {

/// How the launchers of several machines find each other: machine 0 listens, the others connect to it.
struct MachineSettings {
  /// Rank of this machine. None: machines are numbered as they join.
  std::optional<int> rank = {};
  /// How many machines run together at most.
  int count = 1;
  /// How many suffice; 0: all. Only machines that are numbered as they join may be fewer.
  int least = 0;
  /// Where machine 0's launcher listens.
  std::string address = {};
  int port = 0;
  /// Whether this machine is machine 0, where it has no rank. None: the first to listen at `address`, where it is this host's.
  std::optional<bool> hosts = {};
  /// What machines must agree on to be of one job, beside their number.
  std::string job = {};
  /// How many processes this machine starts, and whether other machines may start other numbers.
  int processes = 1;
  bool heterogeneous = false;
  /// Whether other launchers run on this machine too, each for one task of a scheduler.
  bool shares_machine = false;
  /// How often all are restarted after a failure.
  int max_restarts = 0;
  /// How long a machine waits for the others, before it starts and before each restart.
  std::chrono::milliseconds patience = std::chrono::seconds(900);
  /// How long machines that suffice wait for more.
  std::chrono::milliseconds last_call = std::chrono::seconds(30);
  /// On machine 0: reserves the port that rank 0 listens on.
  std::function<int()> reserve_port = {};
  /// Where the shared secret is looked up.
  Environment environment = process_environment;

  int fewest() const { return least > 0 ? least : count; }
  /// Machines may join and leave while others run.
  bool is_elastic() const { return fewest() < count; }
};

}  // namespace accelerate
