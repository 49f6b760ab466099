#pragma once

#include <accelerate/training/precision.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace accelerate {

class Logger;

/// How a scope casts; the dtype is that of the accelerator's precision.
struct AutocastOptions {
  /// Off: the scope calculates in the dtypes that its tensors have, also within another scope that casts.
  bool enabled = true;
  /// Keep the cast copy of a weight until the outermost scope ends. Default: as it is outside of the scope.
  std::optional<bool> cache_enabled = {};
};

/// The dtype that operators are cast to for `precision` on this kind of device. Nothing where they calculate as they are: for
/// `no`, and for `fp16` on a CPU. Only where it is float16 a GradScaler is needed. UsageError for `fp8`, and for a device that
/// has no such arithmetic.
std::optional<c10::ScalarType> autocast_dtype(Precision precision, c10::DeviceType device);

/// Warns through `logger`, once for each logger, where `precision` asks for a dtype and the device calculates in float32.
void warn_where_autocast_is_missing(Precision precision, c10::DeviceType device, const Logger& logger);

/// While it lives, operators of this thread on one kind of device cast their floating-point arguments as autocast decides. Its
/// end restores what was before, and that of the outermost one drops the cast copies of weights. Scopes end in the reverse of
/// the order in which they began.
class [[nodiscard]] AutocastScope {
 public:
  /// Casts to `dtype`.
  AutocastScope(c10::DeviceType device, c10::ScalarType dtype, AutocastOptions options = {});
  /// Casts as `autocast_dtype` says, and where it says nothing changes nothing.
  AutocastScope(Precision precision, c10::DeviceType device, AutocastOptions options = {});
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  /// What was before.
  struct Setting {
    c10::ScalarType dtype;
    bool enabled;
    bool cache_enabled;
  };
  void begin(c10::ScalarType dtype, const AutocastOptions& options);

  c10::DeviceType device_;
  std::optional<Setting> before_;
};

}  // namespace accelerate
