#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "config/config_schema.h"
#include "config/default_config.h"

/// Configuration files, as Python Accelerate reads and writes them.
namespace accelerate::detail {

/// A configuration. `fields` holds every key of its schema, with the file's value or the default.
struct Config {
  std::string path = {};
  nlohmann::json fields = nlohmann::json::object();
};

/// The configuration in `text`: JSON when `path` ends in .json, else YAML. Keys of older versions are brought up to date.
/// ConfigError names the file, the line, what was expected and, for an unknown key, the closest one.
Config parse_config(std::string_view text, const std::string& path);

/// The same for a file. ConfigError when it does not exist, is not a regular file, or cannot be read.
Config read_config(const std::string& path);

/// The bytes of a file, up to one more than a configuration may have. ConfigError as for `read_config`.
std::string read_config_text(const std::string& path);

/// The keys and values of a file as they are written, without defaults and schema. JSON is YAML too.
nlohmann::json read_config_values(const std::string& path);

/// A configuration made of `values` and the defaults of its schema. ConfigError when `values` does not fit the schema.
Config make_config(const nlohmann::json& values, const std::string& path);

/// The bytes that Python writes for the same configuration to a file of that name: JSON for .json, else YAML. Keys without a
/// value and empty mappings are left out.
std::string config_text(const Config& config, const std::string& path);

/// The same as JSON, whatever the name of the file: `accelerate config default` writes this.
std::string config_json(const Config& config);

/// ConfigError when `path` is not writable, as far as can be checked without writing.
void check_config_target(const std::string& path);

/// Replaces the content of `path` by `text` atomically: symlinks are followed, permissions kept, missing folders created.
/// ConfigError names the file, whose old content is kept.
void write_config_text(const std::string& text, const std::string& path);

/// Writes `config` to `path` in the format of its name.
void write_config(const Config& config, const std::string& path);

/// The schema of `config`.
std::span<const ConfigKey> keys_of(const Config& config);

/// True for a configuration of Amazon SageMaker.
bool is_sagemaker(const Config& config);

/// The value of an integer key, or nothing when it has none. Numbers in quotes count.
std::optional<int64_t> integer_of(const Config& config, std::string_view key);

/// The value of a flag, words such as "no" included.
bool flag_of(const Config& config, std::string_view key);

/// The value of a key as text, or nothing when it has none.
std::optional<std::string> text_of(const Config& config, std::string_view key);

}  // namespace accelerate::detail
