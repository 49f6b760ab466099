#include <accelerate/core/error.h>
#include <gtest/gtest.h>

#include <random>

#include "core/crc32.h"
#include "formats/zip_layout.h"
#include "formats/zip_reader.h"
#include "formats/zip_writer.h"
#include "support/error_text.h"

namespace {

using accelerate::CheckpointError;
using accelerate::detail::MemorySink;
using accelerate::detail::MemorySource;
using accelerate::detail::ZipReader;
using accelerate::detail::ZipWriter;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

uint32_t slow_crc(std::string_view bytes) {
  uint32_t state = 0xFFFFFFFF;
  for (const char c : bytes) {
    state ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0xEDB88320 : 0);
  }
  return ~state;
}

std::string some_bytes(size_t size) {
  std::mt19937 random(7);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string small_archive() {
  MemorySink sink;
  ZipWriter writer(sink, "box");
  writer.add("one", "first bytes");
  writer.add("two", "");
  writer.add("three", std::string(200, 'x'));
  writer.finish();
  return sink.bytes();
}

std::string zip_error(const std::string& bytes) {
  const MemorySource source(bytes, "archive.zip");
  const auto error = message_of<CheckpointError>([&] {
    const ZipReader reader(source);
    for (const auto& entry : reader.entries()) reader.verify(entry);
  });
  if (error != "no error") expect_parts(error, {"archive.zip"});
  return error;
}

/// The archive with the number at `offset` replaced.
template <typename Number>
std::string with_number(std::string bytes, size_t offset, Number number) {
  std::memcpy(bytes.data() + offset, &number, sizeof(number));
  return bytes;
}

size_t place_of(const std::string& bytes, uint32_t signature, int nth = 0) {
  size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&signature), 4));
  for (; nth > 0; --nth) at = bytes.find(std::string(reinterpret_cast<const char*>(&signature), 4), at + 1);
  return at;
}

TEST(Crc32, IsTheSumOfTheDefinitionForEveryLengthAndStart) {
  EXPECT_EQ(accelerate::detail::crc32(0, "123456789", 9), 0xCBF43926U);
  const std::string bytes = some_bytes(1000);
  for (size_t size = 0; size < 400; ++size) {
    const std::string_view piece = std::string_view(bytes).substr(size % 17, size);
    EXPECT_EQ(accelerate::detail::crc32(0, piece.data(), piece.size()), slow_crc(piece)) << size;
  }
}

TEST(Crc32, PiecesJoinToTheSumOfTheWhole) {
  const std::string bytes = some_bytes(5000);
  for (const size_t cut : {0, 1, 63, 64, 100, 4999, 5000}) {
    const uint32_t first = accelerate::detail::crc32(0, bytes.data(), cut);
    const uint32_t second = accelerate::detail::crc32(0, bytes.data() + cut, bytes.size() - cut);
    EXPECT_EQ(accelerate::detail::crc32(first, bytes.data() + cut, bytes.size() - cut), slow_crc(bytes));
    EXPECT_EQ(accelerate::detail::combine_crc32(first, second, bytes.size() - cut), slow_crc(bytes));
  }
}

TEST(Zip, WhatIsWrittenIsListedAndRead) {
  const std::string bytes = small_archive();
  const MemorySource source(bytes, "archive.zip");
  const ZipReader reader(source);
  ASSERT_EQ(reader.entries().size(), 3u);
  EXPECT_EQ(reader.entries()[0].name, "box/one");
  EXPECT_EQ(reader.read(*reader.find("box/one")), "first bytes");
  EXPECT_EQ(reader.read(*reader.find("box/two")), "");
  EXPECT_EQ(reader.find("one"), nullptr);
  for (const auto& entry : reader.entries()) EXPECT_EQ(entry.offset % 64, 0u) << entry.name;
}

TEST(Zip, PiecesOfAMemberMakeTheSameBytesAsTheWhole) {
  const auto archive = [](size_t piece) {
    MemorySink sink;
    ZipWriter writer(sink, "a");
    const std::string bytes = some_bytes(1000);
    writer.begin("m", bytes.size());
    for (size_t at = 0; at < bytes.size(); at += piece) writer.write(bytes.data() + at, std::min(piece, bytes.size() - at));
    writer.finish();
    return sink.bytes();
  };
  EXPECT_EQ(archive(1), archive(1000));
}

TEST(Zip, AMemberThatIsNotWrittenAsAnnouncedIsAnError) {
  MemorySink sink;
  ZipWriter writer(sink, "a");
  writer.begin("m", 3);
  EXPECT_THROW(writer.write("1234", 4), accelerate::UsageError);
  EXPECT_THROW(writer.begin("n", 1), accelerate::UsageError);
  EXPECT_THROW(writer.finish(), accelerate::UsageError);
  writer.write("123", 3);
  EXPECT_THROW(writer.add("m", ""), accelerate::UsageError);
}

TEST(Zip, AnArchiveCutAnywhereIsRefused) {
  const std::string whole = small_archive();
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(zip_error(whole.substr(0, size)), "no error") << size;
  EXPECT_EQ(zip_error(whole), "no error");
}

TEST(Zip, AByteChangedInAMemberIsFoundByItsChecksum) {
  std::string bytes = small_archive();
  bytes[bytes.find("first")] = 'F';
  EXPECT_NE(zip_error(bytes).find("box/one"), std::string::npos);
}

TEST(Zip, AnArchiveWithoutChecksumsIsReadWithoutThem) {
  std::string bytes = small_archive();
  for (int i = 0; i < 3; ++i)
    bytes = with_number(bytes, place_of(bytes, accelerate::detail::zip::kCentralSignature, i) + 16, uint32_t{0});
  EXPECT_EQ(zip_error(bytes), "no error");
}

TEST(Zip, PlacesAndCountsThatCannotBeAreRefused) {
  const std::string bytes = small_archive();
  const size_t central = place_of(bytes, accelerate::detail::zip::kCentralSignature);
  const size_t second = place_of(bytes, accelerate::detail::zip::kCentralSignature, 1);
  const size_t end64 = place_of(bytes, accelerate::detail::zip::kEnd64Signature);
  const size_t end = place_of(bytes, accelerate::detail::zip::kEndSignature);
  const size_t locator = place_of(bytes, accelerate::detail::zip::kLocator64Signature);
  const auto huge = [&](size_t at) { return with_number(with_number(bytes, at, UINT64_MAX), at - 8, UINT64_MAX); };
  EXPECT_NE(zip_error(huge(end64 + 32)).find("declares"), std::string::npos);                           // members
  EXPECT_NE(zip_error(with_number(bytes, end64 + 40, UINT64_MAX)).find("outside"), std::string::npos);  // directory
  EXPECT_NE(zip_error(with_number(bytes, end64 + 48, UINT64_MAX)).find("outside"), std::string::npos);
  EXPECT_NE(zip_error(with_number(bytes, locator + 8, UINT64_MAX)).find("outside"), std::string::npos);
  EXPECT_NE(zip_error(with_number(bytes, central + 42, uint32_t{0xFFFFFFF0})).find("outside"), std::string::npos);
  EXPECT_NE(zip_error(with_number(with_number(bytes, central + 20, 0x7FFFFFFFU), central + 24, 0x7FFFFFFFU)).find("extends past"),
            std::string::npos);
  EXPECT_NE(zip_error(with_number(bytes, central + 24, 5U)).find("inconsistent sizes"), std::string::npos);
  EXPECT_NE(zip_error(with_number(bytes, central + 10, uint16_t{8})).find("compressed"), std::string::npos);
  EXPECT_NE(zip_error(with_number(bytes, central + 8, uint16_t{1})).find("encrypted"), std::string::npos);
  EXPECT_NE(zip_error(with_number(bytes, second + 42, 0U)).find("not where the central directory says"), std::string::npos);
  EXPECT_NE(zip_error(with_number(bytes, central + 30, uint16_t{0xFFFF})).find("central directory is truncated"),
            std::string::npos);
  EXPECT_NE(zip_error(with_number(bytes, end + 20, uint16_t{4})).find("no central directory"), std::string::npos);
}

TEST(Zip, MembersOfOneNameOrOnePlaceAreRefused) {
  std::string bytes = small_archive();
  // Twice the first member: the second directory entry gets its name and place.
  MemorySink sink;
  ZipWriter writer(sink, "box");
  writer.add("aaa", "bytes");
  writer.add("bbb", "bytes");
  writer.finish();
  std::string twins = sink.bytes();
  const size_t second = place_of(twins, accelerate::detail::zip::kCentralSignature, 1);
  std::memcpy(twins.data() + second + 46, "box/aaa", 7);
  EXPECT_NE(zip_error(with_number(twins, second + 42, 0U)).find("two members called box/aaa"), std::string::npos);
  // The first grows over the second.
  twins = sink.bytes();
  const size_t first = place_of(twins, accelerate::detail::zip::kCentralSignature, 0);
  EXPECT_NE(zip_error(with_number(with_number(twins, first + 20, 70U), first + 24, 70U)).find("overlaps"), std::string::npos);
}

}  // namespace
