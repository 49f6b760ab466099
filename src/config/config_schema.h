#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Every key that a configuration file may hold: the one list that loading, `accelerate config` and launching go by.
namespace accelerate::detail {

/// What a value of a key is. Text may be a number that nobody put into quotes; a number and a flag may be in quotes.
enum class ConfigType { text, integer, flag, flag_or_text, mapping, list };

struct ConfigKey {
  std::string_view name;
  ConfigType type;
  /// The default as JSON, or nothing for a key that must be given.
  std::string_view fallback;
  /// Allowed words, separated by spaces, or nothing when any value may stand here.
  std::string_view choices = {};
  /// Why the key has no effect on C++ programs, or nothing when it has one. The value is kept and passed on all the same.
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

/// "a whole number", "one of no, fp16, bf16, fp8": what may stand at `key`, for messages.
std::string expected_of(const ConfigKey& key);

}  // namespace accelerate::detail
