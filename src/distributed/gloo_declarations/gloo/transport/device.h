// Declarations that torch's ProcessGroupGloo.hpp needs and the wheel does not ship. The definitions are in libtorch.
#pragma once

namespace gloo::transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};
}  // namespace gloo::transport
