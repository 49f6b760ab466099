#include "launch/system_report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

// A machine that has nothing of what is asked for.
SystemPaths nothing_in(const TemporaryFolder& folder) {
  return {.cpuinfo = folder / "cpuinfo",
          .meminfo = folder / "meminfo",
          .os_release = folder / "os-release",
          .nvidia_version = folder / "nvidia/version",
          .nvidia_gpus = folder / "nvidia/gpus",
          .nvml = folder / "libnvidia-ml.so.1"};
}

TEST(SystemReport, TellsWhatTheFilesTell) {
  const TemporaryFolder folder;
  const auto paths = nothing_in(folder);
  write_file(paths.cpuinfo,
             "processor\t: 0\nmodel name\t: A Chip @ 3.0GHz\nphysical id\t: 0\ncore id\t: 0\n\nprocessor\t: 1\n"
             "model name\t: A Chip @ 3.0GHz\nphysical id\t: 0\ncore id\t: 0\n");
  write_file(paths.meminfo, "MemFree:  5 kB\nMemTotal:       16370128 kB\n");
  write_file(paths.os_release, "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  const auto report = read_system_report(paths);
  EXPECT_EQ(report.cpu, "A Chip @ 3.0GHz");
  EXPECT_EQ(report.physical_cores, 1);
  EXPECT_GE(report.usable_processors, 1);
  EXPECT_NEAR(report.memory_gb.value_or(0), 15.61, 0.005);
  EXPECT_EQ(report.operating_system, "Debian GNU/Linux 12 (bookworm)");
  EXPECT_TRUE(report.platform.starts_with("Linux-")) << report.platform;
}

TEST(SystemReport, FilesThatAreMissingLeaveTheirFactsOut) {
  const TemporaryFolder folder;
  const auto report = read_system_report(nothing_in(folder));
  EXPECT_EQ(report.cpu, "");
  EXPECT_EQ(report.physical_cores, 0);
  EXPECT_FALSE(report.memory_gb.has_value());
  EXPECT_EQ(report.operating_system, "");
  EXPECT_TRUE(report.gpu.gpus.empty());
  EXPECT_EQ(report.gpu.driver, "");
}

TEST(SystemReport, OddFilesAreNoError) {
  const TemporaryFolder folder;
  const auto paths = nothing_in(folder);
  for (const std::string& text : {std::string("MemTotal: many kB\nPRETTY_NAME=\"\nmodel name"),
                                  std::string("MemTotal:\nPRETTY_NAME=\n:"), std::string("MemTotal: 99999999999999999999999 kB"),
                                  std::string("MemTotal: 12 GB"), std::string(3 << 20, '\0'), std::string("\n\n=\n:\n")}) {
    for (const auto& path : {paths.cpuinfo, paths.meminfo, paths.os_release, paths.nvidia_version, paths.nvml})
      write_file(path, text);
    const auto report = read_system_report(paths);
    EXPECT_FALSE(report.memory_gb.has_value()) << text.substr(0, 40);
    EXPECT_EQ(report.cpu, "");
    EXPECT_TRUE(report.gpu.gpus.empty());
  }
  // A folder where a file should be.
  std::filesystem::remove(paths.cpuinfo);
  std::filesystem::create_directory(paths.cpuinfo);
  EXPECT_EQ(read_system_report(paths).cpu, "");
}

TEST(SystemReport, GpusComeFromTheDriversLibrary) {
  const TemporaryFolder folder;
  auto paths = nothing_in(folder);
  paths.nvml = ACCELERATE_FAKE_NVML;
  const auto reports = read_gpu_reports(paths);
  ASSERT_EQ(reports.gpus.size(), 2u);
  EXPECT_EQ(reports.gpus[0].name, "Imagined 0");
  EXPECT_NEAR(reports.gpus[0].memory_gb.value_or(0), 16, 1e-9);
  EXPECT_EQ(reports.gpus[1].name, std::string(128, 'x')) << "a name without an end";
  EXPECT_FALSE(reports.gpus[1].memory_gb.has_value());
  EXPECT_EQ(reports.driver, "580.65.06");
  EXPECT_EQ(reports.cuda, "13.0");
}

TEST(SystemReport, WithoutThatLibraryTheyComeFromProc) {
  const TemporaryFolder folder;
  const auto paths = nothing_in(folder);
  write_file(paths.nvidia_version,
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  gcc version "
             "12.2.0\n");
  write_file(std::filesystem::path(paths.nvidia_gpus) / "0000:01:00.0/information", "Model: \t\t NVIDIA A100\nIRQ: 5\n");
  write_file(std::filesystem::path(paths.nvidia_gpus) / "0000:02:00.0/information", "");
  const auto reports = read_gpu_reports(paths);
  ASSERT_EQ(reports.gpus.size(), 2u);
  EXPECT_EQ(reports.gpus[0].name, "NVIDIA A100");
  EXPECT_EQ(reports.gpus[1].name, "unknown");
  EXPECT_FALSE(reports.gpus[0].memory_gb.has_value());
  EXPECT_EQ(reports.driver, "550.54.15");
  EXPECT_EQ(reports.cuda, "");
}

TEST(SystemReport, TheVersionOfNcclIsAskedOfItsLibrary) {
  EXPECT_EQ(read_nccl_version(ACCELERATE_FAKE_NVML), "2.28.3");
  EXPECT_EQ(read_nccl_version("/no/such/libnccl.so.2"), "");
  EXPECT_EQ(read_nccl_version("libm.so.6"), "") << "a library without that function";
}

}  // namespace
}  // namespace accelerate::testing
