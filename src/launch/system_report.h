#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accelerate::detail {

/// The files that describe a system. Tests substitute their own.
struct SystemPaths {
  std::string cpuinfo = "/proc/cpuinfo";
  std::string meminfo = "/proc/meminfo";
  std::string os_release = "/etc/os-release";
  /// The NVIDIA driver's version file, and a folder with an entry for each of its GPUs.
  std::string nvidia_version = "/proc/driver/nvidia/version";
  std::string nvidia_gpus = "/proc/driver/nvidia/gpus";
  /// The driver's management library (NVML), as a name for dlopen.
  std::string nvml = "libnvidia-ml.so.1";
};

/// One GPU.
struct GpuReport {
  std::string name;
  /// In GB of 1024^3 bytes; nothing where only its name is known.
  std::optional<double> memory_gb = {};
};

/// The GPUs of a host and their driver. Strings are empty where nothing is known.
struct GpuReports {
  std::vector<GpuReport> gpus = {};
  std::string driver = {};
  /// The newest CUDA version that the driver supports, as "13.0".
  std::string cuda = {};
};

/// The facts about a host that a bug report needs. Strings are empty where nothing is known.
struct SystemReport {
  /// As Python's platform.platform() puts it.
  std::string platform = {};
  std::string operating_system = {};
  std::string cpu = {};
  /// Physical cores, and the hardware threads that this process may use.
  int physical_cores = 0;
  int usable_processors = 0;
  /// In GB of 1024^3 bytes.
  std::optional<double> memory_gb = {};
  GpuReports gpu = {};
};

/// Reads what is available. A missing, unreadable or malformed file leaves its facts empty; it is never an error.
SystemReport read_system_report(const SystemPaths& paths = {});

/// The part about GPUs: from NVML, or as far as /proc knows them. Neither torch nor CUDA is loaded.
GpuReports read_gpu_reports(const SystemPaths& paths = {});

/// The version of the NCCL in this library ("2.28.3"); empty when it cannot be loaded or is something else.
std::string read_nccl_version(const std::string& library);

}  // namespace accelerate::detail
