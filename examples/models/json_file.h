#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace models {

/// The content of a JSON file; accelerate::ConfigError names the file when it cannot be read or is not JSON.
nlohmann::json read_json(const std::string& path);

}  // namespace models
