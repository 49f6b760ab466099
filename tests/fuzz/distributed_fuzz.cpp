#include <cstddef>
#include <cstdint>

#include "fuzz/format_inputs.h"
#include "fuzz/modest_memory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  accelerate::testing::with_modest_memory({reinterpret_cast<const char*>(data), size}, accelerate::testing::try_distributed_input,
                                          4 * accelerate::testing::kFreeMemory);  // what is written again counts, too
  return 0;
}
