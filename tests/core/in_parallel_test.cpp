#include "core/in_parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/byte_sink.h"
#include "core/crc32.h"

namespace accelerate {

using namespace detail;
namespace {

TEST(InParallel, EveryNumberIsWorkedOnOnce) {
  std::vector<std::atomic<int>> times(1000);
  in_parallel(times.size(), [&](size_t i) { ++times[i]; });
  for (const auto& time : times) EXPECT_EQ(time, 1);
  in_parallel(0, [](size_t) { FAIL(); });
}

TEST(InParallel, WhatIsThrownComesOutWhenAllThreadsAreDone) {
  std::atomic<int> working = 0;
  const auto work = [&](size_t i) {
    ++working;
    const std::string name = "number " + std::to_string(i);
    --working;
    if (i % 10 == 3) throw std::runtime_error(name);
  };
  EXPECT_THROW(in_parallel(100, work), std::runtime_error);
  EXPECT_EQ(working, 0);
}

TEST(ByteSink, TheSumOfWhatIsWrittenInPiecesIsThatOfTheWhole) {
  std::string bytes(1000003, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 3);
  MemorySink sink;
  EXPECT_EQ(sink.write_summed(bytes.data(), bytes.size()), crc32(0, bytes.data(), bytes.size()));
  EXPECT_EQ(sink.bytes(), bytes);
  EXPECT_EQ(sink.write_summed(nullptr, 0), 0U);
}

}  // namespace
}  // namespace accelerate
