#include "json_file.h"

#include <accelerate/core/error.h>

#include <fstream>

namespace models {

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw accelerate::ConfigError(path + " cannot be opened. A folder that save_pretrained wrote is expected there.");
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    throw accelerate::ConfigError(path + " is not JSON: " + error.what());
  }
}

}  // namespace models
