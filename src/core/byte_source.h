#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Bytes with random access: a file, or memory. The input of the parsers of untrusted files.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  uint64_t size() const { return size_; }
  /// Its name in error messages, escaped: not a path to open.
  const std::string& name() const { return name_; }
  /// Fills `size` bytes from `offset` on. CheckpointError when there are fewer.
  virtual void read(void* bytes, uint64_t size, uint64_t offset) const = 0;
  /// All bytes, valid while the pointer is kept and writable; null when they must be read.
  virtual std::shared_ptr<char> memory() const { return nullptr; }
  /// Whether a checksum of all bytes has already been verified, so that inner checksums may be skipped.
  virtual bool is_verified() const { return false; }
  /// `size` bytes from `offset` on, checked against the size of the source before memory is asked for.
  std::string text(uint64_t offset, uint64_t size) const;
  /// Throws as `text` does when there are no `size` bytes at `offset`.
  void require(uint64_t offset, uint64_t size) const;

 protected:
  explicit ByteSource(std::string_view name);

  std::string name_;
  uint64_t size_ = 0;
};

/// Bytes in memory, which must outlive this.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string_view bytes, std::string_view name) : ByteSource(name), bytes_(bytes) { size_ = bytes.size(); }
  void read(void* bytes, uint64_t size, uint64_t offset) const override;

 private:
  std::string_view bytes_;
};

/// A section of another source, which must outlive this.
class SectionSource final : public ByteSource {
 public:
  /// CheckpointError when the section extends past the end of the other source.
  SectionSource(const ByteSource& whole, uint64_t offset, uint64_t size);
  void read(void* bytes, uint64_t size, uint64_t offset) const override;

 private:
  const ByteSource& whole_;
  uint64_t offset_;
};

}  // namespace accelerate::detail
