#include "formats/zip_reader.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/crc32.h"
#include "core/escaped.h"
#include "formats/zip_layout.h"

namespace accelerate::detail {
namespace {

using zip::number_at;

[[noreturn]] void bad_archive(const ByteSource& source, const std::string& what) {
  throw CheckpointError(source.name() + " is not a valid zip archive: " + escaped(what, kLongestQuote) + ".");
}

struct Directory {
  uint64_t count = 0, offset = 0, size = 0;
};

/// The offset of the end-of-central-directory record: at the end, before a comment of at most 64 KB. Torch writes none, and a
/// distributed checkpoint has an archive for each chunk, so the end alone is looked at first.
uint64_t find_end_record(const ByteSource& source, std::string& record) {
  if (source.size() < zip::kEndSize) bad_archive(source, "it is too short");
  for (const uint64_t most : {zip::kEndSize, zip::kEndSize + 0xFFFF}) {
    const uint64_t reach = std::min(source.size(), most);
    const std::string tail = source.text(source.size() - reach, reach);
    for (uint64_t at = reach - zip::kEndSize + 1; at-- > 0;) {
      if (number_at<uint32_t>(tail, at) != zip::kEndSignature) continue;
      if (number_at<uint16_t>(tail, at + 20) != reach - at - zip::kEndSize) continue;
      record = tail.substr(at, zip::kEndSize);
      return source.size() - reach + at;
    }
  }
  bad_archive(source, "it has no central directory at its end. Was it truncated?");
}

/// The zip64 record, when a locator for it stands right before the end record.
std::optional<Directory> find_directory64(const ByteSource& source, uint64_t end, uint64_t& directory_limit) {
  if (end < zip::kLocator64Size + zip::kEnd64Size) return std::nullopt;
  const std::string locator = source.text(end - zip::kLocator64Size, zip::kLocator64Size);
  if (number_at<uint32_t>(locator, 0) != zip::kLocator64Signature) return std::nullopt;
  const auto at = number_at<uint64_t>(locator, 8);
  if (at > end - zip::kLocator64Size - zip::kEnd64Size) bad_archive(source, "its zip64 record lies outside the file");
  const std::string record = source.text(at, zip::kEnd64Size);
  if (number_at<uint32_t>(record, 0) != zip::kEnd64Signature) bad_archive(source, "its zip64 record is missing");
  if (number_at<uint32_t>(record, 16) != 0 || number_at<uint64_t>(record, 24) != number_at<uint64_t>(record, 32))
    bad_archive(source, "it is a multi-part archive");
  directory_limit = at;
  return Directory{number_at<uint64_t>(record, 32), number_at<uint64_t>(record, 48), number_at<uint64_t>(record, 40)};
}

Directory find_directory(const ByteSource& source) {
  std::string record;
  uint64_t limit = find_end_record(source, record);
  auto directory = find_directory64(source, limit, limit);
  if (!directory) {
    if (number_at<uint16_t>(record, 4) != 0 || number_at<uint16_t>(record, 8) != number_at<uint16_t>(record, 10))
      bad_archive(source, "it is a multi-part archive");
    directory = {number_at<uint16_t>(record, 10), number_at<uint32_t>(record, 16), number_at<uint32_t>(record, 12)};
  }
  if (directory->offset > limit || directory->size > limit - directory->offset)
    bad_archive(source, "its central directory lies outside the file");
  if (directory->count > directory->size / zip::kCentralSize)
    bad_archive(source, "it declares " + std::to_string(directory->count) + " members, more than its central directory can hold");
  return *directory;
}

/// What a directory entry says, before its bytes have been looked for.
struct CentralEntry {
  ZipEntry entry;
  uint64_t local = 0;  // where its local header begins
};

/// Replaces sizes and offsets that are stored in the zip64 field.
void read_extra64(const ByteSource& source, std::string_view extra, const std::string& name, std::array<uint64_t*, 3> fields) {
  while (extra.size() >= 4) {
    const auto id = number_at<uint16_t>(extra, 0);
    const auto size = number_at<uint16_t>(extra, 2);
    if (size > extra.size() - 4) break;
    std::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != zip::kExtra64) continue;
    for (uint64_t* value : fields) {
      if (*value != zip::kSee64) continue;
      if (field.size() < 8) bad_archive(source, "the sizes of " + name + " are incomplete");
      *value = number_at<uint64_t>(field, 0);
      field.remove_prefix(8);
    }
    return;
  }
}

CentralEntry read_central(const ByteSource& source, std::string_view& directory) {
  if (directory.size() < zip::kCentralSize || number_at<uint32_t>(directory, 0) != zip::kCentralSignature)
    bad_archive(source, "its central directory is corrupt");
  const uint64_t name_size = number_at<uint16_t>(directory, 28);
  const uint64_t extra_size = number_at<uint16_t>(directory, 30);
  const uint64_t all = zip::kCentralSize + name_size + extra_size + number_at<uint16_t>(directory, 32);
  if (all > directory.size()) bad_archive(source, "its central directory is truncated");
  CentralEntry central;
  ZipEntry& entry = central.entry;
  entry.name = directory.substr(zip::kCentralSize, name_size);
  if ((number_at<uint16_t>(directory, 8) & zip::kFlagEncrypted) != 0) bad_archive(source, entry.name + " is encrypted");
  if (number_at<uint16_t>(directory, 10) != 0)
    bad_archive(source, entry.name + " is compressed, which torch never does. Pack it again without compression");
  entry.crc = number_at<uint32_t>(directory, 16);
  entry.size = number_at<uint32_t>(directory, 24);
  uint64_t packed = number_at<uint32_t>(directory, 20);
  central.local = number_at<uint32_t>(directory, 42);
  read_extra64(source, directory.substr(zip::kCentralSize + name_size, extra_size), entry.name,
               {&entry.size, &packed, &central.local});
  if (packed != entry.size) bad_archive(source, entry.name + " has inconsistent sizes");
  directory.remove_prefix(all);
  return central;
}

/// Finds the bytes of a member behind its local header, all of it before `limit`.
void locate(const ByteSource& source, CentralEntry& central, uint64_t limit) {
  ZipEntry& entry = central.entry;
  const uint64_t head = zip::kLocalSize + entry.name.size();
  if (central.local > limit || head > limit - central.local) bad_archive(source, entry.name + " lies outside the file");
  const std::string header = source.text(central.local, head);
  if (number_at<uint32_t>(header, 0) != zip::kLocalSignature || number_at<uint16_t>(header, 26) != entry.name.size() ||
      header.compare(zip::kLocalSize, std::string::npos, entry.name) != 0) {
    bad_archive(source, entry.name + " is not where the central directory says");
  }
  const uint64_t extra = number_at<uint16_t>(header, 28);
  if (extra > limit - central.local - head || entry.size > limit - central.local - head - extra)
    bad_archive(source, entry.name + " extends past the end of its data");
  entry.offset = central.local + head + extra;
}

void require_apart(const ByteSource& source, std::vector<CentralEntry> all) {
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.local < b.local; });
  for (size_t i = 1; i < all.size(); ++i) {
    const ZipEntry& before = all[i - 1].entry;
    if (before.offset + before.size > all[i].local) bad_archive(source, all[i].entry.name + " overlaps " + before.name);
  }
}

}  // namespace

ZipReader::ZipReader(const ByteSource& source) : source_(source) {
  const Directory directory = find_directory(source);
  const std::string bytes = source.text(directory.offset, directory.size);
  std::string_view rest = bytes;
  std::vector<CentralEntry> all;
  for (uint64_t i = 0; i < directory.count; ++i) {
    all.push_back(read_central(source, rest));
    locate(source, all.back(), directory.offset);
    entries_.push_back(all.back().entry);
    has_checksums_ = has_checksums_ || all.back().entry.crc != 0;
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!places_.emplace(entries_[i].name, i).second) bad_archive(source, "it has two members called " + entries_[i].name);
  }
  require_apart(source, std::move(all));
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &entries_[place->second];
}

std::string ZipReader::read(const ZipEntry& entry) const {
  std::string bytes = source_.text(entry.offset, entry.size);
  require_crc(entry, crc32(0, bytes.data(), bytes.size()));
  return bytes;
}

void ZipReader::verify(const ZipEntry& entry) const {
  std::string piece(std::min<uint64_t>(entry.size, 1 << 20), '\0');
  uint32_t crc = 0;
  for (uint64_t done = 0; done < entry.size;) {
    const uint64_t size = std::min<uint64_t>(piece.size(), entry.size - done);
    source_.read(piece.data(), size, entry.offset + done);
    crc = crc32(crc, piece.data(), size);
    done += size;
  }
  require_crc(entry, crc);
}

void ZipReader::require_crc(const ZipEntry& entry, uint32_t crc) const {
  if (crc == entry.crc || !has_checksums_) return;
  throw CheckpointError(
      escaped(entry.name + " in " + source_.name() + " is corrupt: checksum mismatch. Use another copy of the file."));
}

bool looks_like_zip(const ByteSource& source) {
  return source.size() >= 4 && number_at<uint32_t>(source.text(0, 4), 0) == zip::kLocalSignature;
}

}  // namespace accelerate::detail
