#include <cstdint>

#include "fuzz/config_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  accelerate::testing::check_config_input({reinterpret_cast<const char*>(data), size});
  return 0;
}
