#pragma once

#include <fstream>
#include <memory>
#include <regex>

#include "support/ranks.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

/// What differs from run to run is replaced: places by their file, seconds by T, process numbers by P.
inline std::string normalised(std::string text) {
  text = std::regex_replace(text, std::regex("[^ ]*tests/processes/"), "");
  text = std::regex_replace(text, std::regex("((?:group_)?scenes\\.cpp):[0-9]+"), "$1:N");
  text = std::regex_replace(text, std::regex("[0-9]+\\.[0-9]+ s"), "T s");
  text = std::regex_replace(text, std::regex("its process [0-9]+"), "its process P");
  return std::regex_replace(text, std::regex("Backend error: [^\n]*\n"), "");
}

/// A scene on several ranks. `per_machine` of them share a machine; 0: all do.
class Scene {
 public:
  Scene(const std::string& name, int size, Variables variables = {}, int per_machine = 0) {
    ranks_ = start_ranks({ACCELERATE_SCENES, name, folder_.name()}, size, variables, per_machine);
  }

  RunningProgram& rank(int number) { return *ranks_[static_cast<size_t>(number)]; }
  const std::string& folder() const { return folder_.name(); }
  void leave_file(const std::string& name) { std::ofstream(folder_ / name) << "here"; }

  /// What a rank printed until its end.
  std::string output(int number) { return normalised(rank(number).wait().output); }
  std::string errors(int number) { return normalised(rank(number).wait().errors); }
  std::string errors_so_far(int number) { return normalised(rank(number).errors()); }

 private:
  TemporaryFolder folder_;  // outlives the ranks
  std::vector<std::unique_ptr<RunningProgram>> ranks_;
};

}  // namespace accelerate::testing
