#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/byte_source.h"
#include "formats/safetensors_header.h"

namespace accelerate::detail {

/// A safetensors file open for reading: its header at once, its tensors one by one or in part. The file is not trusted, see
/// parse_safetensors_header. The source must outlive this.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const ByteSource& source);

  const SafetensorsHeader& header() const { return header_; }
  /// The tensor of that name, or nullptr.
  const SafetensorsEntry* find(std::string_view name) const;
  /// Where the tensor's bytes begin in the file.
  uint64_t offset_of(const SafetensorsEntry& entry) const { return header_.data_start + entry.begin; }
  /// Fills `bytes` with the whole tensor.
  void read(const SafetensorsEntry& entry, void* bytes) const;
  /// Fills `bytes` with the part that `ranges` ([begin, end) for each of the first dimensions; the rest is whole) cut out, and
  /// reads no more of the file than that. UsageError for ranges outside the tensor, and for dtypes of less than a byte.
  void read_slice(const SafetensorsEntry& entry, std::span<const std::pair<int64_t, int64_t>> ranges, void* bytes) const;

 private:
  const ByteSource& source_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> places_;  // of names in header_.entries
};

}  // namespace accelerate::detail
