#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <vector>

#include "checkpoint/late_reading.h"

namespace accelerate {

/// Copies that are yet to be made, of memory that keeps its values until then (see LateReading).
class LateCopies {
 public:
  /// Makes them, by several threads. Those who wait to write to one of the sources go on as soon as that one is copied.
  void make();
  bool empty() const { return pieces_.empty(); }

 private:
  friend class HostCopies;
  struct Piece {
    std::shared_ptr<char> to;
    const char* from;
    uint64_t size;
    LateReading reading;
  };

  std::vector<Piece> pieces_;
};

enum class CopyTime { now, later };

/// Copies of tensors in host memory, made all at once by several threads. The memory is kept for the next time: to fill pages
/// that the process does not have yet takes ten times as long as the copying.
class HostCopies {
 public:
  HostCopies() = default;
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Forgets what was added and not copied. The memory of copies that are gone is used again.
  void begin();
  /// What will be a copy of `tensor` after `finish`, or where it may be `later` and is worth it, when what `finish` returns was
  /// made. It lies in memory of its own for as long as it lives.
  at::Tensor add(const at::Tensor& tensor, CopyTime when = CopyTime::now);
  /// Copies all that cannot wait. The tensors that were added may change from here on: operators wait for the copies that are
  /// still to be made.
  LateCopies finish();
  /// Gives the memory back that no copy lies in.
  void release();

 private:
  struct Block {
    std::shared_ptr<char> bytes;
    uint64_t size = 0, used = 0;
  };
  struct Copy {
    at::Tensor source;  // which may be gone otherwise before it is copied
    std::shared_ptr<char> to;
    CopyTime when;
  };

  at::Tensor add_plain(const at::Tensor& tensor, CopyTime when);
  Block& block_for(uint64_t size);
  /// Those of one time, in pieces that threads can share out.
  LateCopies pieces_of(CopyTime when) const;

  std::vector<Block> blocks_;
  std::vector<Copy> copies_;
  std::vector<c10::Device> devices_;  // that copies are on their way from
};

}  // namespace accelerate
