#include "config/default_config.h"

#include <fmt/format.h>

#include <filesystem>
#include <limits>

#include <accelerate/core/error.h>
#include "config/config_file.h"

namespace accelerate::detail {
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
  const auto processes = integer_of(read_config(path), "num_processes");
  if (!processes || *processes == -1) return std::nullopt;  // -1 stands for "to be given on the command line"
  if (*processes < 1 || *processes > std::numeric_limits<int>::max()) {
    throw ConfigError(fmt::format("{}: num_processes is {}; expected at least 1.", path, *processes));
  }
  return static_cast<int>(*processes);
}

}  // namespace accelerate::detail
