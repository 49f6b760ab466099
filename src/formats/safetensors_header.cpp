#include "formats/safetensors_header.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/escaped.h"

namespace accelerate::detail {
namespace {

/// The limit of the reference implementation; it also keeps a corrupt length from causing a huge allocation.
constexpr uint64_t kMostHeaderBytes = 100'000'000;
constexpr size_t kMostDimensions = 1024;  // far more than any tensor can have

struct Dtype {
  const char* name;
  int bits;
};
// In the order in which the reference writer lays tensors out.
constexpr std::array<Dtype, 22> kDtypes = {
    {{"U64", 64},        {"I64", 64},    {"F64", 64},    {"C64", 64},    {"F32", 32}, {"U32", 32},
     {"I32", 32},        {"BF16", 16},   {"F16", 16},    {"U16", 16},    {"I16", 16}, {"F8_E5M2FNUZ", 8},
     {"F8_E4M3FNUZ", 8}, {"F8_E8M0", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"I8", 8},   {"U8", 8},
     {"F6_E3M2", 6},     {"F6_E2M3", 6}, {"F4", 4},      {"BOOL", 8}}};

size_t dtype_order(std::string_view dtype) {
  return static_cast<size_t>(std::find_if(kDtypes.begin(), kDtypes.end(), [&](const Dtype& d) { return dtype == d.name; }) -
                             kDtypes.begin());
}

[[noreturn]] void damaged(const std::string& file, const std::string& what) {
  throw CheckpointError(file + " is not a valid safetensors file: " + escaped(what, kLongestQuote) + ".");
}

/// Collects the members of JSON objects in order, so that duplicate names are detected: a DOM would keep only one of them.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& file, SafetensorsHeader& header) : file_(file), header_(header) {}

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { unexpected("a fraction"); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t number) override {
    if (depth_ != 3 || !numbers_) unexpected("a number");
    if (numbers_->size() == kMostDimensions) damaged(file_, "the list " + key_ + " of " + name_ + " is too long");
    numbers_->push_back(number);
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata.emplace_back(key_, text);
    } else if (depth_ == 2 && key_ == "dtype") {
      entry_.dtype = text;
    } else {
      unexpected("text");
    }
    return true;
  }

  bool start_object(size_t) override {
    if (++depth_ > 2) unexpected("an object");
    if (depth_ == 2) {
      members_.clear();
      in_metadata_ = name_ == "__metadata__";
      entry_ = {};
      entry_.name = name_;
      shape_.reset();
      offsets_.reset();
    }
    return true;
  }

  bool key(string_t& key) override {
    if (depth_ == 1) {
      if (!names_.insert(key).second) damaged(file_, "it has a duplicate entry for " + key);
      name_ = key;
    } else {
      if (!members_.insert(key).second) damaged(file_, "the entry of " + name_ + " has a duplicate key " + key);
      key_ = key;
    }
    return true;
  }

  bool end_object() override {
    if (depth_ == 2 && !in_metadata_) finish_entry();
    --depth_;
    return true;
  }

  bool start_array(size_t) override {
    if (++depth_ != 3 || in_metadata_ || (key_ != "shape" && key_ != "data_offsets")) unexpected("a list");
    numbers_ = &(key_ == "shape" ? shape_ : offsets_).emplace();
    return true;
  }

  bool end_array() override {
    --depth_;
    numbers_ = nullptr;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    damaged(file_, "its header is invalid JSON at byte " + std::to_string(position));
  }

 private:
  [[noreturn]] void unexpected(const std::string& what) {
    damaged(file_, what + " is unexpected in the header" + (name_.empty() ? "" : ", at " + name_));
  }

  void finish_entry() {
    if (!shape_ || !offsets_ || entry_.dtype.empty())
      damaged(file_, "the entry of " + name_ + " lacks dtype, shape or data_offsets");
    if (offsets_->size() != 2)
      damaged(file_, "the entry of " + name_ + " has " + std::to_string(offsets_->size()) + " data_offsets instead of 2");
    for (const uint64_t size : *shape_) {
      if (size > static_cast<uint64_t>(INT64_MAX)) damaged(file_, name_ + " has a dimension of " + std::to_string(size));
      entry_.shape.push_back(static_cast<int64_t>(size));
    }
    entry_.begin = (*offsets_)[0];
    entry_.end = (*offsets_)[1];
    header_.entries.push_back(std::move(entry_));
  }

  const std::string& file_;
  SafetensorsHeader& header_;
  int depth_ = 0;
  bool in_metadata_ = false;
  std::string name_, key_;
  std::set<std::string> names_, members_;
  SafetensorsEntry entry_;
  std::optional<std::vector<uint64_t>> shape_, offsets_;
  std::vector<uint64_t>* numbers_ = nullptr;
};

uint64_t expected_bytes(const SafetensorsEntry& entry, const std::string& file) {
  const int bits = safetensors_dtype_bits(entry.dtype);
  if (bits == 0) damaged(file, entry.name + " has the unknown dtype " + entry.dtype);
  uint64_t total = static_cast<uint64_t>(bits);
  int64_t reach = 1;  // as if no dimension were 0: strides must be representable too
  for (const int64_t size : entry.shape) {
    if (__builtin_mul_overflow(reach, std::max<int64_t>(size, 1), &reach) ||
        __builtin_mul_overflow(total, static_cast<uint64_t>(size), &total)) {
      damaged(file, "the shape of " + entry.name + " is too large for any file");
    }
  }
  if (total % 8 != 0) damaged(file, entry.name + " does not fill whole bytes");
  return total / 8;
}

void check_places(SafetensorsHeader& header, uint64_t file_size, const std::string& file) {
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t position = 0;
  for (const auto& entry : header.entries) {
    if (entry.end < entry.begin || entry.end - entry.begin != expected_bytes(entry, file)) {
      damaged(file, entry.name + " has data_offsets " + std::to_string(entry.begin) + " to " + std::to_string(entry.end) +
                        ", which do not match its shape and dtype");
    }
    if (entry.begin != position)
      damaged(file, entry.name + (entry.begin < position ? " overlaps the tensor before it" : " leaves a gap before it"));
    position = entry.end;
  }
  const uint64_t available = file_size - header.data_start;
  if (position > available)
    damaged(file,
            "its data is truncated: " + std::to_string(position) + " bytes expected, " + std::to_string(available) + " found");
  if (position < available) damaged(file, std::to_string(available - position) + " bytes follow its last tensor");
}

}  // namespace

int safetensors_dtype_bits(std::string_view dtype) {
  const size_t index = dtype_order(dtype);
  return index < kDtypes.size() ? kDtypes[index].bits : 0;
}

uint64_t safetensors_header_size(std::string_view first_bytes, uint64_t file_size, const std::string& file) {
  if (first_bytes.size() < 8 || file_size < 8) damaged(file, "it is shorter than the 8 bytes of the header length");
  uint64_t size = 0;
  std::memcpy(&size, first_bytes.data(), sizeof(size));
  if (size > kMostHeaderBytes)
    damaged(file, "its header length is " + std::to_string(size) + " bytes, more than the format allows");
  if (size > file_size - 8) damaged(file, "its header is truncated");
  return size;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t file_size, const std::string& file) {
  SafetensorsHeader header;
  header.data_start = 8 + json.size();
  if (!json.starts_with('{')) damaged(file, "its header does not begin with {");
  HeaderReader reader(file, header);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  check_places(header, file_size, file);
  return header;
}

std::string make_safetensors_header(std::vector<SafetensorsEntry> entries,
                                    const std::vector<std::pair<std::string, std::string>>& metadata, SafetensorsHeader& header) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(dtype_order(a.dtype), std::string_view(a.name)) < std::pair(dtype_order(b.dtype), std::string_view(b.name));
  });
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, text] : metadata) json["__metadata__"][name] = text;
  uint64_t position = 0;
  for (auto& entry : entries) {
    entry.begin = position;
    position = entry.end = position + expected_bytes(entry, "the file to write");
    json[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError("The name of a tensor is not UTF-8, which a safetensors file requires. Rename it.");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string bytes(8, '\0');
  const uint64_t size = text.size();
  std::memcpy(bytes.data(), &size, sizeof(size));
  header = {std::move(entries), {metadata.begin(), metadata.end()}, 8 + text.size()};
  return bytes + text;
}

}  // namespace accelerate::detail
