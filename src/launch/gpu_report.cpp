#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>

#include "launch/system_report.h"

namespace accelerate::detail {
namespace {

constexpr double kGigabyte = 1024.0 * 1024.0 * 1024.0;

// A library that is closed at the end of the scope: the driver is needed only for a moment.
class Library {
 public:
  explicit Library(const std::string& name) : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL), close) {}

  /// Calls the function `name`, which returns 0 when it did what it should; false when it did not or is not there.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    void* address = handle_ ? ::dlsym(handle_.get(), name) : nullptr;
    return address != nullptr && reinterpret_cast<int (*)(Arguments...)>(address)(arguments...) == 0;
  }

 private:
  static void close(void* handle) {
    if (handle != nullptr) ::dlclose(handle);
  }
  std::unique_ptr<void, void (*)(void*)> handle_;
};

// nvmlMemory_t.
struct NvmlMemory {
  unsigned long long total, free, used;
};

using NvmlText = std::array<char, 128>;

// A string that the library filled in, possibly without a terminating NUL.
std::string text_of(const NvmlText& text) { return {text.begin(), std::find(text.begin(), text.end(), '\0')}; }

GpuReport nvml_gpu(const Library& nvml, unsigned index) {
  GpuReport gpu{.name = "unknown"};
  void* device = nullptr;
  if (!nvml.call("nvmlDeviceGetHandleByIndex_v2", index, &device)) return gpu;
  NvmlText name{};
  if (nvml.call("nvmlDeviceGetName", device, name.data(), static_cast<unsigned>(name.size()))) gpu.name = text_of(name);
  NvmlMemory memory{};
  if (nvml.call("nvmlDeviceGetMemoryInfo", device, &memory)) gpu.memory_gb = static_cast<double>(memory.total) / kGigabyte;
  return gpu;
}

std::optional<GpuReports> nvml_reports(const std::string& library) {
  const Library nvml(library);
  if (!nvml.call("nvmlInit_v2")) return std::nullopt;
  GpuReports reports;
  NvmlText driver{};
  if (nvml.call("nvmlSystemGetDriverVersion", driver.data(), static_cast<unsigned>(driver.size())))
    reports.driver = text_of(driver);
  int cuda = 0;
  if (nvml.call("nvmlSystemGetCudaDriverVersion_v2", &cuda)) reports.cuda = fmt::format("{}.{}", cuda / 1000, cuda % 1000 / 10);
  unsigned count = 0;
  nvml.call("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; i < count; ++i) reports.gpus.push_back(nvml_gpu(nvml, i));
  nvml.call("nvmlShutdown");
  return reports;
}

// The first line of `path` in which `pattern` is found gives its first group; empty when there is none.
std::string found_in(const std::filesystem::path& path, const std::regex& pattern) {
  std::ifstream file(path);
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_search(line, match, pattern)) return match[1];
  }
  return {};
}

GpuReports proc_reports(const SystemPaths& paths) {
  GpuReports reports;
  reports.driver = found_in(paths.nvidia_version, std::regex(R"(NVRM version:.*?\s(\d+\.[\d.]+))"));
  std::vector<std::filesystem::path> folders;
  std::error_code ignored;  // no such folder: no driver, no GPUs
  for (const auto& entry : std::filesystem::directory_iterator(paths.nvidia_gpus, ignored)) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  for (const auto& folder : folders) {
    const std::string name = found_in(folder / "information", std::regex(R"(^Model:\s*(.*?)\s*$)"));
    reports.gpus.push_back({.name = name.empty() ? "unknown" : name});
  }
  return reports;
}

}  // namespace

GpuReports read_gpu_reports(const SystemPaths& paths) {
  const auto reports = nvml_reports(paths.nvml);
  return reports ? *reports : proc_reports(paths);
}

std::string read_nccl_version(const std::string& library) {
  int version = 0;
  if (!Library(library).call("ncclGetVersion", &version) || version <= 0) return {};
  // 2.9 and newer count in 10000, 100 and 1; before that it was 1000, 100 and 1.
  const int major_unit = version >= 10000 ? 10000 : 1000;
  return fmt::format("{}.{}.{}", version / major_unit, version % major_unit / 100, version % 100);
}

}  // namespace accelerate::detail
