#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// The header of a safetensors file: bytes only, no torch. The input is not trusted.
namespace accelerate::detail {

/// One tensor of a file. `begin` and `end` count from the start of the data, which follows the header.
struct SafetensorsEntry {
  std::string name;
  /// As the format spells it: "F32", "BF16", "I64", "BOOL", ...
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  std::deque<std::pair<std::string, std::string>> metadata;
  /// Where the data starts in the file.
  uint64_t data_start = 0;
};

/// Bits of one element, or 0 for a dtype the format does not have.
int safetensors_dtype_bits(std::string_view dtype);

/// The length of the header whose first eight bytes these are. CheckpointError, naming `file`, when the file of
/// `file_size` bytes cannot hold it.
uint64_t safetensors_header_size(std::string_view first_bytes, uint64_t file_size, const std::string& file);

/// Reads the JSON of a header. Every entry is checked against the others and against the file: what is returned lies
/// inside the file, does not overlap, leaves no gap and has the length that its shape asks for. Else CheckpointError,
/// naming file and tensor.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t file_size, const std::string& file);

/// The first bytes of a file that holds `entries` (name, dtype and shape count; places are made by this function), padded
/// so that the data starts at a multiple of eight. Larger dtypes come first and names are sorted within one, as the
/// reference writer does it: the same tensors give the same bytes. `header` receives the places.
std::string make_safetensors_header(std::vector<SafetensorsEntry> entries,
                                    const std::vector<std::pair<std::string, std::string>>& metadata, SafetensorsHeader& header);

}  // namespace accelerate::detail
