#include <cstddef>
#include <cstdint>

#include "fuzz/launch_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  accelerate::testing::try_launch_input({reinterpret_cast<const char*>(data), size});
  return 0;
}
