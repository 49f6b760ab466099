#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <accelerate/core/launch_environment.h>

namespace accelerate {

/// True when rank 0 could listen on `port` at every address of this machine, IPv4 and IPv6.
bool port_is_free(int port);

/// A port that was free a moment ago. Nothing reserves it: another program may take it before rank 0 does.
int find_free_port();

/// What a launch has to know about the machine it runs on. Tests hand in facts of their own.
struct MachineFacts {
  /// GPUs that CUDA would let a worker see.
  int gpus = 0;
  /// Cores, not counting hardware threads.
  int physical_cores = 1;
  /// Whether rank 0 could listen on this port.
  std::function<bool(int)> port_is_free = accelerate::port_is_free;
  /// A port that rank 0 could listen on.
  std::function<int()> find_free_port = accelerate::find_free_port;
};

/// The facts of this machine, found without torch and without CUDA.
MachineFacts read_machine_facts(const Environment& environment = process_environment);

/// How many of `present` GPUs CUDA shows when CUDA_VISIBLE_DEVICES holds `visible` (nothing: it is not set).
int count_visible_gpus(int present, const std::optional<std::string>& visible);

/// Distinct cores in the text of /proc/cpuinfo; the processors when it names no cores; at least 1.
int count_physical_cores(std::string_view cpuinfo);

}  // namespace accelerate
