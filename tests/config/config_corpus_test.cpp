#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fuzz/config_input.h"

namespace accelerate::testing {
namespace {

// Inputs that a fuzzer found worth keeping, and those that once broke something.
TEST(ConfigCorpus, EveryInputIsAConfigurationOrAnErrorThatNamesTheFile) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ACCELERATE_TEST_FUZZ "/corpus/config")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NO_THROW(check_config_input(bytes)) << entry.path();
    ++inputs;
  }
  EXPECT_GE(inputs, 50);
}

}  // namespace
}  // namespace accelerate::testing
