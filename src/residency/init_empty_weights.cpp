#include <accelerate/core/launch_environment.h>
#include <accelerate/residency/init_empty_weights.h>

#include <cstdlib>

#include "residency/empty_scope.h"

namespace accelerate {

using namespace detail;
namespace {

bool include_buffers(const InitEmptyWeightsOptions& options) {
  constexpr const char* kVariable = "ACCELERATE_INIT_INCLUDE_BUFFERS";
  const char* text = std::getenv(kVariable);
  return options.include_buffers ? *options.include_buffers : text && parse_flag(text, kVariable);
}

}  // namespace

InitEmptyWeights::InitEmptyWeights(const InitEmptyWeightsOptions& options)
    : scope_(std::make_unique<EmptyScope>(c10::Device(c10::kMeta), include_buffers(options))) {}

InitEmptyWeights::~InitEmptyWeights() = default;

InitOnDevice::InitOnDevice(c10::Device device, const InitEmptyWeightsOptions& options)
    : scope_(std::make_unique<EmptyScope>(device, include_buffers(options))) {}

InitOnDevice::~InitOnDevice() = default;

}  // namespace accelerate
