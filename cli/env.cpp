#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include <accelerate/core/version.h>
#include "build_facts.h"
#include "config/config_file.h"
#include "config/python_text.h"
#include "core/escaped.h"
#include "described_command.h"
#include "launch/system_report.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

std::string known(const std::string& text) { return text.empty() ? "unknown" : text; }

std::string gigabytes(const std::optional<double>& memory) { return memory ? fmt::format("{:.2f} GB", *memory) : "unknown"; }

std::string torch_text(const BuildFacts& build) {
  if (build.torch_version.empty()) return "none (built without LibTorch)";
  const bool there = std::filesystem::exists(std::filesystem::path(build.torch_folder) / "lib" / "libtorch.so");
  return fmt::format("{} ({} {})", build.torch_version, there ? "in" : "no longer in", build.torch_folder);
}

// torch wheels have NCCL in a separate package next to them.
std::string nccl_text(const BuildFacts& build) {
  if (!build.has_nccl) return "not built";
  const auto beside = std::filesystem::path(build.torch_folder).parent_path() / "nvidia" / "nccl" / "lib" / "libnccl.so.2";
  for (const std::string& library : {beside.string(), std::string("libnccl.so.2")}) {
    const std::string version = read_nccl_version(library);
    if (!version.empty()) return version;
  }
  return "built, but libnccl.so.2 cannot be loaded";
}

std::string cpu_text(const SystemReport& system) {
  return fmt::format("{} ({} cores, {} usable logical CPUs)", known(system.cpu),
                     system.physical_cores > 0 ? std::to_string(system.physical_cores) : "unknown", system.usable_processors);
}

void print_row(const std::string& name, const std::string& value) { fmt::print("- {}: {}\n", name, escaped(value)); }

void print_gpus(const GpuReports& report) {
  if (report.gpus.empty()) print_row("GPU type", "none found");
  for (size_t i = 0; i < report.gpus.size(); ++i) {
    const auto& gpu = report.gpus[i];
    print_row(report.gpus.size() > 1 ? fmt::format("GPU {} type", i) : "GPU type",
              fmt::format("{} ({})", gpu.name, gpu.memory_gb ? gigabytes(gpu.memory_gb) : "memory unknown"));
  }
  print_row("GPU driver", report.driver.empty() ? "none found"
                                                : report.driver + (report.cuda.empty() ? "" : ", for CUDA up to " + report.cuda));
}

// As Python prints a value inside a dictionary; a top-level string has no quotes.
std::string python_text(const nlohmann::json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number_float()) return python_number(value.get<double>());
  if (value.is_string()) return "'" + value.get<std::string>() + "'";
  if (!value.is_structured()) return value.dump();
  std::string text;
  for (const auto& item : value.items()) {
    text += (text.empty() ? "" : ", ") + (value.is_object() ? "'" + item.key() + "': " : "") + python_text(item.value());
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

// The keys that have a value, in Python's order.
void print_config(const Config& config) {
  for (const auto& key : keys_of(config)) {
    const auto value = config.fields.value(std::string(key.name), nlohmann::json());
    if (value.is_null()) continue;
    fmt::print("\t- {}: {}\n", key.name, escaped(value.is_string() ? value.get<std::string>() : python_text(value)));
  }
}

void print_facts() {
  const BuildFacts build = build_facts();
  const SystemReport system = read_system_report();
  print_row("`Accelerate` version", fmt::format("{} (C++)", version()));
  print_row("Platform", known(system.platform));
  print_row("Operating system", known(system.operating_system));
  print_row("`accelerate` bash location", known(own_executable()));
  print_row("Compiler", build.compiler);
  print_row("LibTorch version", torch_text(build));
  print_row("LibTorch accelerator", build.torch_version.empty() ? "none" : build.torch_has_cuda ? "CUDA" : "CPU");
  print_row("Backends",
            fmt::format("gloo: {}, NCCL: {}", build.torch_version.empty() ? "not built" : "part of LibTorch", nccl_text(build)));
  print_row("System CPU", cpu_text(system));
  print_row("System RAM", gigabytes(system.memory_gb));
  print_gpus(system.gpu);
}

}  // namespace

int run_env_command(std::vector<std::string> arguments) {
  return run_described("env", arguments, [](const Arguments& given) {
    const auto wanted = given.config_file;
    const std::string path = wanted.value_or(default_config_path(process_environment));
    std::error_code ignored;
    // Read first: a requested config file that cannot be read must fail before the report begins.
    std::optional<Config> config;
    if (wanted || std::filesystem::exists(path, ignored)) config = read_config(path);
    fmt::print("\nCopy and paste the text below into your bug report:\n\n");
    print_facts();
    fmt::print("- `Accelerate` {}:\n", wanted ? "config passed" : "default config");
    if (!config) fmt::print("\tNot found\n");
    if (config) print_config(*config);
    return 0;
  });
}

}  // namespace accelerate::detail::cli
