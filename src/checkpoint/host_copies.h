#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <vector>

namespace accelerate {

/// Copies of tensors in host memory, made all at once by several threads. The memory is kept for the next time: to fill pages
/// that the process does not have yet takes ten times as long as the copying.
class HostCopies {
 public:
  HostCopies() = default;
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Forgets what was added and not copied. The memory of copies that are gone is used again.
  void begin();
  /// What will be a copy of `tensor` after `finish`. It lies in memory of its own for as long as it lives.
  at::Tensor add(const at::Tensor& tensor);
  /// Copies. The tensors that were added may change from here on.
  void finish();
  /// Gives the memory back that no copy lies in.
  void release();

 private:
  struct Block {
    std::shared_ptr<char> bytes;
    uint64_t size = 0, used = 0;
  };
  struct Copy {
    char* to;
    const char* from;
    uint64_t size;
  };

  at::Tensor add_plain(const at::Tensor& tensor);
  Block& block_for(uint64_t size);

  std::vector<Block> blocks_;
  std::vector<Copy> copies_;
  std::vector<at::Tensor> sources_;  // which may be gone otherwise before they are copied
  std::vector<c10::Device> devices_;  // that copies are on their way from
};

}  // namespace accelerate
