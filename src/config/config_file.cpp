#include "config/config_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <accelerate/core/error.h>
#include "config/config_document.h"
#include "config/config_values.h"
#include "config/python_text.h"
#include "core/file.h"

namespace accelerate::detail {
namespace {

/// No real configuration is this large; it would only keep the parser busy.
constexpr uint64_t kLargestConfig = 1u << 20;

bool is_json_name(const std::string& path) { return path.ends_with(".json"); }

void check_is_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    if (!missing) throw ConfigError(fmt::format("{} cannot be read: {}.", path, std::strerror(errno)));
    throw ConfigError(
        fmt::format("{} does not exist. `accelerate config` writes a configuration; --config_file chooses another.", path));
  }
  if (S_ISDIR(status.st_mode)) throw ConfigError(fmt::format("{} is a folder; give the path of a file in it.", path));
  if (!S_ISREG(status.st_mode)) {
    throw ConfigError(
        fmt::format("{} is {}, not a regular file. Save the configuration to a file first.", path, file_kind(status.st_mode)));
  }
}

/// Replaces empty mappings inside a mapping by null, at any depth.
void empty_to_null(nlohmann::json& mapping) {
  for (auto& nested : mapping) {
    if (nested.is_object() && nested.empty()) {
      nested = nullptr;
    } else if (nested.is_object()) {
      empty_to_null(nested);
    }
  }
}

/// What Python writes: no keys without a value, and no empty mappings.
nlohmann::json stored_fields(const Config& config) {
  nlohmann::json fields = config.fields, stored = nlohmann::json::object();
  empty_to_null(fields);
  for (auto& item : fields.items()) {
    if (!item.value().is_null()) stored[item.key()] = std::move(item.value());
  }
  return stored;
}

/// `path` with symlinks resolved, including dangling ones.
std::filesystem::path target_of(const std::string& path) {
  std::filesystem::path target = path;
  std::error_code problem;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(target, problem); ++links) {
    const auto next = std::filesystem::read_symlink(target, problem);
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return target;
}

void check_may_write(const std::filesystem::path& target) {
  struct stat status {};
  if (::stat(target.c_str(), &status) != 0) return;
  if (S_ISDIR(status.st_mode))
    throw ConfigError(fmt::format("Cannot write {}: it is a folder; give the path of a file in it.", target.string()));
  if (!S_ISREG(status.st_mode))
    throw ConfigError(fmt::format("Cannot write {}: it is {}, not a regular file.", target.string(), file_kind(status.st_mode)));
  if (::access(target.c_str(), W_OK) != 0) {
    throw ConfigError(fmt::format("Cannot write {}: {}.", target.string(), std::strerror(errno)));
  }
}

void check_text(std::string_view text, const std::string& path) {
  if (text.size() > kLargestConfig) {
    throw ConfigError(fmt::format("{}: a configuration file must not be larger than {} KiB.", path, kLargestConfig >> 10));
  }
  try {
    code_points(text);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}. Save the file as UTF-8.", path, error.what()));
  }
}

}  // namespace

Config parse_config(std::string_view text, const std::string& path) {
  check_text(text, path);
  auto document = is_json_name(path) ? read_json_document(text, path) : read_yaml_document(text, path);
  return {path, complete_values(std::move(document), path)};
}

std::string read_config_text(const std::string& path) {
  check_is_file(path);
  try {
    const InputFile file(path);
    std::string text(std::min(file.size(), kLargestConfig + 1), '\0');
    file.read(text.data(), text.size(), 0);
    return text;
  } catch (const CheckpointError& error) {
    throw ConfigError(error.what());
  }
}

Config read_config(const std::string& path) { return parse_config(read_config_text(path), path); }

nlohmann::json read_config_values(const std::string& path) {
  const std::string text = read_config_text(path);
  check_text(text, path);
  return read_yaml_document(text, path).values;
}

Config make_config(const nlohmann::json& values, const std::string& path) {
  return {path, complete_values({.values = values}, path)};
}

std::string config_text(const Config& config, const std::string& path) {
  return is_json_name(path) ? config_json(config) : python_yaml(stored_fields(config));
}

std::string config_json(const Config& config) { return python_json(stored_fields(config)); }

void check_config_target(const std::string& path) { check_may_write(target_of(path)); }

void write_config_text(const std::string& text, const std::string& path) {
  const std::filesystem::path target = target_of(path);
  check_may_write(target);
  std::error_code problem;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), problem);
  if (problem)
    throw ConfigError(fmt::format("Cannot create the folder {}: {}.", target.parent_path().string(), problem.message()));
  try {
    OutputFile file(target);
    file.copy_permissions();
    file.write(text.data(), text.size());
    file.commit();
  } catch (const CheckpointError& error) {
    throw ConfigError(error.what());
  }
}

void write_config(const Config& config, const std::string& path) { write_config_text(config_text(config, path), path); }

bool is_sagemaker(const Config& config) { return config.fields.value("compute_environment", "") == "AMAZON_SAGEMAKER"; }

std::span<const ConfigKey> keys_of(const Config& config) {
  return is_sagemaker(config) ? sagemaker_config_keys() : local_config_keys();
}

std::optional<int64_t> integer_of(const Config& config, std::string_view key) {
  const auto text = text_of(config, key);
  int64_t number = 0;
  if (!text || std::from_chars(text->data(), text->data() + text->size(), number).ec != std::errc()) return std::nullopt;
  return number;
}

bool flag_of(const Config& config, std::string_view key) {
  const auto text = text_of(config, key);
  return text && parse_flag(*text, std::string(key));
}

std::optional<std::string> text_of(const Config& config, std::string_view key) {
  const auto found = config.fields.find(key);
  if (found == config.fields.end() || found->is_null()) return std::nullopt;
  if (found->is_number_float()) return python_number(found->get<double>());
  return found->is_string() ? found->get<std::string>() : found->dump();
}

}  // namespace accelerate::detail
