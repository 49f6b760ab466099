#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fuzz/format_inputs.h"

namespace {

void replay(const std::string& corpus, void (*feed)(std::string_view)) {
  size_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(ACCELERATE_TEST_FUZZ) / "corpus" / corpus)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NO_THROW(feed(bytes)) << entry.path();
    // Every byte of the smaller ones changed, one at a time, and every length.
    for (size_t i = 0; bytes.size() < 2500 && i < bytes.size(); ++i) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ (i % 2 == 0 ? 0xFF : 0x01));
      EXPECT_NO_THROW(feed(changed)) << entry.path() << " byte " << i;
      EXPECT_NO_THROW(feed(std::string_view(bytes).substr(0, i))) << entry.path() << " cut at " << i;
    }
    ++inputs;
  }
  EXPECT_GE(inputs, 5u);
}

TEST(FuzzCorpus, PicklesAreReadOrRefused) { replay("pickle", accelerate::testing::try_pickle_input); }
TEST(FuzzCorpus, ArchivesAreReadOrRefused) { replay("zip", accelerate::testing::try_zip_input); }
TEST(FuzzCorpus, SafetensorsFilesAreReadOrRefused) { replay("safetensors", accelerate::testing::try_safetensors_input); }
TEST(FuzzCorpus, DistributedMetadataIsReadOrRefused) { replay("distributed", accelerate::testing::try_distributed_input); }
TEST(FuzzCorpus, IndexesAreReadOrRefused) { replay("index", accelerate::testing::try_index_input); }

}  // namespace
