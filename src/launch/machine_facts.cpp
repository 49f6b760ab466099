#include <accelerate/launch/machine_facts.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>
#include <utility>

namespace accelerate {
namespace {

int count_entries(const std::filesystem::path& folder, bool (*counts)(const std::string& name)) {
  int found = 0;
  std::error_code ignored;  // no such folder: no driver, no GPUs
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) found += counts(entry.path().filename());
  return found;
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

int count_present_gpus() {
  const int listed = count_entries("/proc/driver/nvidia/gpus", [](const std::string&) { return true; });
  if (listed > 0) return listed;
  // Some containers hide the driver's /proc entries, yet every GPU they may use has its device file.
  return count_entries("/dev", [](const std::string& name) { return name.starts_with("nvidia") && is_digits(name.substr(6)); });
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Cuts the part before `separator` off the front of `rest`.
std::string_view next_part(std::string_view& rest, char separator) {
  const auto end = rest.find(separator);
  const std::string_view part = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return part;
}

}  // namespace

int count_visible_gpus(int present, const std::optional<std::string>& visible) {
  if (!visible) return present;
  std::string_view rest = *visible;
  std::set<std::string_view> seen;
  while (!rest.empty()) {
    const std::string_view id = trimmed(next_part(rest, ','));
    const bool by_name = id.starts_with("GPU-") || id.starts_with("MIG-");
    int index = -1;
    if (is_digits(id)) std::from_chars(id.data(), id.data() + id.size(), index);
    // CUDA stops at the first entry that names no GPU, and shows none at all when one is named twice.
    if (!by_name && (index < 0 || index >= present)) break;
    if (!seen.insert(id).second) return 0;
  }
  return present > 0 ? static_cast<int>(seen.size()) : 0;
}

int count_physical_cores(std::string_view cpuinfo) {
  int processors = 0;
  std::string_view package;
  std::set<std::pair<std::string_view, std::string_view>> cores;
  while (!cpuinfo.empty()) {
    std::string_view value = next_part(cpuinfo, '\n');
    const std::string_view key = trimmed(next_part(value, ':'));
    value = trimmed(value);
    if (key == "processor") ++processors;
    if (key == "physical id") package = value;
    if (key == "core id") cores.emplace(package, value);
  }
  return std::max(1, cores.empty() ? processors : static_cast<int>(cores.size()));
}

MachineFacts read_machine_facts(PortReservation& port, const Environment& environment) {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpuinfo{std::istreambuf_iterator<char>(file), {}};
  return {.gpus = count_visible_gpus(count_present_gpus(), environment("CUDA_VISIBLE_DEVICES")),
          .physical_cores = cpuinfo.empty() ? std::max(1, static_cast<int>(std::thread::hardware_concurrency()))
                                            : count_physical_cores(cpuinfo),
          .reserve_port = [&port](int wanted) { return port.take(wanted); },
          .reserve_free_port = [&port] { return port.take_any(); }};
}

}  // namespace accelerate
