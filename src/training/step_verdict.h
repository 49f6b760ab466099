#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Event.h>

#include <optional>

namespace accelerate::detail {

/// Whether a step was skipped: the device decides it, and the host learns it later, without waiting for what it has asked the
/// device to do since.
class StepVerdict {
 public:
  /// The device shall report `found_inf`, which is not 0 for a step that is skipped. Its copy may be recorded, and replayed.
  void ask(const at::Tensor& found_inf);
  /// The copy is under way, on the current stream.
  void expect();
  /// Waits for it.
  bool skipped();

 private:
  at::Tensor report_;
  std::optional<c10::Device> device_;
  std::optional<c10::Event> arrived_;
};

}  // namespace accelerate::detail
