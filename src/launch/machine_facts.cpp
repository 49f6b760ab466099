#include <accelerate/launch/machine_facts.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>
#include <utility>

#include "core/program_path.h"
#include "elastic/network_interface.h"

namespace accelerate {

using namespace detail;
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
  // Some containers hide the driver's /proc entries, but every GPU that they may use has a device file.
  return count_entries("/dev", [](const std::string& name) { return name.starts_with("nvidia") && is_digits(name.substr(6)); });
}

std::string text_of_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Of a text such as "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Tue ...".
std::optional<std::array<int, 3>> driver_version(const std::string& text) {
  for (size_t at = text.find("  "); at != std::string::npos; at = text.find("  ", at + 1)) {
    std::array<int, 3> version = {};
    if (std::sscanf(text.c_str() + at, " %3d.%3d.%3d", &version[0], &version[1], &version[2]) == 3) return version;
  }
  return std::nullopt;
}

/// A FIFO would wait for a writer, and a device has no end.
std::optional<std::string> read_text_file(const std::string& path) {
  std::error_code ignored;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, ignored)) file.open(path);
  if (!file.is_open()) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<std::string> own_names() {
  std::vector<std::string> names = own_addresses();
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0) names.insert(names.begin(), name.data());
  return names;
}

std::vector<std::string> variable_names() {
  std::vector<std::string> names;
  for (char** line = environ; *line != nullptr; ++line)
    names.push_back(std::string(*line).substr(0, std::string(*line).find('=')));
  std::sort(names.begin(), names.end());
  return names;
}

// Whether the Python that would run the program finds one of the packages.
bool python_has_fp8() {
  constexpr const char* question =
      "\"${PYTHON_EXEC:-python3}\" -c 'import importlib.util as u, sys; "
      "sys.exit(not any(u.find_spec(n) for n in (\"transformer_engine\", \"msamp\", \"torchao\")))' >/dev/null 2>&1";
  return std::system(question) == 0;
}

std::optional<MpiLauncher> find_mpi_launcher(const std::string& path) {
  for (const char* name : {"mpirun", "mpiexec"}) {
    if (find_program(name, path).exit_code != 0) continue;
    FILE* pipe = ::popen((std::string(name) + " --version 2>/dev/null").c_str(), "r");
    std::string version;
    std::array<char, 4096> buffer = {};
    for (size_t got = 0; pipe != nullptr && (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
      version.append(buffer.data(), got);
    }
    if (pipe != nullptr) ::pclose(pipe);
    // Under another name than mpirun, Open MPI's calls itself OpenRTE.
    const bool open_mpi = version.find("Open MPI") != std::string::npos || version.find("OpenRTE") != std::string::npos;
    return MpiLauncher{.program = name, .open_mpi = open_mpi};
  }
  return std::nullopt;
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

bool has_broken_peer_access(const std::filesystem::path& root) {
  const std::filesystem::path driver = root / "proc/driver/nvidia";
  int affected = 0;
  int present = 0;
  std::error_code ignored;
  for (const auto& gpu : std::filesystem::directory_iterator(driver / "gpus", ignored)) {
    ++present;
    affected += text_of_file(gpu.path() / "information").find("RTX 40") != std::string::npos;
  }
  if (present < 2 || affected == 0) return false;
  constexpr std::array<int, 3> mended = {550, 40, 7};
  const auto version = driver_version(text_of_file(driver / "version"));
  return version && *version < mended;
}

MachineFacts read_machine_facts(PortReservation& port, const Environment& environment) {
  const std::string cpuinfo = text_of_file("/proc/cpuinfo");
  std::error_code ignored;
  return {.gpus = count_visible_gpus(count_present_gpus(), environment("CUDA_VISIBLE_DEVICES")),
          .physical_cores = cpuinfo.empty() ? std::max(1, static_cast<int>(std::thread::hardware_concurrency()))
                                            : count_physical_cores(cpuinfo),
          .tpu = std::filesystem::exists("/dev/accel0", ignored) || environment("PJRT_DEVICE") == "TPU",
          .lacks_peer_access = has_broken_peer_access("/"),
          .program = std::filesystem::read_symlink("/proc/self/exe", ignored),
          .current_folder = std::filesystem::current_path(ignored),
          .reserve_port = [&port](int wanted) { return port.take(wanted); },
          .reserve_free_port = [&port] { return port.take_any(); },
          .has_fp8 = python_has_fp8,
          .find_mpi = [path = environment("PATH").value_or("/bin:/usr/bin")] { return find_mpi_launcher(path); },
          .address_of = address_for_others,
          .own_names = own_names,
          .read_file = read_text_file,
          .has_program = [path = environment("PATH").value_or("/bin:/usr/bin")](
                             const std::string& name) { return find_program(name, path).exit_code == 0; },
          .variable_names = variable_names,
          .cpu_topology = [] { return read_cpu_topology("/", allowed_cpus()); }};
}

}  // namespace accelerate
