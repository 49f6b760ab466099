#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "residency/weight_store.h"

namespace accelerate::detail {

/// What one thread reads at a time: small enough for several threads to share a large weight, large enough to hide the cost of a
/// call.
constexpr uint64_t kPartSize = uint64_t{4} << 20;

/// The current stream of this thread on a device.
c10::Stream current_stream(c10::Device device);

/// The way of bytes to an accelerator: a stream of copies beside the computing, and pinned memory that files are read into.
///
/// The policy for streams: memory of the lane is filled by the lane's stream alone. A user of it makes its stream
/// wait for the `mark` of the filling; before it is filled again or freed, the lane `wait`s for the streams that computed with
/// it. On the host nobody waits but for a read, and for pinned memory to read into.
class CopyLane {
 public:
  /// Pinned memory for that many threads is taken when the first one reads.
  CopyLane(c10::Device device, int readers);
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  at::Tensor allocate(uint64_t bytes) const;
  /// Its stream is the current one of this thread until the guard ends. On a CPU nothing changes.
  c10::OptionalStreamGuard make_current() const { return c10::OptionalStreamGuard(stream_); }
  /// Begins to copy bytes. Those of pinned memory must stay until a `mark` that was made afterwards is reached.
  void copy(const at::Tensor& from, uint64_t from_offset, const at::Tensor& to, uint64_t to_offset, uint64_t size) const;
  /// Reads a part of a store, at most kPartSize, and begins to copy it. Threads may do so at once.
  void bring(const WeightStore& store, uint64_t offset, uint64_t size, const at::Tensor& to, uint64_t to_offset);
  /// What is reached when all copies that were begun so far have been made. Null on a CPU, where they have been.
  std::shared_ptr<const c10::Event> mark() const;
  /// Copies that begin from here on come after what `stream` was given so far.
  void wait(const c10::Stream& stream) const;
  /// Returns when all copies have been made.
  void synchronize() const;

 private:
  struct Buffer {
    at::Tensor bytes;
    std::shared_ptr<c10::Event> copied;  // what was read into it last; null before that
  };
  class Borrowed;
  Buffer take_buffer();

  c10::Device device_;
  int readers_;
  std::optional<c10::Stream> stream_;  // none on a CPU, which only tests use
  std::mutex mutex_;
  std::condition_variable returned_;
  std::deque<Buffer> buffers_;  // the one that was given back first is free first
  bool allocated_ = false;
};

}  // namespace accelerate::detail
