#include <accelerate/launch/cpu_topology.h>

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>

namespace accelerate {
namespace {

namespace fs = std::filesystem;

// More than any host has: a larger number in a file is ignored.
constexpr int kMostCpus = 1 << 16;

std::string first_line(const fs::path& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line, '\n');
  return line;
}

std::optional<int> cpu_number(std::string_view text) {
  int number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Parses "0-3,8"; malformed parts are ignored.
std::vector<int> cpus_in(const std::string& text, const std::set<int>& allowed) {
  std::vector<int> cpus;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    const size_t dash = part.find('-');
    const auto first = cpu_number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : cpu_number(part.substr(dash + 1));
    for (int cpu = first.value_or(0); first && last && *first >= 0 && *last < kMostCpus && cpu <= *last; ++cpu) {
      if (allowed.contains(cpu)) cpus.push_back(cpu);
    }
    begin = end + 1;
  }
  return cpus;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());  // CUDA numbers like GPUs by their place on the bus
  return names;
}

}  // namespace

CpuTopology read_cpu_topology(const fs::path& root, const std::set<int>& allowed) {
  CpuTopology topology;
  const fs::path nodes = root / "sys/devices/system/node";
  for (const std::string& name : names_in(nodes)) {
    const auto number = name.starts_with("node") ? cpu_number(std::string_view(name).substr(4)) : std::nullopt;
    if (!number) continue;
    auto cpus = cpus_in(first_line(nodes / name / "cpulist"), allowed);
    if (!cpus.empty()) topology.nodes[*number] = std::move(cpus);
  }
  if (topology.nodes.empty() && !allowed.empty()) topology.nodes[0] = {allowed.begin(), allowed.end()};
  for (const std::string& address : names_in(root / "proc/driver/nvidia/gpus")) {
    const std::string node = first_line(root / "sys/bus/pci/devices" / address / "numa_node");
    topology.gpu_nodes.push_back(cpu_number(node).value_or(-1));
  }
  return topology;
}

std::set<int> allowed_cpus() {
  std::set<int> cpus;
  cpu_set_t* set = CPU_ALLOC(kMostCpus);
  const size_t bytes = CPU_ALLOC_SIZE(kMostCpus);
  if (set != nullptr && ::sched_getaffinity(0, bytes, set) == 0) {
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.insert(cpu);
    }
  }
  CPU_FREE(set);
  return cpus;
}

std::vector<int> cpus_for(const CpuTopology& topology, int local_rank, int local_processes, std::optional<int> gpu) {
  if (gpu && *gpu >= 0 && *gpu < static_cast<int>(topology.gpu_nodes.size())) {
    const auto node = topology.nodes.find(topology.gpu_nodes[static_cast<size_t>(*gpu)]);
    if (node != topology.nodes.end()) return node->second;
  }
  std::vector<int> all;
  for (const auto& [number, cpus] : topology.nodes) all.insert(all.end(), cpus.begin(), cpus.end());
  if (all.empty()) return {};
  const auto at = [&](int rank) { return static_cast<std::ptrdiff_t>(all.size()) * rank / local_processes; };
  const std::ptrdiff_t begin = std::min<std::ptrdiff_t>(at(local_rank), static_cast<std::ptrdiff_t>(all.size()) - 1);
  // Where there are more processes than CPUs, each still has one.
  return {all.begin() + begin, all.begin() + std::max(begin + 1, at(local_rank + 1))};
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[i]);
    if (last > i) text += fmt::format("-{}", cpus[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace accelerate
