#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Event.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "checkpoint/copy_on_write_guard.h"

namespace accelerate::detail {

/// Copies that are yet to be made, of memory that keeps its values until then (see CopyOnWriteGuard), or that nobody else has.
class DeferredCopies {
 public:
  /// Makes them, by several threads. A thread that waits to write to a source continues as soon as that one is copied, and
  /// memory of a device is given back when all are.
  void make();
  bool empty() const { return pieces_.empty(); }

 private:
  friend class HostCopies;
  struct Piece {
    std::shared_ptr<char> to;
    const char* from;  // null for bytes of a device
    uint64_t size;
    CopyOnWriteGuard reading;
    // The bytes of a device, and when it has written them.
    at::Tensor on_device = {};
    std::shared_ptr<const c10::Event> written = {};
  };

  std::vector<Piece> pieces_;
};

enum class CopyTime { now, later };

/// Copies of tensors in host memory, made all at once by several threads. The memory is kept for the next time: to fill pages
/// that the process does not have yet takes ten times as long as the copying. It is not pinned, which takes ten times as long
/// again: what comes from a device goes through a few small pieces that are.
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
  /// Copies all that cannot wait. The tensors that were added may change from here on: those of a CPU by operators, which wait
  /// for the copies that are still to be made; of those of a device there is a copy on the device until then, where at least
  /// twice as much memory is free. Where it is not, they cannot wait.
  DeferredCopies finish();
  /// Gives the memory back that no copy lies in.
  void release();

 private:
  struct Block {
    std::shared_ptr<char> bytes;
    uint64_t size = 0, used = 0;
  };
  struct Copy {
    at::Tensor source;  // as bytes; it may be gone otherwise before it is copied
    std::shared_ptr<char> to;
    CopyTime when;
    std::shared_ptr<const c10::Event> written;  // when a device has written `source`; null on a CPU
  };

  Block& block_for(uint64_t size);
  /// Those of `device` that may be made later: copies them on the device, or finds that they cannot wait.
  void put_aside(c10::Device device);
  /// Those of one time, in chunks that threads can take.
  DeferredCopies pieces_of(CopyTime when) const;

  std::vector<Block> blocks_;
  std::vector<Copy> copies_;
  std::unordered_map<c10::Device, uint64_t> put_aside_before_;
};

}  // namespace accelerate::detail
