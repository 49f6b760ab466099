// Stands for the libraries of NVIDIA's driver and of NCCL: two GPUs, the second of which answers badly.
#include <cstring>

extern "C" {

struct Memory {
  unsigned long long total, free, used;
};

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::strncpy(text, "580.65.06", size);
  return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static int devices[2] = {0, 1};
  *device = &devices[index];
  return 0;
}

int nvmlDeviceGetName(void* device, char* text, unsigned size) {
  if (*static_cast<int*>(device) == 1) {
    std::memset(text, 'x', size);
  } else {
    std::strncpy(text, "Imagined 0", size);
  }
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  if (*static_cast<int*>(device) == 1) return 3;
  memory->total = 16ULL << 30;
  return 0;
}

int ncclGetVersion(int* version) {
  *version = 22803;
  return 0;
}
}
