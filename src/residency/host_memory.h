#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <string>

#include "residency/weight_store.h"

namespace accelerate::detail {

/// A weight that waits in host memory, of which `bytes` is all. Changes are made there.
std::shared_ptr<WeightStore> store_in_memory(at::Tensor bytes);

/// All bytes of a tensor that fills its storage in order, on the same storage.
at::Tensor bytes_of(const at::Tensor& tensor);

/// Memory of its own, page aligned, that the system has back as soon as it is freed. The C library's heap keeps much of what is
/// freed: once a mapping of up to 32 MiB was freed, pieces up to that size come from arenas, several for each thread, where what
/// still lives keeps the pages around it. `scrap` is such memory that nobody uses any more, or undefined: its pages are used
/// again, since new ones cost more to fill.
at::Tensor mapped_memory(uint64_t bytes, at::Tensor scrap = {});

/// Memory for weights that come and go: mapped, unless it is so little that a mapping would waste a part of its last page.
at::Tensor host_slot(uint64_t bytes, at::Tensor scrap);

/// Page-locked memory, which an accelerator reads by DMA. Pages that threads have touched and that are locked then are had
/// several times faster than pinned memory of torch, which also rounds every piece up to a power of two.
at::Tensor pinned_memory(uint64_t bytes);

/// Memory of zeros on a file of its own in `folder`, which the system writes back and evicts when host memory is short. The file
/// has no name, and is gone with it. FileAccessError when the folder cannot be written to or has no room.
at::Tensor file_memory(uint64_t bytes, const std::string& folder);
bool is_in_file(const at::Tensor& tensor);
/// Zeros like a tensor, in a file of the same folder where that one is in a file.
at::Tensor zeros_beside(const at::Tensor& tensor);
/// Moves a tensor to a file beside another one that is in a file.
void keep_beside(at::Tensor& state, const at::Tensor& tensor);

/// Pinned memory for many weights, in one piece.
class PinnedMemory {
 public:
  /// A weight of that size will be taken.
  void expect(uint64_t bytes);
  at::Tensor take(uint64_t bytes);

 private:
  at::Tensor memory_;
  uint64_t used_ = 0, expected_ = 0;
};

}  // namespace accelerate::detail
