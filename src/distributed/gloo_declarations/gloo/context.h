// Declarations that torch's ProcessGroupGloo.hpp needs and the wheel does not ship. The definitions are in libtorch.
#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
