#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <utility>

namespace accelerate::detail {

/// Reads the memory of a tensor at some later time, from any thread. Until it ends the bytes stay, whatever becomes of the
/// tensor, and keep their values: a thread that asks the storage for a mutable pointer, as every operator that writes does, waits
/// for the end. Those who read do not wait, nor is anything seen of those who have such a pointer from before.
class CopyOnWriteGuard {
 public:
  /// Whether the memory of `tensor` has an owner, and a storage that tells of writes: those of LibTorch 2.13 and later do.
  static bool is_possible(const at::Tensor& tensor);

  CopyOnWriteGuard() = default;
  /// Begins one. It must be possible.
  explicit CopyOnWriteGuard(const at::Tensor& tensor);
  CopyOnWriteGuard(CopyOnWriteGuard&& other) noexcept : memory_(std::move(other.memory_)) {}
  CopyOnWriteGuard& operator=(CopyOnWriteGuard&&) = delete;
  ~CopyOnWriteGuard() { end(); }

  /// Releases the memory, and waiting writers continue.
  void end() noexcept;

 private:
  struct Memory;

  std::shared_ptr<Memory> memory_;
};

}  // namespace accelerate::detail
