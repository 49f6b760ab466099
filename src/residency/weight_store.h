#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <string>

#include "core/byte_source.h"

namespace accelerate::detail {

/// Where the bytes of a weight live while they are not where they are computed with.
class WeightStore {
 public:
  virtual ~WeightStore() = default;

  uint64_t size() const { return size_; }
  /// What errors call it.
  virtual std::string where() const = 0;
  /// Fills `to` with `size` bytes from `offset` on. Threads may read at once. CheckpointError when they cannot be had.
  virtual void read(void* to, uint64_t size, uint64_t offset) const = 0;
  /// The same where it is done pass after pass, into a large piece of host memory.
  virtual void read_repeatedly(void* to, uint64_t size, uint64_t offset) const { read(to, size, offset); }
  /// All its bytes, where they are in pinned memory: a device reads them by DMA. Else null.
  virtual const at::Tensor* fetchable() const { return nullptr; }
  /// Whether it takes changes.
  virtual bool writable() const { return false; }
  /// Replaces all bytes. Only for a store that is writable.
  virtual void write(const void* from);

 protected:
  explicit WeightStore(uint64_t size) : size_(size) {}

 private:
  uint64_t size_;
};

/// A file that is read where it lies and never changed: a weight in somebody's checkpoint. The file stays open, so that it may be
/// renamed or removed meanwhile; a change of it is noticed.
class CheckpointFile;

/// Opens a file for homes in it. CheckpointError when it cannot be opened.
std::shared_ptr<const CheckpointFile> open_checkpoint_file(const std::string& path);
/// A weight that is `size` bytes of `file` from `offset` on. CheckpointError when the file is shorter.
std::shared_ptr<WeightStore> store_in_file(std::shared_ptr<const CheckpointFile> file, uint64_t offset, uint64_t size);
/// A weight that is a file of its own, of raw bytes. It takes changes where it is ours; one of somebody else's is noticed. The
/// file may still be `staged` under another name, and is renamed to `path` before it is used.
std::shared_ptr<WeightStore> store_of_file(const std::string& path, uint64_t size, bool writable, const std::string& staged = "");

}  // namespace accelerate::detail
