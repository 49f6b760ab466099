#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fuzz/launch_input.h"

namespace accelerate::testing {
namespace {

TEST(LaunchCorpus, EveryInputIsPlannedOrRefusedInWords) {
  int tried = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ACCELERATE_TEST_FUZZ "/corpus/launch")) {
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream file(entry.path(), std::ios::binary);
    EXPECT_NO_THROW(try_launch_input({std::istreambuf_iterator<char>(file), {}}));
    ++tried;
  }
  EXPECT_GE(tried, 30);
}

}  // namespace
}  // namespace accelerate::testing
