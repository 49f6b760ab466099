// What the parsers of files that are not trusted hold in memory, beside the bytes of the file: docs/architecture.md states it.
#include <accelerate/core/error.h>
#include <gtest/gtest.h>

#include <functional>

#include "formats/pickle_reader.h"
#include "formats/safetensors_file.h"
#include "formats/weight_index.h"
#include "fuzz/counted_memory.h"

namespace {

using namespace std::string_literals;
using accelerate::testing::CountedMemory;

constexpr size_t kMany = 200'000;
constexpr size_t kTables = 1 << 20;  // what does not grow with the file

std::string many(const std::function<std::string(size_t)>& item, size_t count = kMany) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += item(i);
  return all;
}

std::string many(const std::string& item) {
  return many([&](size_t) { return item; });
}

template <typename Number>
std::string bytes_of(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

std::string four_byte_int(size_t number) { return "J" + bytes_of(static_cast<uint32_t>(number)); }

struct Hoard {
  const char* what;
  std::string bytes;
  /// Times the bytes that all of it may take.
  size_t most;
};

/// Reads it, or is refused, and holds no more than it may on the way.
void expect_modest(const Hoard& hoard, const std::function<void(const std::string&)>& read) {
  const CountedMemory memory;
  try {
    read(hoard.bytes);
  } catch (const accelerate::CheckpointError&) {
  }
  EXPECT_LE(memory.largest(), 2 * hoard.bytes.size() + kTables) << hoard.what;
  EXPECT_LE(memory.peak(), hoard.most * hoard.bytes.size() + kTables)
      << hoard.what << ": " << static_cast<double>(memory.peak()) / static_cast<double>(hoard.bytes.size());
}

TEST(ParserMemory, OfAPickleFollowsItsBytes) {
  const std::vector<Hoard> hoards = {
      {"small ints", "(" + many("K\7") + "l.", 12},
      {"small ints in batches", "]" + many([](size_t) { return "(" + std::string(2000, 'K') + "e"; }, 200) + ".", 6},
      {"ints", "(" + many(four_byte_int) + "l.", 12},
      {"fractions", "(" + many("G\x3f\xf8\0\0\0\0\0\0"s) + "l.", 6},
      {"nothing", "(" + many("N") + "l.", 24},
      {"truth", "(" + many("\x88") + "t.", 24},
      {"ints one by one", "]" + many("K\7a") + ".", 6},
      {"empty lists", "(" + many("]") + "l.", 44},
      {"empty dicts", "(" + many("}") + "l.", 44},
      {"empty sets", "(" + many("\x8f") + "t.", 44},
      {"empty tuples", "(" + many(")") + "t.", 24},
      {"pairs", "(" + many("NN\x86") + "l.", 44},
      {"lists of one", "(" + many("]Na") + "l.", 44},
      {"dicts of one", "(" + many("}NNs") + "l.", 44},
      {"empty texts", "(" + many("\x8c\0"s) + "l.", 44},
      {"a dict of ints", "}(" + many([](size_t i) { return four_byte_int(i) + "N"; }) + "u.", 16},
      {"a dict of one key", "}(" + many("NN") + "u.", 24},
      {"deep lists", many("]") + many("a") + ".", 44},
      {"lists to remember", "(" + many("]\x94") + "l.", 44},
      {"lists to remember at far places",
       "(" + many([](size_t i) { return "]r" + bytes_of(static_cast<uint32_t>(2 * i)); }) + "l.", 44},
      {"lists met twice", "(" + many("]2") + "l.", 44},
      {"marks", many("(") + ".", 16},
      {"one value on the stack", "N" + many("2") + "t.", 16},
  };
  for (const Hoard& hoard : hoards)
    expect_modest(hoard, [](const auto& bytes) { accelerate::detail::read_pickle(bytes, "some.bin"); });
}

TEST(ParserMemory, OfAHeaderAndAnIndexFollowsTheirBytes) {
  const auto safetensors = [](const std::string& json) { return bytes_of<uint64_t>(json.size()) + json; };
  const std::vector<Hoard> headers = {
      {"a shape", safetensors("{\"a\":{\"shape\":[" + many("0,") + "0]}}"), 16},
      {"metadata",
       safetensors("{\"__metadata__\":{" + many([](size_t i) { return "\"" + std::to_string(i) + "\":\"\","; }) + "\"\":\"\"}}"),
       24},
      {"depth", safetensors("{" + many("[")), 16},
  };
  for (const Hoard& hoard : headers) {
    expect_modest(hoard, [](const auto& bytes) {
      const accelerate::detail::MemorySource source(bytes, "some.safetensors");
      accelerate::detail::SafetensorsFile file(source);
    });
  }
  const std::vector<Hoard> indexes = {
      {"a map", "{\"weight_map\":{" + many([](size_t i) { return "\"" + std::to_string(i) + "\":\"f\","; }) + "\"\":\"f\"}}", 24},
      {"a bare map", "{" + many("\"\":\"\",") + "\"\":\"f\"}", 32},
      {"lists", "{\"metadata\":" + many("[") + "}", 8},
  };
  for (const Hoard& hoard : indexes) {
    expect_modest(hoard, [](const auto& bytes) {
      accelerate::detail::read_weight_index(accelerate::detail::MemorySource(bytes, "index.json"));
    });
  }
}

}  // namespace
