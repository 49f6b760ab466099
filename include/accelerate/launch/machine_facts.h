#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

/// What a launch needs to know about its host. Tests substitute their own.
struct MachineFacts {
  /// GPUs visible to a worker.
  int gpus = 0;
  /// Physical cores.
  int physical_cores = 1;
  /// Whether the GPUs support bfloat16.
  bool bf16 = true;
  /// Whether there is a TPU.
  bool tpu = false;
  /// Whether the driver breaks peer-to-peer access between the GPUs (several RTX 40 with a driver older than 550.40.07).
  bool lacks_peer_access = false;
  /// The path of the launcher itself.
  std::string program = {};
  /// Where the launcher was started.
  std::string current_folder = {};
  /// Reserves this port for rank 0; false when it is not available.
  std::function<bool(int)> reserve_port = {};
  /// Reserves a port for rank 0, and returns it.
  std::function<int()> reserve_free_port = {};
  /// Whether Python has one of the fp8 packages. Called only when fp8 is requested.
  std::function<bool()> has_fp8 = [] { return false; };
  /// The MPI launcher of this host, if any. Called only when MPI is requested.
  std::function<std::optional<MpiLauncher>()> find_mpi = [] { return std::nullopt; };
  /// How other hosts reach the host of a name. Called only for a launch on other hosts.
  std::function<std::string(const std::string& name)> address_of = [](const std::string& name) { return name; };
  /// The name of this host, and its addresses. Called only when a hostfile tells its rank.
  std::function<std::vector<std::string>()> own_names = [] { return std::vector<std::string>(); };
  /// The text of a file, if it can be read. Called only with a hostfile.
  std::function<std::optional<std::string>(const std::string& path)> read_file = [](const std::string&) { return std::nullopt; };
  /// Whether PATH has this program. Called only with a hostfile.
  std::function<bool(const std::string& name)> has_program = [](const std::string&) { return false; };
  /// The names of all environment variables. Called only for a launch on other hosts.
  std::function<std::vector<std::string>()> variable_names = [] { return std::vector<std::string>(); };
  /// The NUMA topology. Called only when CPU affinity is requested.
  std::function<CpuTopology()> cpu_topology = [] { return CpuTopology(); };
};

/// The facts of this host, found without torch and without CUDA. A launch planned with them has its port in `port`, which must
/// live as long as the launch.
MachineFacts read_machine_facts(PortReservation& port, const Environment& environment = process_environment);

/// How many of `present` GPUs are visible when CUDA_VISIBLE_DEVICES is `visible` (nullopt: it is not set).
int count_visible_gpus(int present, const std::optional<std::string>& visible);

/// Whether /proc/driver/nvidia below `root` lists several RTX 40 with a driver that breaks peer-to-peer access.
bool has_broken_peer_access(const std::filesystem::path& root);

/// Distinct cores in the text of /proc/cpuinfo; the processors when it names no cores; at least 1.
int count_physical_cores(std::string_view cpuinfo);

}  // namespace accelerate
