#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <accelerate/training/autocast.h>
#include <c10/macros/Export.h>

// Their header includes all of ATen.
namespace at::autocast {
TORCH_API bool is_autocast_enabled(c10::DeviceType device_type);
TORCH_API void set_autocast_enabled(c10::DeviceType device_type, bool enabled);
TORCH_API c10::ScalarType get_autocast_dtype(c10::DeviceType device_type);
TORCH_API void set_autocast_dtype(c10::DeviceType device_type, c10::ScalarType dtype);
TORCH_API void clear_cache();
TORCH_API int increment_nesting();
TORCH_API int decrement_nesting();
TORCH_API bool is_autocast_cache_enabled();
TORCH_API void set_autocast_cache_enabled(bool enabled);
}  // namespace at::autocast

namespace accelerate {
namespace {

bool has_bf16_arithmetic(c10::DeviceType device) {
  using c10::DeviceType;
  return device == DeviceType::CPU || device == DeviceType::CUDA || device == DeviceType::XPU || device == DeviceType::HPU ||
         device == DeviceType::MPS;
}

bool has_fp16_arithmetic(c10::DeviceType device) { return has_bf16_arithmetic(device) && device != c10::DeviceType::CPU; }

[[noreturn]] void refuse_precision(Precision precision, c10::DeviceType device, const std::string& advice) {
  throw UsageError(std::string("mixed_precision is ") + to_string(precision) + " and the device is " +
                   c10::DeviceTypeName(device, true) + ": " + advice);
}

}  // namespace

std::optional<c10::ScalarType> autocast_dtype(Precision precision, c10::DeviceType device) {
  switch (precision) {
    case Precision::no:
      return {};
    case Precision::fp16:
      if (device == c10::DeviceType::CPU) return {};
      if (!has_fp16_arithmetic(device)) refuse_precision(precision, device, "it has no autocast to float16. Use bf16 or no.");
      return c10::ScalarType::Half;
    case Precision::bf16:
      if (!has_bf16_arithmetic(device)) refuse_precision(precision, device, "it has no autocast to bfloat16. Use fp16 or no.");
      return c10::ScalarType::BFloat16;
    case Precision::fp8:
      break;
  }
  refuse_precision(precision, device,
                   "FP8 layers come from Transformer Engine, torchao or MS-AMP, which support Python only. Use bf16.");
}

void warn_where_autocast_is_missing(Precision precision, c10::DeviceType device, const Logger& logger) {
  if (precision == Precision::no || autocast_dtype(precision, device)) return;
  logger.warning_once(
      "mixed_precision is {} and the device is {}: training runs in float32, without a gradient scaler. Use bf16 to save time "
      "and memory on this device.",
      to_string(precision), c10::DeviceTypeName(device, true));
}

AutocastScope::AutocastScope(c10::DeviceType device, c10::ScalarType dtype, AutocastOptions options) : device_(device) {
  begin(dtype, options);
}

AutocastScope::AutocastScope(Precision precision, c10::DeviceType device, AutocastOptions options) : device_(device) {
  if (const auto dtype = autocast_dtype(precision, device)) begin(*dtype, options);
}

void AutocastScope::begin(c10::ScalarType dtype, const AutocastOptions& options) {
  using namespace at::autocast;
  before_ = {get_autocast_dtype(device_), is_autocast_enabled(device_), is_autocast_cache_enabled()};
  set_autocast_enabled(device_, options.enabled);
  set_autocast_dtype(device_, dtype);
  set_autocast_cache_enabled(options.cache_enabled.value_or(before_->cache_enabled));
  increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!before_) return;
  using namespace at::autocast;
  if (decrement_nesting() == 0) clear_cache();
  set_autocast_enabled(device_, before_->enabled);
  set_autocast_dtype(device_, before_->dtype);
  set_autocast_cache_enabled(before_->cache_enabled);
}

}  // namespace accelerate
