#include <accelerate/core/error.h>
#include <gtest/gtest.h>

#include "core/byte_source.h"
#include "formats/safetensors_file.h"
#include "formats/torch_file.h"
#include "formats/weight_index.h"
#include "formats/weight_shards.h"
#include "support/error_text.h"

namespace {

using accelerate::CheckpointError;
using accelerate::UsageError;
using accelerate::detail::MemorySink;
using accelerate::detail::MemorySource;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

TEST(ShardSize, NumbersWithUnitsAreRead) {
  EXPECT_EQ(accelerate::detail::parse_shard_size("5GB"), 5'000'000'000u);
  EXPECT_EQ(accelerate::detail::parse_shard_size(" 1.5 kb "), 1500u);
  EXPECT_EQ(accelerate::detail::parse_shard_size("200MB"), 200'000'000u);
  EXPECT_EQ(accelerate::detail::parse_shard_size("2TB"), 2'000'000'000'000u);
  for (const char* wrong : {"", "GB", "5", "5GiB", "five GB", "-1GB", "1e30TB", "nanGB", "5 G B", "B"}) {
    EXPECT_THROW(accelerate::detail::parse_shard_size(wrong), UsageError) << wrong;
  }
}

TEST(Shards, ATensorLargerThanTheLimitIsAlone) {
  const auto plan = accelerate::detail::plan_shards({{"a", 4}, {"huge", 100}, {"b", 5}, {"c", 2}}, 10);
  EXPECT_EQ(plan.shards, (std::vector<std::vector<std::string>>{{"huge"}, {"a", "b"}, {"c"}}));
  EXPECT_EQ(plan.total_size, 111u);
}

TEST(Shards, AShardMayBeExactlyAsLargeAsTheLimit) {
  const auto plan = accelerate::detail::plan_shards({{"a", 5}, {"b", 5}, {"c", 10}, {"d", 1}}, 10);
  EXPECT_EQ(plan.shards, (std::vector<std::vector<std::string>>{{"a", "b"}, {"c"}, {"d"}}));
}

TEST(Shards, TensorsOfOneStorageStayTogetherAndCountOnce) {
  const auto plan = accelerate::detail::plan_shards({{"a", 8, 1}, {"b", 8, 2}, {"c", 8, 1}, {"d", 8}}, 10);
  EXPECT_EQ(plan.shards, (std::vector<std::vector<std::string>>{{"a", "c"}, {"b"}, {"d"}}));
  EXPECT_EQ(plan.total_size, 24u);
}

TEST(Shards, NothingMakesOneEmptyShard) { EXPECT_EQ(accelerate::detail::plan_shards({}, 10).shards.size(), 1u); }

TEST(Shards, NamesAreKnownAgain) {
  using accelerate::detail::WeightFormat;
  EXPECT_EQ(accelerate::detail::weight_file_name(WeightFormat::kTorch, 2, 13), "pytorch_model-00002-of-00013.bin");
  EXPECT_EQ(accelerate::detail::weight_file_name(WeightFormat::kSafetensors), "model.safetensors");
  for (const char* name : {"model.safetensors", "model-00001-of-00002.safetensors", "model-123456-of-123456.safetensors"}) {
    EXPECT_TRUE(accelerate::detail::is_weight_file_name(WeightFormat::kSafetensors, name)) << name;
  }
  for (const char* name :
       {"model_1.safetensors", "model-1-of-2.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "mode"}) {
    EXPECT_FALSE(accelerate::detail::is_weight_file_name(WeightFormat::kSafetensors, name)) << name;
  }
}

std::string index_error(const std::string& text) {
  const auto error =
      message_of<CheckpointError>([&] { accelerate::detail::read_weight_index(MemorySource(text, "some.index.json")); });
  if (error != "no error") expect_parts(error, {"some.index.json"});
  return error;
}

TEST(WeightIndex, WhatIsNoIndexIsRefused) {
  EXPECT_EQ(index_error(R"({"weight_map":{"a":"f.bin"}})"), "no error");
  EXPECT_EQ(index_error(R"({"a":"f.bin"})"), "no error");
  for (const char* text :
       {"", "{", "[]", "3", "\"text\"", "{}", R"({"weight_map":{}})", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":null}})", R"({"weight_map":{"a":{"b":"c"}}})", R"({"weight_map":{"a":["b"]}})"}) {
    EXPECT_NE(index_error(text), "no error") << text;
  }
  EXPECT_NE(index_error(R"({"weight_map":{"a":"f","a":"g"}})").find("duplicate entry for a"), std::string::npos);
  EXPECT_NE(index_error(R"({"weight_map":{"a":"f"},"weight_map":{"b":"g"}})").find("two weight maps"), std::string::npos);
  for (const char* file : {"../f.bin", "/etc/passwd", "sub/f.bin", "..", "."}) {
    EXPECT_NE(index_error(std::string(R"({"weight_map":{"a":")") + file + "\"}}").find("not a file name in the same folder"),
              std::string::npos)
        << file;
  }
  EXPECT_NE(index_error(std::string(1'000'000, '[')), "no error");
  EXPECT_NE(index_error("{\"metadata\":" + std::string(1'000'000, '[')), "no error");
}

std::string some_safetensors() {
  accelerate::detail::SafetensorsHeader header;
  std::string bytes = accelerate::detail::make_safetensors_header(
      {{"cube", "I16", {2, 3, 4}, 0, 0}, {"none", "F32", {3, 0}, 0, 0}, {"one", "U8", {}, 0, 0}}, {{"format", "pt"}}, header);
  for (int16_t i = 0; i < 24; ++i) bytes.append(reinterpret_cast<const char*>(&i), 2);
  return bytes + "\x07";
}

TEST(SafetensorsSlices, HoldTheElementsOfThePart) {
  const std::string bytes = some_safetensors();
  const MemorySource source(bytes, "some.safetensors");
  const accelerate::detail::SafetensorsFile file(source);
  const auto& cube = *file.find("cube");
  const auto slice = [&](std::vector<std::pair<int64_t, int64_t>> ranges, size_t count) {
    std::vector<int16_t> part(count + 1, -1);
    file.read_slice(cube, ranges, part.data());
    EXPECT_EQ(part.back(), -1);
    part.pop_back();
    return part;
  };
  EXPECT_EQ(slice({{1, 2}, {1, 3}, {2, 4}}, 4), (std::vector<int16_t>{18, 19, 22, 23}));
  EXPECT_EQ(slice({{0, 2}, {2, 3}}, 8), (std::vector<int16_t>{8, 9, 10, 11, 20, 21, 22, 23}));
  EXPECT_EQ(slice({{1, 2}}, 12).front(), 12);
  EXPECT_EQ(slice({}, 24).back(), 23);
  EXPECT_EQ(slice({{1, 1}}, 0).size(), 0u);
  EXPECT_EQ(slice({{0, 2}, {1, 1}, {0, 1}}, 0).size(), 0u);
  for (const auto& wrong :
       std::vector<std::vector<std::pair<int64_t, int64_t>>>{{{0, 3}}, {{-1, 1}}, {{2, 1}}, {{0, 1}, {0, 1}, {0, 1}, {0, 1}}}) {
    EXPECT_THROW(slice(wrong, 0), UsageError);
  }
  uint8_t one = 0;
  file.read_slice(*file.find("one"), {}, &one);
  EXPECT_EQ(one, 7);
  EXPECT_EQ(file.find("two"), nullptr);
}

/// Counts the bytes that are asked for.
class CountingSource final : public accelerate::detail::ByteSource {
 public:
  explicit CountingSource(const std::string& bytes) : ByteSource("counted"), bytes_(bytes, "counted") { size_ = bytes.size(); }
  void read(void* bytes, uint64_t size, uint64_t offset) const override {
    asked += size;
    bytes_.read(bytes, size, offset);
  }
  mutable uint64_t asked = 0;

 private:
  MemorySource bytes_;
};

TEST(SafetensorsSlices, ReadNoMoreThanThePart) {
  const std::string bytes = some_safetensors();
  const CountingSource source(bytes);
  const accelerate::detail::SafetensorsFile file(source);
  const uint64_t before = source.asked;
  std::string part(16, '\0');
  const std::pair<int64_t, int64_t> ranges[] = {{0, 2}, {0, 1}};
  file.read_slice(*file.find("cube"), ranges, part.data());
  EXPECT_EQ(source.asked - before, 16u);
}

std::string torch_file_with(const accelerate::detail::PickleTensor& tensor, uint64_t storage_bytes) {
  accelerate::detail::PickleTree tree;
  tree.root = tree.dict({{tree.key("w"), tree.tensor(tensor)}});
  MemorySink sink;
  accelerate::detail::TorchFileWriter writer(sink, "some", *tree.root);
  writer.begin("0", storage_bytes);
  const std::string bytes(storage_bytes, 'x');
  writer.write(bytes.data(), bytes.size());
  writer.finish();
  return sink.bytes();
}

std::string torch_error(const accelerate::detail::PickleTensor& tensor, uint64_t storage_bytes) {
  const std::string bytes = torch_file_with(tensor, storage_bytes);
  const MemorySource source(bytes, "some.pt");
  const auto error = message_of<CheckpointError>([&] { accelerate::detail::TorchFile file(source); });
  if (error != "no error") expect_parts(error, {"some.pt"});
  return error;
}

TEST(TorchFile, TensorsOutsideTheirStoragesAreRefused) {
  accelerate::detail::PickleTensor tensor;
  tensor.storage = "0";
  tensor.dtype = accelerate::detail::find_dtype("float32");
  tensor.storage_elements = 6;
  tensor.sizes = {2, 3};
  tensor.strides = {3, 1};
  EXPECT_EQ(torch_error(tensor, 24), "no error");
  EXPECT_NE(torch_error(tensor, 23).find("too few"), std::string::npos);
  tensor.offset = 1;
  EXPECT_NE(torch_error(tensor, 24).find("extends past"), std::string::npos);
  tensor.offset = 0;
  tensor.strides = {4, 1};
  EXPECT_NE(torch_error(tensor, 24).find("extends past"), std::string::npos);
  tensor.strides = {INT64_MAX, 1};
  EXPECT_NE(torch_error(tensor, 24).find("overflows"), std::string::npos);
  tensor.strides = {3, 1};
  tensor.sizes = {INT64_MAX, 3};
  EXPECT_NE(torch_error(tensor, 24).find("overflows"), std::string::npos);
  tensor.sizes = {-2, 3};
  EXPECT_NE(torch_error(tensor, 24).find("inconsistent sizes"), std::string::npos);
  tensor.sizes = {2};
  EXPECT_NE(torch_error(tensor, 24).find("inconsistent sizes"), std::string::npos);
  tensor.sizes = {2, 3};
  tensor.storage = "1";
  EXPECT_NE(torch_error(tensor, 24).find("no storage 1"), std::string::npos);
  tensor.storage = "0";
  tensor.storage_elements = UINT64_MAX / 8;
  EXPECT_NE(torch_error(tensor, 24).find("too few"), std::string::npos);
}

TEST(TorchFile, ArchivesAreNamedAsTorchNamesThem) {
  EXPECT_EQ(accelerate::detail::torch_archive_name("a/b/optimizer.bin"), "optimizer");
  EXPECT_EQ(accelerate::detail::torch_archive_name("model.tar.gz"), "model.tar");
  EXPECT_EQ(accelerate::detail::torch_archive_name("plain"), "plain");
  EXPECT_EQ(accelerate::detail::torch_archive_name(".bin"), "archive");
  EXPECT_EQ(accelerate::detail::torch_archive_name("caf\xc3\xa9.pt"), "archive");
}

}  // namespace
