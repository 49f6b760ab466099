#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

#include "core/byte_sink.h"

namespace accelerate::detail {

/// Writes an archive of stored entries as torch does: in a folder, the bytes of each member at a multiple of 64, checksums
/// behind them, no times. The same members give the same bytes. The sink outlives the writer.
class ZipWriter {
 public:
  /// `folder` is the first part of every name.
  ZipWriter(ByteSink& sink, std::string folder);

  /// Begins a member of exactly `size` bytes.
  void begin(std::string_view name, uint64_t size);
  /// The next bytes of the member that was begun. UsageError when they are more than it was said to have.
  void write(const void* bytes, uint64_t size);
  /// A whole member.
  void add(std::string_view name, std::string_view bytes);
  /// Writes the directory. Nothing may follow.
  void finish();

  /// A number made from names and checksums of the members so far, as torch puts into its archives: equal contents have equal
  /// ones. Exactly torch's where the standard library is libstdc++, as in its wheels.
  std::string fingerprint() const;

 private:
  struct Member {
    std::string name;
    uint64_t size = 0, header = 0, written = 0;
    uint32_t crc = 0;
    bool large = false;
  };

  void emit(std::string_view bytes);
  void end();
  std::string extra64(const Member& member, bool packed_size) const;

  ByteSink& sink_;
  std::string folder_;
  uint64_t position_ = 0, count_ = 0, crcs_ = 0;
  Member member_;
  bool open_ = false;
  std::string directory_;
  std::unordered_set<std::string> names_;
};

}  // namespace accelerate::detail
