#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace accelerate::detail {

/// Work for a device that was recorded, to be done again as it is: same kernels, same memory.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Begins to do it, on the current stream.
  virtual void replay() = 0;
};

/// The recorder.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;
  /// Runs `body`, whose work for the device is not done but recorded. Memory that it leaves allocated is its own as long as its
  /// tensors live. What `body` throws, and what the device cannot record, comes out, and nothing has happened.
  virtual std::unique_ptr<DeviceGraph> record(const std::function<void()>& body) = 0;
};

/// That of this LibTorch: for CUDA, where it is a LibTorch for CUDA; null where there is none. Graphs of one share their memory:
/// their replays must not overlap.
std::unique_ptr<GraphDevice> make_graph_device(c10::Device device);

}  // namespace accelerate::detail
