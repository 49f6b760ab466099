#include "checkpoint_files/distributed_checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "checkpoint_files/distributed_writer.h"
#include "checkpoint_files/weight_sources.h"
#include "core/file.h"
#include "formats/pickle_writer.h"
#include "fuzz/counted_memory.h"
#include "support/temporary_folder.h"

// What torch itself makes of these files, and these of torch's, is in tests/processes.
namespace accelerate::testing {

using namespace detail;
namespace {

using Extents = std::vector<int64_t>;

std::string golden_distributed(const std::string& name) { return std::string(ACCELERATE_TEST_GOLDEN) + "/checkpoints/" + name; }

std::string distributed_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put_distributed_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string distributed_message(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A tensor whose elements are all different.
struct WholeTensor {
  StatePath path;
  const DtypeFacts* dtype;
  Extents shape;
  std::string bytes = {};

  uint64_t element() const { return static_cast<uint64_t>(dtype->bytes); }
  std::string part(uint64_t begin, uint64_t end) const { return bytes.substr(begin * element(), (end - begin) * element()); }
  std::string part(const TensorBox& box) const {
    std::string elements;
    for (uint64_t i = 0; i < box.elements(); ++i) {
      const uint64_t place = place_in_tensor(shape, box, i);
      elements += part(place, place + 1);
    }
    return elements;
  }
};

WholeTensor whole_tensor(const std::string& name, const char* dtype, Extents shape) {
  WholeTensor tensor{{"model", name}, find_dtype(dtype), std::move(shape)};
  std::mt19937_64 random(std::hash<std::string>{}(name));
  for (uint64_t i = 0; i < element_count(tensor.shape) * tensor.element(); ++i)
    tensor.bytes.push_back(static_cast<char>(random() % 256));
  return tensor;
}

using RankPieces = std::vector<SavedPiece>;

/// Writes what each rank has, and returns what `.metadata` says.
DistributedMetadata write_ranks(const std::filesystem::path& folder, const std::vector<RankPieces>& ranks) {
  std::filesystem::create_directories(folder);
  std::vector<DistributedMetadata> parts;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string name = distributed_file_name(static_cast<int>(rank));
    const auto plan = plan_distributed_file(ranks[rank], name);
    // As ranks send it to the one that writes.
    parts.push_back(read_distributed_metadata(write_distributed_metadata(plan), "a rank's part", MetadataScope::kPart));
    EXPECT_EQ(parts.back(), plan);
    OutputFile file(folder / name);
    write_distributed_file(ranks[rank], file);
    file.commit();
  }
  const auto metadata = joined_metadata(parts);
  put_distributed_bytes(folder / ".metadata", write_distributed_metadata(metadata));
  return metadata;
}

/// The flat shards of `ranks` ranks: equal but for the last.
std::vector<RankPieces> flat_shards(const std::vector<WholeTensor>& tensors, size_t ranks) {
  std::vector<RankPieces> pieces(ranks);
  for (const auto& tensor : tensors) {
    const uint64_t count = element_count(tensor.shape), share = (count + ranks - 1) / ranks;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const uint64_t begin = std::min(count, rank * share), end = std::min(count, begin + share);
      for (auto& piece :
           pieces_of_range(tensor.path, *tensor.dtype, tensor.shape, begin, end, tensor.bytes.data() + begin * tensor.element()))
        pieces[rank].push_back(std::move(piece));
    }
  }
  return pieces;
}

void expect_ranges_of(const DistributedCheckpoint& checkpoint, const WholeTensor& tensor, std::mt19937& random) {
  const DistributedTensor* found = checkpoint.find_tensor(flattened_name(tensor.path));
  ASSERT_NE(found, nullptr) << flattened_name(tensor.path);
  EXPECT_EQ(found->dtype, tensor.dtype);
  EXPECT_EQ(found->shape, tensor.shape);
  EXPECT_EQ(found->path, tensor.path);
  const uint64_t count = element_count(tensor.shape);
  for (size_t round = 0; round < 20; ++round) {
    uint64_t begin = round == 0 ? 0 : random() % (count + 1), end = round == 0 ? count : random() % (count + 1);
    if (begin > end) std::swap(begin, end);
    std::string bytes((end - begin) * tensor.element() + 1, '#');
    checkpoint.read(*found, begin, end, bytes.data());
    EXPECT_EQ(bytes, tensor.part(begin, end) + "#") << begin << " to " << end;
  }
}

TEST(DistributedCheckpoint, FlatShardsOfAnyNumberOfRanksAreReadByRanges) {
  const std::vector<WholeTensor> tensors = {
      whole_tensor("fc.weight", "float32", {7, 5}),
      whole_tensor("fc.bias", "bfloat16", {7}),
      whole_tensor("conv.weight", "float64", {3, 2, 3, 3}),
      whole_tensor("scale", "float32", {}),
      whole_tensor("nothing", "int64", {3, 0}),
      whole_tensor("one", "uint8", {1, 1}),
      whole_tensor("eighth", "float8_e4m3fn", {2, 9}),
      whole_tensor("mask", "bool", {31}),
  };
  std::mt19937 random(4);
  for (const size_t ranks : {1u, 2u, 3u, 5u, 16u}) {
    TemporaryFolder folder;
    const auto metadata = write_ranks(folder / "model", flat_shards(tensors, ranks));
    const DistributedCheckpoint checkpoint(folder / "model");
    EXPECT_EQ(checkpoint.tensors(), metadata.tensors);
    EXPECT_EQ(checkpoint.tensors().size(), tensors.size());
    for (const auto& tensor : tensors) expect_ranges_of(checkpoint, tensor, random);
  }
}

TEST(DistributedCheckpoint, BlocksOfRowsAndColumnsAreReadByRanges) {
  const auto tensor = whole_tensor("w", "float32", {6, 5, 4});
  std::vector<RankPieces> ranks(3);
  std::deque<std::string> kept;
  size_t next = 0;
  for (const Extents& offsets : {Extents{0, 0, 0}, {0, 3, 0}, {4, 0, 0}, {4, 0, 1}}) {
    const Extents end = offsets[0] == 4 ? (offsets[2] == 0 ? Extents{6, 5, 1} : Extents{6, 5, 4})
                                        : (offsets[1] == 0 ? Extents{4, 3, 4} : Extents{4, 5, 4});
    TensorBox box{offsets, {end[0] - offsets[0], end[1] - offsets[1], end[2] - offsets[2]}};
    SavedPiece piece{.path = tensor.path, .dtype = tensor.dtype, .shape = tensor.shape, .box = box};
    kept.push_back(tensor.part(box));
    piece.give = [bytes = &kept.back()](const TakeBytes& take) {
      take(bytes->data(), 7);
      take(bytes->data() + 7, bytes->size() - 7);
    };
    ranks[next++ % 3].push_back(std::move(piece));
  }
  TemporaryFolder folder;
  write_ranks(folder / "model", ranks);
  std::mt19937 random(5);
  expect_ranges_of(DistributedCheckpoint(folder / "model"), tensor, random);
}

TEST(DistributedCheckpoint, TorchsRowsAndColumnsAreReadByRangesAndWrittenWithTheSameBytes) {
  const DistributedCheckpoint checkpoint(golden_distributed("distributed/model"));
  const auto merged = open_weight_file(golden_distributed("distributed/merged.safetensors"));
  ASSERT_EQ(checkpoint.tensors().size(), merged.tensors.size());
  std::mt19937 random(6);
  for (const auto& found : checkpoint.tensors()) {
    WholeTensor tensor{found.path, found.dtype, found.shape};
    const WeightSource* source = merged.find(std::get<std::string>(found.path.back()));
    ASSERT_NE(source, nullptr);
    source->read([&](const void* bytes, uint64_t size) { tensor.bytes.append(static_cast<const char*>(bytes), size); });
    expect_ranges_of(checkpoint, tensor, random);
    for (const auto& chunk : found.chunks) {
      const std::string elements = tensor.part(chunk.box);
      MemorySink sink;
      write_distributed_file(
          {{.path = found.path, .dtype = found.dtype, .shape = found.shape, .box = chunk.box, .bytes = elements.data()}}, sink);
      const std::string file = distributed_bytes(golden_distributed("distributed/model/" + chunk.place.file));
      EXPECT_EQ(sink.bytes(), file.substr(chunk.place.offset, chunk.place.length)) << found.name;
    }
  }
}

TEST(DistributedCheckpoint, PlainDataComesBack) {
  PickleTree tree;
  PickleNode* betas = tree.tuple({tree.number(0.9), tree.number(0.999)});
  PickleNode* lr = tree.number(0.001);
  const StatePath path = {"optimizer", "param_groups", int64_t{0}, "betas"};
  TemporaryFolder folder;
  write_ranks(folder / "optimizer",
              {{{.path = path, .value = betas}, {.path = {"optimizer", "lr"}, .value = lr}}, {{.path = path, .value = betas}}});
  const DistributedCheckpoint checkpoint(folder / "optimizer");
  ASSERT_EQ(checkpoint.values().size(), 2u);
  const DistributedValue* found = checkpoint.find_value("optimizer.param_groups.0.betas");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->path, path);
  EXPECT_EQ(found->place.file, "__0_0.distcp");  // the first rank's
  const PickleTree read = checkpoint.read(*found);
  EXPECT_EQ(read.root->items()[1]->number(), 0.999);
  EXPECT_EQ(checkpoint.find_value("optimizer"), nullptr);
  EXPECT_EQ(checkpoint.find_tensor("optimizer.lr"), nullptr);
}

TEST(DistributedCheckpoint, OfALargeTensorNoMoreIsReadThanWasAskedFor) {
  const auto tensor = whole_tensor("w", "float32", {2048, 512});
  TemporaryFolder folder;
  write_ranks(folder / "model", flat_shards({tensor}, 3));
  const DistributedCheckpoint checkpoint(folder / "model");
  const auto bytes_read = [] {
    std::ifstream file("/proc/self/io");
    std::string name;
    uint64_t count = 0;
    file >> name >> count;
    return count;
  };
  std::string bytes(40'000, '\0');
  const uint64_t before = bytes_read();
  checkpoint.read(checkpoint.tensors()[0], 345'000, 355'000,
                  bytes.data());  // the end of one rank's and the beginning of another's
  EXPECT_LT(bytes_read() - before, 60'000u);
  EXPECT_EQ(bytes, tensor.part(345'000, 355'000));
  // Nor are other files opened.
  std::filesystem::remove(folder / "model/__2_0.distcp");
  EXPECT_NO_THROW(checkpoint.read(checkpoint.tensors()[0], 0, 10'000, bytes.data()));
}

TEST(DistributedCheckpoint, DamageIsToldWithFileAndTensor) {
  const auto weight = whole_tensor("fc.weight", "float32", {64, 32}), bias = whole_tensor("fc.bias", "float32", {64});
  TemporaryFolder folder;
  const std::filesystem::path model = folder / "model", file = model / "__1_0.distcp";
  const auto metadata = write_ranks(model, flat_shards({weight, bias}, 2));
  const std::string good = distributed_bytes(file);
  const auto read_all = [&] {
    const DistributedCheckpoint checkpoint(model);
    std::string bytes(weight.bytes.size(), '\0');
    checkpoint.read(*checkpoint.find_tensor("model.fc.weight"), 0, 64 * 32, bytes.data());
  };
  EXPECT_EQ(distributed_message(read_all), "nothing was thrown");
  put_distributed_bytes(file, good.substr(0, good.size() - 1));
  for (const char* part : {"model.fc.bias", "__1_0.distcp", "truncated"})
    EXPECT_PRED2(says, distributed_message([&] { read_all(); }), part);
  std::filesystem::remove(file);
  for (const char* part : {"model.fc.weight", "__1_0.distcp"}) EXPECT_PRED2(says, distributed_message([&] { read_all(); }), part);
  std::string flipped = good;
  const uint64_t in_weight = metadata.tensors[0].chunks.back().place.offset + 2000;
  flipped[in_weight] = static_cast<char>(flipped[in_weight] ^ 1);
  put_distributed_bytes(file, flipped);
  for (const char* part : {"model.fc.weight", "__1_0.distcp", "checksum"})
    EXPECT_PRED2(says, distributed_message([&] { read_all(); }), part);
  put_distributed_bytes(file, good.substr(100) + good.substr(0, 100));
  for (const char* part : {"model.fc.weight", "__1_0.distcp"}) EXPECT_PRED2(says, distributed_message([&] { read_all(); }), part);
  // A chunk of another dtype, and of another shape, than described.
  put_distributed_bytes(file, good);
  auto wrong = metadata;
  wrong.tensors[0].dtype = find_dtype("int32");
  put_distributed_bytes(model / ".metadata", write_distributed_metadata(wrong));
  for (const char* part : {"model.fc.weight", "__0_0.distcp", "does not match"})
    EXPECT_PRED2(says, distributed_message([&] { read_all(); }), part);
}

TEST(DistributedCheckpoint, AMetadataFileThatMustNotBeTrustedIsRefused) {
  const auto tensor = whole_tensor("w", "float32", {4, 6});
  TemporaryFolder folder;
  const std::filesystem::path model = folder / "model";
  const auto good = write_ranks(model, flat_shards({tensor}, 3));
  const auto refusal = [&](const std::function<void(DistributedMetadata&)>& change) {
    auto changed = good;
    change(changed);
    put_distributed_bytes(model / ".metadata", write_distributed_metadata(changed));
    const std::string said = distributed_message([&] { DistributedCheckpoint checkpoint(model); });
    EXPECT_NE(said.find("model.w"), std::string::npos) << said;
    return said;
  };
  auto& chunks = good.tensors[0].chunks;
  ASSERT_GE(chunks.size(), 3u);
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].chunks.pop_back(); }), "no chunk holds");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].chunks[1].box = {{0, 0}, {1, 6}}; }), "same offset");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].chunks[1].box.sizes = {3, 6}; }), "model.w");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].chunks[0].box.sizes = {4, 6}; }), "overlap");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].chunks[0].box.sizes = {5, 6}; }), "outside");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].chunks[0].box.offsets = {-1, 0}; }), "outside");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].chunks[0].box = {{0}, {1}}; }), "outside");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40}; }), "invalid shape");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].shape = {-4, 6}; }), "invalid shape");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].shape = {int64_t{1} << 60, 3}; }), "invalid shape");
  EXPECT_PRED2(says, refusal([](auto& all) {
                 all.tensors[0].shape = {1 << 20, 1 << 20};
                 all.tensors[0].chunks.resize(1);
                 all.tensors[0].chunks[0].box = {{0, 0}, {1 << 20, 1 << 20}};
               }),
               "more bytes than its place");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].chunks[0].place.length = uint64_t{1} << 50; }), "truncated");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].chunks[0].place.offset = uint64_t{1} << 63; }), "offset -");
  for (const char* file : {"../x", "/etc/passwd", "..", "", "a/b"})
    EXPECT_PRED2(says, refusal([&](auto& all) { all.tensors[0].chunks[0].place.file = file; }), "is not the name of a file");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].path = {}; }), "empty path");
  EXPECT_PRED2(says, refusal([](auto& all) { all.tensors[0].path = {"model", "w", "x"}; }), "path");
  // One file's bytes cannot be those of a tensor larger than all files.
  EXPECT_PRED2(says, refusal([&](auto& all) {
                 all.tensors[0].shape = {10'000};
                 all.tensors[0].chunks.clear();
                 for (int64_t i = 0; i < 100; ++i)
                   all.tensors[0].chunks.push_back({{{i * 100}, {100}}, {"__0_0.distcp", 0, 1000}});
               }),
               "more bytes than all files");
}

/// `.metadata` with what is given in place of its three dicts.
std::string pickled_metadata(PickleTree& tree, PicklePairs described, PicklePairs stored) {
  PickleNode* state = tree.dict({{tree.key("state_dict_metadata"), tree.dict(std::move(described))},
                                 {tree.key("planner_data"), tree.none()},
                                 {tree.key("storage_data"), tree.dict(std::move(stored))}});
  return write_pickle(*tree.make(
      PickleKind::kObject,
      std::make_unique<PickleObject>(PickleObject{.name = "torch.distributed.checkpoint.metadata.Metadata", .state = state})));
}

PickleNode* metadata_object(PickleTree& tree, const char* name, PickleNode* state) {
  return tree.make(PickleKind::kObject, std::make_unique<PickleObject>(PickleObject{.name = name, .state = state}));
}

TEST(DistributedCheckpoint, WhatMetadataTakesInMemoryFollowsItsBytes) {
  constexpr size_t kMany = 20'000;
  PickleTree tree;
  const auto size = [&](size_t dimensions, int64_t of) {
    return tree.make(PickleKind::kSize, PickleItems(dimensions, [&](size_t) { return tree.integer(of); }));
  };
  const auto tensor = [&](PickleNode* shape, PickleItems chunks) {
    PickleNode* properties = metadata_object(tree, "torch.distributed.checkpoint.metadata.TensorProperties",
                                             tree.tuple({tree.make(PickleKind::kDtype, find_dtype("float32"))}));
    return metadata_object(tree, "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
                           tree.dict({{tree.key("properties"), properties},
                                      {tree.key("size"), shape},
                                      {tree.key("chunks"), tree.list(std::move(chunks))}}));
  };
  PickleNode* chunk = metadata_object(tree, "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
                                      tree.dict({{tree.key("offsets"), size(9, 0)}, {tree.key("sizes"), size(9, 1)}}));
  PickleNode* index = metadata_object(tree, "torch.distributed.checkpoint.metadata.MetadataIndex",
                                      tree.dict({{tree.key("fqn"), tree.key("w")}, {tree.key("offset"), size(9, 0)}}));
  PickleNode* place = metadata_object(tree, "torch.distributed.checkpoint.filesystem._StorageInfo",
                                      tree.dict({{tree.key("relative_path"), tree.text(std::string(255, 'x'))},
                                                 {tree.key("offset"), tree.integer(0)},
                                                 {tree.key("length"), tree.integer(4)}}));
  PicklePairs same_chunks = {{tree.key("w"), tensor(size(9, 2), PickleItems(kMany, [&](size_t) { return chunk; }))}};
  PickleNode* empty = tensor(size(64, 0), {});
  PicklePairs same_tensors(kMany, [&](size_t i) { return std::pair(tree.text(std::to_string(i)), empty); });
  DistributedMetadata many;
  many.tensors.push_back({"w", {"w"}, find_dtype("float32"), {static_cast<int64_t>(kMany)}});
  for (size_t i = 0; i < kMany; ++i) many.tensors[0].chunks.push_back({{{static_cast<int64_t>(i)}, {1}}, {"f", i * 9, 9}});
  const std::string same_shape = pickled_metadata(tree, std::move(same_tensors), {});
  for (const std::string& bytes :
       {same_shape, pickled_metadata(tree, std::move(same_chunks), {{index, place}}), write_distributed_metadata(many)}) {
    const CountedMemory memory;
    distributed_message([&] { read_distributed_metadata(bytes, "m"); });
    EXPECT_LE(memory.peak(), 44 * bytes.size() + (1 << 20))
        << static_cast<double>(memory.peak()) / static_cast<double>(bytes.size());
    EXPECT_LE(memory.largest(), 2 * bytes.size() + (1 << 20));
  }
  EXPECT_PRED2(says, distributed_message([&] { read_distributed_metadata(same_shape, "m"); }), "over and over");
}

TEST(DistributedWriter, ThePlanSaysWhatIsWrittenWhere) {
  PickleTree tree;
  const auto tensor = whole_tensor("w", "float32", {9, 11});
  auto pieces = pieces_of_range(tensor.path, *tensor.dtype, tensor.shape, 5, 80, tensor.bytes.data());
  pieces.push_back({.path = {"lr"}, .value = tree.number(0.5)});
  for (auto& piece : pieces_of_range(tensor.path, *tensor.dtype, tensor.shape, 80, 99, tensor.bytes.data()))
    pieces.push_back(piece);
  const auto plan = plan_distributed_file(pieces, "f");
  MemorySink all;
  write_distributed_file(pieces, all);
  uint64_t end = 0;
  for (size_t i = 0, chunk = 0; i < pieces.size(); ++i) {
    const StoredPlace& place = pieces[i].value != nullptr ? plan.values[0].place : plan.tensors[0].chunks[chunk++].place;
    EXPECT_EQ(place.offset, end);
    end += place.length;
    MemorySink one;
    write_distributed_file({pieces[i]}, one);
    EXPECT_EQ(all.bytes().substr(place.offset, place.length), one.bytes());
  }
  EXPECT_EQ(end, all.bytes().size());
}

TEST(DistributedWriter, WhatCannotBeSavedIsRefused) {
  PickleTree tree;
  const DtypeFacts& dtype = *find_dtype("float32");
  const SavedPiece good{.path = {"w"}, .dtype = &dtype, .shape = {2}, .box = {{0}, {2}}, .bytes = "12345678"};
  const auto refused = [](SavedPiece piece) { plan_distributed_file({std::move(piece)}, "f"); };
  auto wrong = good;
  wrong.box = {{1}, {2}};
  EXPECT_PRED2(says, distributed_message([&] { refused(wrong); }), "outside");
  wrong = good;
  wrong.value = tree.none();
  EXPECT_PRED2(says, distributed_message([&] { refused(wrong); }), "either a dtype or a value");
  EXPECT_PRED2(says, distributed_message([&] { refused({.path = {"w"}}); }), "either a dtype or a value");
  EXPECT_PRED2(says, distributed_message([&] { refused({.path = {}, .value = tree.none()}); }), "no name");
  PickleTensor tensor;
  tensor.storage = "0";
  tensor.dtype = &dtype;
  EXPECT_PRED2(says, distributed_message([&] { refused({.path = {"v"}, .value = tree.list({tree.tensor(tensor)})}); }),
               "plain data with tensors");
  wrong = good;
  wrong.give = [](const TakeBytes& take) { take("1234", 4); };
  MemorySink sink;
  EXPECT_PRED2(says, distributed_message([&] { write_distributed_file({wrong}, sink); }), "4 were given");
  wrong = good;
  wrong.dtype = find_dtype("int32");
  EXPECT_PRED2(says, distributed_message([&] { plan_distributed_file({good, wrong}, "f"); }), "differ in dtype");
}

TEST(DistributedWriter, RanksMustAgreeAndCoverEveryTensor) {
  const DtypeFacts& dtype = *find_dtype("float32");
  const auto part = [&](int64_t begin, int64_t size, const char* file) {
    return plan_distributed_file({{.path = {"w"}, .dtype = &dtype, .shape = {8}, .box = {{begin}, {size}}, .bytes = "x"}}, file);
  };
  const auto first = part(0, 4, "a"), second = part(4, 4, "b"), copy = part(0, 4, "c");
  const auto joined = joined_metadata({first, second, copy});
  ASSERT_EQ(joined.tensors[0].chunks.size(), 2u);
  EXPECT_EQ(joined.tensors[0].chunks[0].place.file, "a");
  EXPECT_PRED2(says, distributed_message([&] { joined_metadata({first}); }), "no chunk holds");
  EXPECT_PRED2(says, distributed_message([&] { joined_metadata({first, part(3, 5, "b")}); }), "overlap");
  auto other = second;
  other.tensors[0].dtype = find_dtype("int32");
  EXPECT_PRED2(says, distributed_message([&] { joined_metadata({first, other}); }), "disagree on its dtype");
  other = second;
  other.tensors[0].shape = {9};
  EXPECT_PRED2(says, distributed_message([&] { joined_metadata({first, other}); }), "disagree on its shape");
  other = second;
  other.tensors[0].path = {"w", "w"};
  EXPECT_PRED2(says, distributed_message([&] { joined_metadata({first, other}); }), "disagree on its path");
  EXPECT_PRED2(says, distributed_message([&] { joined_metadata({first, second, {.values = {{"w", {"w"}}}}}); }), "is a tensor");
  EXPECT_PRED2(says, distributed_message([&] {
                 write_distributed_metadata({.values = {{"w", {"w"}}, {"w", {"w"}}}});
               }),
               "two values called w");
}

TEST(WeightSources, AnyRangeIsReadFromFilesOfAnyFormat) {
  std::mt19937 random(7);
  for (const char* name : {"model_whole", "model_sharded", "model_sharded_bin", "distributed/model", "torch_views_zip.pt",
                           "torch_views_legacy.bin", "safetensors_dtypes.safetensors"}) {
    const std::filesystem::path path = golden_distributed(name);
    const auto weights = std::filesystem::is_directory(path) ? find_weight_sources(path) : open_weight_file(path);
    ASSERT_FALSE(weights.tensors.empty()) << name;
    for (const auto& tensor : weights.tensors) {
      EXPECT_EQ(weights.find(tensor.name)->bytes, tensor.bytes);
      if (tensor.dtype == nullptr) continue;
      std::string whole;
      tensor.read([&](const void* bytes, uint64_t size) { whole.append(static_cast<const char*>(bytes), size); });
      const auto element = static_cast<uint64_t>(tensor.dtype->bytes);
      const uint64_t count = tensor.bytes / element;
      for (size_t round = 0; round < 10; ++round) {
        uint64_t begin = random() % (count + 1), end = random() % (count + 1);
        if (begin > end) std::swap(begin, end);
        std::string part((end - begin) * element + 1, '#');
        read_range(tensor, begin, end, part.data());
        EXPECT_EQ(part, whole.substr(begin * element, (end - begin) * element) + "#") << name << " " << tensor.name;
      }
      EXPECT_PRED2(says, distributed_message([&] { read_range(tensor, 0, count + 1, nullptr); }), tensor.name);
    }
    EXPECT_EQ(weights.find("no such tensor"), nullptr);
  }
}

}  // namespace
}  // namespace accelerate::testing
