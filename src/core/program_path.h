#pragma once

#include <string>

namespace accelerate::detail {

/// Where a program was found, or why it cannot be started.
struct ProgramPath {
  /// The file to execute.
  std::string path = {};
  /// 0, or what a shell would exit with: 127 when there is no such program, 126 when it may not be executed.
  int exit_code = 0;
  /// One sentence naming the program; empty when there is no problem.
  std::string problem = {};
};

/// Looks for `name` as execvp does: as a path when it has a slash, else in the folders of `search_path`.
ProgramPath find_program(const std::string& name, const std::string& search_path);

}  // namespace accelerate::detail
