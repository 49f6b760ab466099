#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Bytes that can be read at any place: a file, or memory. What parsers of untrusted files read from.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  uint64_t size() const { return size_; }
  /// What errors call it, escaped: not a path to open.
  const std::string& name() const { return name_; }
  /// Fills `size` bytes from `offset` on. CheckpointError when there are fewer.
  virtual void read(void* bytes, uint64_t size, uint64_t offset) const = 0;
  /// Where the bytes lie, all of them, for those who keep this pointer; they may be changed there. Null when they must be read.
  virtual std::shared_ptr<char> memory() const { return nullptr; }
  /// Whether they have been compared with a checksum already, so that those inside need not be.
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

/// Bytes that lie in memory already and outlive this.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string_view bytes, std::string_view name) : ByteSource(name), bytes_(bytes) { size_ = bytes.size(); }
  void read(void* bytes, uint64_t size, uint64_t offset) const override;

 private:
  std::string_view bytes_;
};

/// Some bytes of another source, as if they were all. The other outlives this.
class SectionSource final : public ByteSource {
 public:
  /// CheckpointError when the section reaches beyond the other's end.
  SectionSource(const ByteSource& whole, uint64_t offset, uint64_t size);
  void read(void* bytes, uint64_t size, uint64_t offset) const override;

 private:
  const ByteSource& whole_;
  uint64_t offset_;
};

}  // namespace accelerate::detail
