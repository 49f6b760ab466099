#pragma once

#include <accelerate/distributed/nested.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

namespace accelerate::detail {

/// Moves batches to a device, beside what runs there when it may. One batch is on its way at a time.
class DeviceFeed {
 public:
  /// Without a device batches stay where they are. `non_blocking`: copy on a stream of its own.
  DeviceFeed(std::optional<at::Device> device, bool non_blocking);
  /// Starts on its way what the next `receive` is for.
  void send(const Leaves& batch);
  /// From now on the batch can be used by what the current stream is given.
  void receive(const Leaves& batch);
  /// False when there is nothing to do.
  bool active() const { return device_.has_value(); }

 private:
  std::optional<at::Device> device_;
  std::optional<c10::Stream> side_;
  std::optional<c10::Event> copied_;
};

}  // namespace accelerate::detail
