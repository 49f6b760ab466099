#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

/// The schema of configuration files, used by loading, `accelerate config` and launching.
namespace accelerate::detail {

/// The type of a key's value. Text may be an unquoted number; numbers and flags may be quoted.
enum class ConfigType { text, integer, flag, flag_or_text, mapping, list };

struct ConfigKey {
  std::string_view name;
  ConfigType type;
  /// The default as JSON, or nothing for a required key.
  std::string_view fallback;
  /// Allowed words, separated by spaces, or nothing when any value is allowed.
  std::string_view choices = {};
  /// Why the key has no effect on C++ programs, or nothing when it has one. The value is kept and passed on anyway.
  std::string_view without_effect = {};
};

/// Keys of a file whose `compute_environment` is LOCAL_MACHINE.
std::span<const ConfigKey> local_config_keys();

/// Keys of a file whose `compute_environment` is AMAZON_SAGEMAKER.
std::span<const ConfigKey> sagemaker_config_keys();

/// The key of that name, or null.
const ConfigKey* find_config_key(std::span<const ConfigKey> keys, std::string_view name);

/// The words of `choices`.
std::vector<std::string> config_choices(const ConfigKey& key);

/// "an integer", "one of no, fp16, bf16, fp8": the values that `key` accepts, for messages.
std::string expected_of(const ConfigKey& key);

}  // namespace accelerate::detail
