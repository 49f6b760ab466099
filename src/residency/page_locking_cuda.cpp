#include <cuda_runtime_api.h>

#include "residency/page_locking.h"

namespace accelerate::detail {

bool lock_pages(void* memory, uint64_t size) {
  if (cudaHostRegister(memory, size, cudaHostRegisterPortable) == cudaSuccess) return true;
  (void)cudaGetLastError();  // which the next call of anybody would report otherwise
  return false;
}

void unlock_pages(void* memory) {
  if (cudaHostUnregister(memory) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace accelerate::detail
