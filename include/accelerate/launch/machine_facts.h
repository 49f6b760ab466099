#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <accelerate/core/launch_environment.h>
#include <accelerate/launch/cpu_topology.h>
#include <accelerate/launch/port_reservation.h>

namespace accelerate {

/// A program that starts the ranks of an MPI job.
struct MpiLauncher {
  /// mpirun or mpiexec.
  std::string program = "mpirun";
  /// Open MPI; else Intel MPI, MPICH or MVAPICH, which share another set of options.
  bool open_mpi = false;
};

/// What a launch has to know about the machine it runs on. Tests hand in facts of their own.
struct MachineFacts {
  /// GPUs that CUDA would let a worker see.
  int gpus = 0;
  /// Cores, not counting hardware threads.
  int physical_cores = 1;
  /// Whether the GPUs calculate in bfloat16.
  bool bf16 = true;
  /// Whether there is a TPU.
  bool tpu = false;
  /// GPUs whose driver makes them fail when they talk to each other directly (several RTX 40 with one older than 550.40.07).
  bool lacks_peer_access = false;
  /// Where the launcher was started.
  std::string current_folder = {};
  /// Reserves this port for rank 0, and returns whether that was possible.
  std::function<bool(int)> reserve_port = {};
  /// Reserves a port for rank 0, and returns it.
  std::function<int()> reserve_free_port = {};
  /// Whether Python has one of the packages for fp8. Asked when fp8 is wanted.
  std::function<bool()> has_fp8 = [] { return false; };
  /// The MPI of this machine, if any. Asked when one is wanted.
  std::function<std::optional<MpiLauncher>()> find_mpi = [] { return std::nullopt; };
  /// Where CPUs and GPUs are. Asked when processes are to be kept near their GPUs.
  std::function<CpuTopology()> cpu_topology = [] { return CpuTopology(); };
};

/// The facts of this machine, found without torch and without CUDA. A launch planned with them has its port in `port`, which
/// is to live as long as the launch.
MachineFacts read_machine_facts(PortReservation& port, const Environment& environment = process_environment);

/// How many of `present` GPUs CUDA shows when CUDA_VISIBLE_DEVICES holds `visible` (nothing: it is not set).
int count_visible_gpus(int present, const std::optional<std::string>& visible);

/// Whether /proc/driver/nvidia below `root` tells of several RTX 40 with a driver in which they cannot talk to each other.
bool has_broken_peer_access(const std::filesystem::path& root);

/// Distinct cores in the text of /proc/cpuinfo; the processors when it names no cores; at least 1.
int count_physical_cores(std::string_view cpuinfo);

}  // namespace accelerate
