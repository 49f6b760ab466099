#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accelerate::detail {

/// Where the facts of a system are read. Tests name files of their own.
struct SystemPaths {
  std::string cpuinfo = "/proc/cpuinfo";
  std::string meminfo = "/proc/meminfo";
  std::string os_release = "/etc/os-release";
  /// What the NVIDIA driver says of itself, and a folder with an entry for each of its GPUs.
  std::string nvidia_version = "/proc/driver/nvidia/version";
  std::string nvidia_gpus = "/proc/driver/nvidia/gpus";
  /// The driver's management library, by the name that dlopen is given.
  std::string nvml = "libnvidia-ml.so.1";
};

/// One GPU.
struct GpuReport {
  std::string name;
  /// In GB of 1024^3 bytes; nothing where only its name is known.
  std::optional<double> memory_gb = {};
};

/// The GPUs of a machine and their driver. Texts are empty where nothing is known.
struct GpuReports {
  std::vector<GpuReport> gpus = {};
  std::string driver = {};
  /// The newest CUDA that the driver serves, as "13.0".
  std::string cuda = {};
};

/// What a bug report should tell of a machine. Texts are empty where nothing is known.
struct SystemReport {
  /// As Python's platform.platform() puts it.
  std::string platform = {};
  std::string operating_system = {};
  std::string cpu = {};
  /// Cores, not counting hardware threads, and what this process may use of the latter.
  int physical_cores = 0;
  int usable_processors = 0;
  /// In GB of 1024^3 bytes.
  std::optional<double> memory_gb = {};
  GpuReports gpu = {};
};

/// Reads what there is. Files that are missing, unreadable or odd leave their facts out; nothing is an error.
SystemReport read_system_report(const SystemPaths& paths = {});

/// The part about GPUs: from NVML, or as far as /proc knows them. Neither torch nor CUDA is loaded.
GpuReports read_gpu_reports(const SystemPaths& paths = {});

/// The version of the NCCL in this library ("2.28.3"); empty when it cannot be loaded or is something else.
std::string read_nccl_version(const std::string& library);

}  // namespace accelerate::detail
