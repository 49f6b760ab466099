#include "training/serial_scope.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace accelerate::detail {
namespace {

using SetThreads = void (*)(int);

/// Of the OpenMP that LibTorch has loaded; null where it was built with another pool of threads. Linking one of our own could
/// bring a second OpenMP into the process.
SetThreads openmp_set_threads() {
  static const auto function = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  return function;
}

}  // namespace

SerialScope::SerialScope() : threads_(at::get_num_threads()) {
  if (threads_ > 1 && openmp_set_threads()) openmp_set_threads()(1);
}

SerialScope::~SerialScope() {
  if (threads_ > 1 && openmp_set_threads()) openmp_set_threads()(threads_);
}

}  // namespace accelerate::detail
