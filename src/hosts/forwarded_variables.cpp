#include "hosts/forwarded_variables.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace accelerate::detail {
namespace {

constexpr std::array<std::string_view, 16> kPrefixes = {"ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_",
                                                        "NCCL_",       "GLOO_", "TORCH_",
                                                        "OMP_",        "MKL_",  "KMP_",
                                                        "GOMP_",       "CUDA_", "UCX_",
                                                        "FI_",         "MV2_",  "PYTHON",
                                                        "MLFLOW"};
constexpr std::array<std::string_view, 4> kNames = {"PATH", "LD_LIBRARY_PATH", "HF_HOME",
                                                    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"};
/// What begins so, and describes this host or another launch; and a secret, for command lines can be read by everyone.
constexpr std::array<std::string_view, 4> kStay = {"ACCELERATE_LAUNCH_ID", "ACCELERATE_FAILURE_NOTES",
                                                   "ACCELERATE_LAUNCH_UNTIL_STDIN_CLOSES", "ACCELERATE_RENDEZVOUS_SECRET"};

}  // namespace

bool is_forwarded(const std::string& name) {
  if (std::find(kStay.begin(), kStay.end(), name) != kStay.end()) return false;
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || std::any_of(kPrefixes.begin(), kPrefixes.end(), begins);
}

}  // namespace accelerate::detail
