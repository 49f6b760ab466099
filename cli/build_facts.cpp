#include "build_facts.h"

#include <filesystem>

namespace accelerate::detail::cli {

// CMake defines these macros for this file alone: their values differ between build trees, and nothing else should.
BuildFacts build_facts() {
  return {.compiler = ACCELERATE_COMPILER,
          .torch_version = ACCELERATE_TORCH_VERSION,
          .torch_folder = ACCELERATE_TORCH_FOLDER,
          .torch_has_cuda = ACCELERATE_HAS_CUDA,
          .has_nccl = ACCELERATE_HAS_NCCL,
          .helper_folder = ACCELERATE_HELPER_FOLDER};
}

std::string own_executable() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored);
}

}  // namespace accelerate::detail::cli
