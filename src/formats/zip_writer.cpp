#include "formats/zip_writer.h"

#include <accelerate/core/error.h>

#include "core/crc32.h"
#include "formats/zip_layout.h"

namespace accelerate::detail {
namespace {

using zip::append_numbers;

constexpr uint64_t kAlignment = 64;
/// Versions of the format that torch's archives name in their last record.
constexpr uint16_t kMadeBy = 0x031e, kNeeded64 = 45;

uint64_t mix(uint64_t sum, uint64_t value) { return sum ^ (value + 0x9e3779b9 + (sum << 6) + (sum >> 2)); }

uint32_t or_see64(uint64_t value) { return value >= zip::kSee64 ? zip::kSee64 : static_cast<uint32_t>(value); }

/// A field that says nothing, as long as is needed for the bytes behind it to begin at a multiple of 64.
std::string padding_field(uint64_t start) {
  const auto size = static_cast<uint16_t>((kAlignment - (start + 4) % kAlignment) % kAlignment);
  std::string field = "FB";
  append_numbers(field, size);
  field.append(size, 'Z');
  return field;
}

/// A member without bytes has no descriptor behind it.
uint16_t flags_of(uint64_t size) { return size > 0 ? zip::kFlagUtf8 | zip::kFlagDescriptor : zip::kFlagUtf8; }

}  // namespace

ZipWriter::ZipWriter(ByteSink& sink, std::string folder) : sink_(sink), folder_(std::move(folder)) {}

void ZipWriter::emit(std::string_view bytes) {
  sink_.write(bytes.data(), bytes.size());
  position_ += bytes.size();
}

std::string ZipWriter::extra64(const Member& member, bool packed_size) const {
  if (!member.large) return "";
  std::string numbers;
  if (member.size >= zip::kSee64) append_numbers(numbers, member.size, packed_size ? member.size : 0);
  if (member.header >= zip::kSee64) append_numbers(numbers, member.header);
  std::string field;
  append_numbers(field, zip::kExtra64, static_cast<uint16_t>(numbers.size()));
  return field + numbers;
}

void ZipWriter::begin(std::string_view name, uint64_t size) {
  if (open_) throw UsageError("The archive member " + member_.name + " is incomplete: not all of its bytes were written.");
  if (!names_.insert(std::string(name)).second)
    throw UsageError("An archive cannot have two members called " + std::string(name));
  member_ = {.name = folder_ + "/" + std::string(name), .size = size, .header = position_};
  member_.large = size >= zip::kSee64 || position_ >= zip::kSee64;
  if (member_.name.size() > 0xFFFF) throw UsageError("A name of " + std::to_string(member_.name.size()) + " bytes is too long.");
  const std::string extra = extra64(member_, false);  // torch leaves it out before the bytes
  const std::string padding = padding_field(position_ + zip::kLocalSize + member_.name.size() + extra.size());
  std::string header;
  append_numbers(header, zip::kLocalSignature, uint16_t{0}, flags_of(size), uint16_t{0}, uint32_t{0});
  append_numbers(header, uint32_t{0}, uint32_t{0}, uint32_t{0});  // checksum and sizes stand in the descriptor
  append_numbers(header, static_cast<uint16_t>(member_.name.size()), static_cast<uint16_t>(extra.size() + padding.size()));
  emit(header + member_.name + extra + padding);
  open_ = true;
  if (size == 0) end();
}

void ZipWriter::write(const void* bytes, uint64_t size) {
  if (size == 0) return;
  if (!open_ || size > member_.size - member_.written)
    throw UsageError("More bytes were given for " + member_.name + " than the " + std::to_string(member_.size) + " announced.");
  member_.crc = combine_crc32(member_.crc, sink_.write_summed(bytes, size), size);
  position_ += size;
  member_.written += size;
  if (member_.written == member_.size) end();
}

void ZipWriter::end() {
  open_ = false;
  if (member_.size > 0) {
    std::string descriptor;
    append_numbers(descriptor, zip::kDescriptorSignature, member_.crc);
    if (member_.large) {
      append_numbers(descriptor, member_.size, member_.size);
    } else {
      append_numbers(descriptor, static_cast<uint32_t>(member_.size), static_cast<uint32_t>(member_.size));
    }
    emit(descriptor);
  }
  const std::string extra = extra64(member_, true);
  append_numbers(directory_, zip::kCentralSignature, uint16_t{0}, uint16_t{0}, flags_of(member_.size), uint16_t{0}, uint32_t{0});
  append_numbers(directory_, member_.crc, or_see64(member_.size), or_see64(member_.size));
  append_numbers(directory_, static_cast<uint16_t>(member_.name.size()), static_cast<uint16_t>(extra.size()));
  append_numbers(directory_, uint16_t{0}, uint16_t{0}, uint16_t{0}, uint32_t{0}, or_see64(member_.header));
  directory_ += member_.name + extra;
  if (member_.size > 0) crcs_ = mix(crcs_, member_.crc);  // torch computes none where there is nothing
  ++count_;
}

void ZipWriter::add(std::string_view name, std::string_view bytes) {
  begin(name, bytes.size());
  write(bytes.data(), bytes.size());
}

void ZipWriter::finish() {
  if (open_) throw UsageError("The archive member " + member_.name + " is incomplete: not all of its bytes were written.");
  const uint64_t start = position_;
  emit(directory_);
  const uint64_t record64 = position_, size = directory_.size();
  std::string end;
  append_numbers(end, zip::kEnd64Signature, zip::kEnd64Size - 12, kMadeBy, kNeeded64, uint32_t{0}, uint32_t{0}, count_, count_);
  append_numbers(end, size, start, zip::kLocator64Signature, uint32_t{0}, record64, uint32_t{1});
  const auto count = static_cast<uint16_t>(count_ < 0xFFFF ? count_ : 0xFFFF);
  append_numbers(end, zip::kEndSignature, uint32_t{0}, count, count, or_see64(size), or_see64(start), uint16_t{0});
  emit(end);
}

std::string ZipWriter::fingerprint() const {
  uint64_t names = 0;
  for (const auto& name : names_) names = mix(names, std::hash<std::string>{}(name));
  const auto digits = [](uint64_t number) {
    const std::string text = std::to_string(number);
    return std::string(20 - text.size(), '0') + text;
  };
  return digits(names) + digits(crcs_);
}

}  // namespace accelerate::detail
