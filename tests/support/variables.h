#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <utility>

namespace accelerate::testing {

/// Variables as `accelerate launch` sets them, for the length of a test.
class Variables {
 public:
  explicit Variables(std::map<std::string, std::string> variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : variables_) ::unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::map<std::string, std::string> variables_;
};

}  // namespace accelerate::testing
