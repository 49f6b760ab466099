#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <accelerate/core/error.h>
#include "config/config_file.h"

namespace accelerate::testing {

using namespace detail;

/// What must hold for any bytes at all: they are a configuration or a ConfigError, and a configuration that was read is written
/// in both formats and read back as the same. Throws std::logic_error when it does not hold.
inline void check_config_input(std::string_view bytes) {
  for (const char* path : {"input.yaml", "input.json"}) {
    Config config;
    try {
      config = parse_config(bytes, path);
    } catch (const ConfigError& error) {
      if (!std::string_view(error.what()).starts_with(path))
        throw std::logic_error(std::string("no file is named: ") + error.what());
      continue;
    }
    const std::string yaml = config_text(config, "again.yaml");
    if (yaml.size() > 1u << 20) continue;  // aliases and escapes may make more of a file than is read
    if (config_text(parse_config(yaml, "again.yaml"), "again.yaml") != yaml)
      throw std::logic_error("YAML came back changed: " + yaml);
    if (yaml.find(": .inf") != std::string::npos || yaml.find(".nan") != std::string::npos ||
        yaml.find("- .inf") != std::string::npos || yaml.find("-.inf") != std::string::npos) {
      continue;  // JSON has no such numbers
    }
    const std::string json = config_text(config, "again.json");
    if (config_text(parse_config(json, "again.json"), "again.json") != json)
      throw std::logic_error("JSON came back changed: " + json);
  }
}

}  // namespace accelerate::testing
