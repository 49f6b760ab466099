#include "launch/default_config.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>

#include <accelerate/core/error.h>

namespace accelerate {
namespace {

std::string expand_home(const std::string& path, const Environment& environment) {
  return path.starts_with("~/") ? environment("HOME").value_or("") + path.substr(1) : path;
}

}  // namespace

std::string default_config_path(const Environment& environment) {
  const auto home = environment("HF_HOME");
  const std::string folder = home ? *home : environment("XDG_CACHE_HOME").value_or("~/.cache") + "/huggingface";
  return expand_home(folder, environment) + "/accelerate/default_config.yaml";
}

std::optional<int> configured_num_processes(const Environment& environment) {
  const std::string path = default_config_path(environment);
  std::error_code problem;
  if (!std::filesystem::exists(path, problem)) return std::nullopt;
  try {
    const YAML::Node key = YAML::LoadFile(path)["num_processes"];
    if (!key) return std::nullopt;
    const int processes = key.as<int>();
    if (processes >= 1) return processes;
    throw ConfigError(fmt::format("{}: num_processes is {}; at least 1 is needed.", path, processes));
  } catch (const YAML::Exception& error) {
    throw ConfigError(
        fmt::format("{} cannot be read: {}. Repair it, or write it anew with `accelerate config`.", path, error.what()));
  }
}

}  // namespace accelerate
