#include "big_model/available_memory.h"

#include <accelerate/core/error.h>

#include <fstream>

namespace accelerate::detail {

double available_host_memory(const std::string& meminfo) {
  std::ifstream file(meminfo);
  std::string line;
  const std::string title = "MemAvailable:";
  while (std::getline(file, line)) {
    if (!line.starts_with(title)) continue;
    try {
      return std::stod(line.substr(title.size())) * 1024;  // the kernel's kB are KiB
    } catch (const std::logic_error&) {
      break;
    }
  }
  throw Error("The available host memory is unknown: " + meminfo + " has no readable MemAvailable. Give max_memory.");
}

}  // namespace accelerate::detail
