#include "residency/mapped_tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <accelerate/core/error.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/file.h"

namespace accelerate::detail {

at::Tensor mapped_tensor(const std::string& file, uint64_t offset, at::IntArrayRef shape, at::ScalarType dtype) {
  uint64_t bytes = c10::elementSize(dtype);
  for (const int64_t size : shape) bytes *= static_cast<uint64_t>(size);
  if (bytes == 0) return at::empty(shape, at::TensorOptions().dtype(dtype));
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page * page, length = offset + bytes - begin;
  const auto [descriptor, size] = open_regular_file(file, O_RDONLY);
  const bool whole = size >= offset + bytes;
  void* start =
      whole ? mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, static_cast<off_t>(begin)) : MAP_FAILED;
  const int reason = errno;
  close(descriptor);
  if (!whole) throw CheckpointError(file + " is truncated.");
  if (start == MAP_FAILED) throw CheckpointError("Cannot map " + file + ": " + std::strerror(reason) + ".");
  return at::from_blob(
      static_cast<char*>(start) + (offset - begin), shape, [start, length](void*) { munmap(start, length); },
      at::TensorOptions().dtype(dtype));
}

}  // namespace accelerate::detail
