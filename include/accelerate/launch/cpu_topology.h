#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace accelerate {

/// The NUMA nodes of a host's CPUs and GPUs.
struct CpuTopology {
  /// CPUs that may be used, by NUMA node.
  std::map<int, std::vector<int>> nodes = {};
  /// The NUMA node of each GPU, in the order of CUDA's numbers; -1 where it is not known.
  std::vector<int> gpu_nodes = {};
};

/// Reads sys/ and proc/ below `root`, and keeps of the CPUs only those in `allowed`. What cannot be read is left out; without
/// any node, all allowed CPUs are node 0.
CpuTopology read_cpu_topology(const std::filesystem::path& root, const std::set<int>& allowed);

/// The CPUs that this process may use.
std::set<int> allowed_cpus();

/// The CPUs of one of `local_processes` processes: those of the node of its GPU, else an even share of all, node by node.
/// Empty when nothing is known.
std::vector<int> cpus_for(const CpuTopology& topology, int local_rank, int local_processes, std::optional<int> gpu);

/// "0-3,8" of the CPUs 0, 1, 2, 3 and 8, as the kernel writes it.
std::string cpu_list_text(const std::vector<int>& cpus);

}  // namespace accelerate
