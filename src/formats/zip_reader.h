#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/byte_source.h"

namespace accelerate::detail {

/// A member of an archive. `offset` is where its bytes begin in the file; they are stored as they are.
struct ZipEntry {
  std::string name;
  uint64_t offset = 0, size = 0;
  uint32_t crc = 0;
};

/// The members of a zip archive of stored entries, such as torch.save writes, listed without reading them. The archive is not
/// trusted: members lie inside the file, do not overlap, and have unique names, else CheckpointError names the file. The source
/// must outlive the reader.
class ZipReader {
 public:
  explicit ZipReader(const ByteSource& source);

  /// In the order of the archive's directory.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// The member with that name, or nullptr.
  const ZipEntry* find(std::string_view name) const;
  /// False when every checksum is 0: torch.save leaves them out on request (torch.serialization.set_crc32_options).
  bool has_checksums() const { return has_checksums_; }
  /// The bytes of a member; CheckpointError when their checksum is not the archive's.
  std::string read(const ZipEntry& entry) const;
  /// Reads a member in pieces and throws like `read`.
  void verify(const ZipEntry& entry) const;
  /// For those who read the bytes themselves: throws unless `crc`, computed from them, is the archive's.
  void require_crc(const ZipEntry& entry, uint32_t crc) const;

 private:
  const ByteSource& source_;
  std::vector<ZipEntry> entries_;
  bool has_checksums_ = false;
  std::unordered_map<std::string_view, size_t> places_;  // of names in entries_
};

/// Does it begin as a zip archive does?
bool looks_like_zip(const ByteSource& source);

}  // namespace accelerate::detail
