#pragma once

#include <string>

namespace accelerate::detail::cli {

/// What was decided when this program was built.
struct BuildFacts {
  std::string compiler;
  /// Empty: built without LibTorch.
  std::string torch_version;
  /// The folder that LibTorch was found in.
  std::string torch_folder;
  bool torch_has_cuda;
  bool has_nccl;
  /// From the folder of this executable to the one of the programs that it starts.
  std::string helper_folder;
};

BuildFacts build_facts();

/// The file that this program was started from, with links followed.
std::string own_executable();

}  // namespace accelerate::detail::cli
