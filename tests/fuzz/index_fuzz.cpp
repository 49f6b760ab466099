#include <cstddef>
#include <cstdint>

#include "fuzz/format_inputs.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  accelerate::testing::try_index_input({reinterpret_cast<const char*>(data), size});
  return 0;
}
