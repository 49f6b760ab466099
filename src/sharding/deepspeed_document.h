#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace accelerate::detail {

/// The DeepSpeed configuration that `given` is: the path of a JSON file, JSON text, or url-safe base64 of it. ConfigError when it
/// is none of them, or no object.
nlohmann::json read_deepspeed_document(const std::string& given);

/// The value at a path such as "zero_optimization.stage", or null. ConfigError where a part of the path is no section.
nlohmann::json deepspeed_value(const nlohmann::json& document, const std::string& path);

/// Replaces "auto" at a path by `value`. What is not there stays away.
void fill_auto(nlohmann::json& document, const std::string& path, const nlohmann::json& value);

/// ConfigError with the full path of the first key that C++ programs do not support. What only tunes DeepSpeed's own kernels and
/// cannot change results is accepted.
void check_deepspeed_keys(const nlohmann::json& document);

}  // namespace accelerate::detail
