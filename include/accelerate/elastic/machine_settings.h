#pragma once

#include <accelerate/core/launch_environment.h>

#include <chrono>
#include <functional>
#include <string>

namespace accelerate {

/// How the launchers of several machines find each other: machine 0 listens, the others connect to it.
struct MachineSettings {
  /// Rank of this machine, and how many there are.
  int rank = 0, count = 1;
  /// Where machine 0's launcher listens.
  std::string address = {};
  int port = 0;
  /// What machines must agree on to be of one job, beside their number.
  std::string job = {};
  /// How many processes this machine starts.
  int processes = 1;
  /// How often all are restarted after a failure.
  int max_restarts = 0;
  /// How long a machine waits for the others, before it starts and before each restart.
  std::chrono::milliseconds patience = std::chrono::seconds(900);
  /// On machine 0: reserves the port that rank 0 listens on.
  std::function<int()> reserve_port = {};
  /// Where the shared secret is looked up.
  Environment environment = process_environment;
};

}  // namespace accelerate
