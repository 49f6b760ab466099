#pragma once

#include <cstdint>
#include <string>

namespace accelerate::detail {

/// Where bytes go one after the other: a file, or memory.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(const void* bytes, uint64_t size) = 0;
  /// The same, and returns the CRC-32 of these bytes. It works in chunks that are still in the cache when they are written, so
  /// that the checksum costs no second pass over memory.
  virtual uint32_t write_summed(const void* bytes, uint64_t size);
};

/// Bytes kept in memory.
class MemorySink final : public ByteSink {
 public:
  void write(const void* bytes, uint64_t size) override { bytes_.append(static_cast<const char*>(bytes), size); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace accelerate::detail
