#pragma once

#include <string>

namespace accelerate::detail::cli {

/// Facts about this build.
struct BuildFacts {
  std::string compiler;
  /// Empty: built without LibTorch.
  std::string torch_version;
  /// The folder that LibTorch was found in.
  std::string torch_folder;
  bool torch_has_cuda;
  bool has_nccl;
  /// Relative path from the folder of this executable to that of its helper programs.
  std::string helper_folder;
};

BuildFacts build_facts();

/// The path of this executable, with symlinks resolved.
std::string own_executable();

}  // namespace accelerate::detail::cli
