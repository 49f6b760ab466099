#include "launch/system_report.h"
#include "core/blanks.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <sys/utsname.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>

#include <accelerate/launch/machine_facts.h>

namespace accelerate::detail {
namespace {

// Files of /proc report no size; a megabyte is more than any of these has.
constexpr size_t kMostReportBytes = 1 << 20;

std::string report_text(const std::string& path) {
  std::ifstream file(path);
  std::string text(kMostReportBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// The text after `key` and `separator` in the first line that begins with them; empty when there is none.
std::string_view value_of(std::string_view text, std::string_view key, char separator) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    const auto at = line.find(separator);
    if (at != std::string_view::npos && without_blanks(line.substr(0, at)) == key) return without_blanks(line.substr(at + 1));
  }
  return {};
}

std::string platform_text() {
  utsname name{};
  if (::uname(&name) != 0) return {};
  return fmt::format("{}-{}-{}-with-glibc{}", name.sysname, name.release, name.machine, ::gnu_get_libc_version());
}

std::string operating_system_text(const std::string& os_release) {
  std::string_view name = value_of(os_release, "PRETTY_NAME", '=');
  if (name.size() >= 2 && (name.front() == '"' || name.front() == '\'') && name.back() == name.front()) {
    name = name.substr(1, name.size() - 2);
  }
  return std::string(name);
}

// Arm's cpuinfo has no model name, only a part number; the kind of machine is in `platform` anyway.
std::string cpu_text(const std::string& cpuinfo) {
  for (const char* key : {"model name", "Model", "Hardware", "cpu"}) {
    const std::string_view name = value_of(cpuinfo, key, ':');
    if (!name.empty()) return std::string(name);
  }
  return {};
}

std::optional<double> memory_of(const std::string& meminfo) {
  const std::string_view value = value_of(meminfo, "MemTotal", ':');
  uint64_t kilobytes = 0;
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), kilobytes);
  if (problem != std::errc() || without_blanks({end, value.data() + value.size()}) != "kB") return std::nullopt;
  return static_cast<double>(kilobytes) / (1024.0 * 1024.0);
}

int count_usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

SystemReport read_system_report(const SystemPaths& paths) {
  const std::string cpuinfo = report_text(paths.cpuinfo);
  return {.platform = platform_text(),
          .operating_system = operating_system_text(report_text(paths.os_release)),
          .cpu = cpu_text(cpuinfo),
          .physical_cores = cpuinfo.empty() ? 0 : count_physical_cores(cpuinfo),
          .usable_processors = count_usable_processors(),
          .memory_gb = memory_of(report_text(paths.meminfo)),
          .gpu = read_gpu_reports(paths)};
}

}  // namespace accelerate::detail
