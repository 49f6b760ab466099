#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <accelerate/core/launch_environment.h>
#include <accelerate/launch/port_reservation.h>

namespace accelerate {

/// What a launch has to know about the machine it runs on. Tests hand in facts of their own.
struct MachineFacts {
  /// GPUs that CUDA would let a worker see.
  int gpus = 0;
  /// Cores, not counting hardware threads.
  int physical_cores = 1;
  /// Reserves this port for rank 0, and returns whether that was possible.
  std::function<bool(int)> reserve_port = {};
  /// Reserves a port for rank 0, and returns it.
  std::function<int()> reserve_free_port = {};
};

/// The facts of this machine, found without torch and without CUDA. A launch planned with them has its port in `port`, which
/// is to live as long as the launch.
MachineFacts read_machine_facts(PortReservation& port, const Environment& environment = process_environment);

/// How many of `present` GPUs CUDA shows when CUDA_VISIBLE_DEVICES holds `visible` (nothing: it is not set).
int count_visible_gpus(int present, const std::optional<std::string>& visible);

/// Distinct cores in the text of /proc/cpuinfo; the processors when it names no cores; at least 1.
int count_physical_cores(std::string_view cpuinfo);

}  // namespace accelerate
