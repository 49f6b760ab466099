#include "checkpoint/folder_files.h"

#include <accelerate/core/error.h>

#include <fstream>

#include "core/crc32.h"
#include "support/together.h"

namespace accelerate {

using namespace detail;
namespace {

constexpr size_t kSeveralBlocks = (size_t{9} << 20) + 12345;

std::string varied_bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 2654435761U >> 13);
  return bytes;
}

class FolderFilesTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    manifest_.files.push_back({name, bytes.size(), crc32(0, bytes.data(), bytes.size())});
  }
  void overwrite(const std::string& name, size_t place, char byte) {
    std::fstream file(folder_ / name, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(place));
    file.put(byte);
  }
  std::string verify(FolderFiles& files) {
    return files.verify(manifest_, [](const std::string& name) { return name != "passing"; });
  }

  TemporaryFolder folder_;
  Manifest manifest_;
};

TEST_F(FolderFilesTest, AFileThatWasVerifiedIsNotReadAgain) {
  const std::string bytes = varied_bytes(kSeveralBlocks);
  write("large", bytes);
  write("empty", "");
  write("passing", bytes);
  FolderFiles files(folder_.path());
  EXPECT_EQ(verify(files), "");
  for (const auto* name : {"large", "empty", "passing"}) std::filesystem::remove(folder_ / name);
  const auto large = files.open("large");
  EXPECT_EQ(large->text(0, large->size()), bytes);
  EXPECT_TRUE(large->is_verified());
  EXPECT_EQ(std::string(large->memory().get(), bytes.size()), bytes);
  EXPECT_EQ(files.open("empty")->size(), 0U);
  EXPECT_TRUE(files.contains("large"));
  EXPECT_FALSE(files.contains("passing"));
  EXPECT_THROW(files.open("passing"), CheckpointError);
}

TEST_F(FolderFilesTest, AByteThatChangedIsFoundWhereverItIsAndNothingIsKept) {
  const std::string bytes = varied_bytes(kSeveralBlocks);
  for (const auto* name : {"kept", "passing"}) {
    for (const size_t place : {size_t{0}, size_t{4} << 20, kSeveralBlocks - 1}) {
      manifest_ = {};
      write("kept", bytes);
      write("passing", bytes);
      overwrite(name, place, static_cast<char>(bytes[place] ^ 1));
      FolderFiles files(folder_.path());
      EXPECT_EQ(verify(files), std::string(name) + " is corrupt: its checksum does not match the manifest");
      EXPECT_EQ(files.open("kept")->memory(), nullptr);
    }
  }
}

TEST_F(FolderFilesTest, WhatIsMissingOrCutIsNamed) {
  write("kept", "12345");
  std::filesystem::resize_file(folder_ / "kept", 3);
  FolderFiles files(folder_.path());
  EXPECT_EQ(verify(files), "kept has 3 bytes instead of 5");
  std::filesystem::remove(folder_ / "kept");
  EXPECT_EQ(verify(files), "kept is missing");
}

TEST_F(FolderFilesTest, WhatIsReadAheadIsNotVerifiedAndWhatCannotBeReadIsToldByOpen) {
  write("there", "12345");
  std::filesystem::create_directory(folder_ / "folder");
  FolderFiles files(folder_.path());
  files.read({"there", "absent"});
  std::filesystem::remove(folder_ / "there");
  EXPECT_EQ(files.open("there")->text(1, 3), "234");
  EXPECT_FALSE(files.open("there")->is_verified());
  EXPECT_THROW(files.open("absent"), CheckpointError);
  files.read({"folder"});
  EXPECT_THROW(files.open("folder"), CheckpointError);
  EXPECT_THROW(files.open("there")->text(3, 3), CheckpointError);
}

}  // namespace
}  // namespace accelerate
