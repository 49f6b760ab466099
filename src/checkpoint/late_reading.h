#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <utility>

namespace accelerate {

/// Reads the memory of a tensor at some later time, from any thread. Until it ends the bytes stay, whatever becomes of the
/// tensor, and keep their values: whoever asks the storage for a pointer to write by, as every operator that writes does, waits
/// for the end. Those who read do not wait, nor is anything seen of those who have such a pointer from before.
class LateReading {
 public:
  /// Whether the memory of `tensor` has an owner, and a storage that tells of writes: those of LibTorch 2.13 and later do.
  static bool is_possible(const at::Tensor& tensor);

  LateReading() = default;
  /// Begins one. It must be possible.
  explicit LateReading(const at::Tensor& tensor);
  LateReading(LateReading&& other) noexcept : memory_(std::move(other.memory_)) {}
  LateReading& operator=(LateReading&&) = delete;
  ~LateReading() { end(); }

  /// Lets go of the memory, and those who wait go on.
  void end() noexcept;

 private:
  struct Memory;

  std::shared_ptr<Memory> memory_;
};

}  // namespace accelerate
