#include <accelerate/core/error.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.h"
#include "formats/elements.h"
#include "formats/safetensors_file.h"
#include "formats/torch_file.h"
#include "formats/weight_index.h"
#include "formats/weight_shards.h"
#include "support/error_text.h"

namespace {

using accelerate::detail::PickleKind;
using accelerate::detail::PickleNode;
using accelerate::detail::PickleTensor;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;
using Json = nlohmann::json;

std::filesystem::path golden_checkpoint(const std::string& name) {
  return std::filesystem::path(ACCELERATE_TEST_GOLDEN) / "checkpoints" / name;
}

Json golden_json(const std::string& name) { return Json::parse(std::ifstream(golden_checkpoint(name)), nullptr, true); }

double golden_number(const Json& json) {
  if (json == "NaN") return std::nan("");
  if (json == "Infinity" || json == "-Infinity") return json == "Infinity" ? INFINITY : -INFINITY;
  return json.is_boolean() ? json.get<bool>() : json.get<double>();
}

/// The elements as golden data lists them: row-major, complex numbers as two.
std::vector<double> flat_elements(const accelerate::detail::DtypeFacts& dtype, const std::vector<int64_t>& sizes,
                                  const std::vector<int64_t>& strides, const char* start) {
  std::vector<double> numbers;
  std::vector<int64_t> at(sizes.size(), 0);
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return numbers;
  for (;;) {
    int64_t offset = 0;
    for (size_t i = 0; i < at.size(); ++i) offset += at[i] * strides[i];
    const auto element = accelerate::detail::read_element(dtype, start + offset * dtype.bytes);
    if (const auto* complex = std::get_if<std::complex<double>>(&element)) {
      numbers.insert(numbers.end(), {complex->real(), complex->imag()});
    } else {
      std::visit(
          [&](const auto& value) {
            if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) numbers.push_back(static_cast<double>(value));
          },
          element);
    }
    size_t dimension = at.size();
    while (dimension > 0 && ++at[dimension - 1] == sizes[dimension - 1]) at[--dimension] = 0;
    if (dimension == 0) return numbers;
  }
}

void expect_tensor(const Json& expected, const std::string& dtype, const std::vector<int64_t>& shape,
                   const std::vector<double>& elements, const std::string& where) {
  EXPECT_EQ(Json(dtype), expected["dtype"]) << where;
  EXPECT_EQ(Json(shape), expected["shape"]) << where;
  ASSERT_EQ(elements.size(), expected["data"].size()) << where;
  for (size_t i = 0; i < elements.size(); ++i) {
    const double wanted = golden_number(expected["data"][i]);
    EXPECT_TRUE(std::isnan(wanted) ? std::isnan(elements[i])
                                   : elements[i] == wanted && std::signbit(elements[i]) == std::signbit(wanted))
        << where << " element " << i << ": " << elements[i] << " instead of " << wanted;
  }
}

/// Compares a torch file with the node and the layout that the real software gave for it.
class GoldenTree {
 public:
  explicit GoldenTree(const accelerate::detail::TorchFile& file) : file_(file) {}

  void expect(const Json& expected, const PickleNode& node, const std::string& path) {
    const std::string kind = expected["t"];
    if (kind == "tensor") return expect_tensor_at(expected, node.tensor(), path);
    if (kind == "list" || kind == "tuple") {
      EXPECT_TRUE(node.is(kind == "list" ? PickleKind::kList : PickleKind::kTuple)) << path;
      ASSERT_EQ(node.items().size(), expected["v"].size()) << path;
      for (size_t i = 0; i < node.items().size(); ++i) expect(expected["v"][i], *node.items()[i], path + "/" + std::to_string(i));
    } else if (kind == "dict") {
      ASSERT_EQ(node.dict().items.size(), expected["v"].size()) << path;
      for (size_t i = 0; i < node.dict().items.size(); ++i) expect_pair(expected["v"][i], node.dict().items[i], path);
    } else if (kind == "int" && node.is(PickleKind::kBigInt)) {
      EXPECT_EQ(std::stod(accelerate::detail::big_integer_text(node.text())), expected["v"].get<double>()) << path;
    } else if (kind == "int") {
      EXPECT_EQ(node.integer(), expected["v"].get<int64_t>()) << path;
    } else if (kind == "float") {
      EXPECT_EQ(node.number(), golden_number(expected["v"])) << path;
    } else if (kind == "str") {
      EXPECT_EQ(node.text(), expected["v"].get<std::string>()) << path;
    } else if (kind == "bool") {
      EXPECT_EQ(node.boolean(), expected["v"].get<bool>()) << path;
    } else {
      ASSERT_EQ(kind, "none");
      EXPECT_TRUE(node.is(PickleKind::kNone)) << path;
    }
  }

  void expect_layout(const Json& expected) {
    ASSERT_EQ(seen_.size(), expected.size());
    std::map<int, std::string> storages;
    for (const auto& place : expected) {
      const PickleTensor& tensor = *seen_.at(place["path"]);
      EXPECT_EQ(Json(tensor.strides), place["stride"]);
      EXPECT_EQ(tensor.offset, place["offset"].get<int64_t>());
      EXPECT_EQ(file_.storage(tensor.storage).size, place["storage_bytes"].get<uint64_t>());
      EXPECT_EQ(tensor.requires_grad, place["requires_grad"].get<bool>());
      EXPECT_EQ(tensor.parameter, place["parameter"].get<bool>());
      const auto [storage, is_new] = storages.try_emplace(place["storage"].get<int>(), tensor.storage);
      EXPECT_EQ(storage->second, tensor.storage) << place["path"];
    }
    std::set<std::string> different;
    for (const auto& [number, key] : storages) different.insert(key);
    EXPECT_EQ(different.size(), storages.size());
  }

 private:
  void expect_pair(const Json& expected, const std::pair<PickleNode*, PickleNode*>& pair, const std::string& path) {
    const std::string key = pair.first->is(PickleKind::kText) ? pair.first->text() : std::to_string(pair.first->integer());
    EXPECT_EQ(key, expected[0].is_string() ? expected[0].get<std::string>() : expected[0].dump());
    expect(expected[1], *pair.second, path + "/" + key);
  }

  void expect_tensor_at(const Json& expected, const PickleTensor& tensor, const std::string& path) {
    seen_[path] = &tensor;
    std::string bytes(file_.storage(tensor.storage).size + 16, '\0');
    file_.read(file_.storage(tensor.storage), bytes.data());
    const char* start = bytes.data() + tensor.offset * tensor.dtype->bytes;
    expect_tensor(expected, std::string(tensor.dtype->name), tensor.sizes,
                  flat_elements(*tensor.dtype, tensor.sizes, tensor.strides, start), path);
  }

  const accelerate::detail::TorchFile& file_;
  std::map<std::string, const PickleTensor*> seen_;
};

void expect_golden_torch_file(const Json& expected) {
  const std::string name = expected["file"];
  SCOPED_TRACE(name);
  const accelerate::detail::InputFile source(golden_checkpoint(name));
  const accelerate::detail::TorchFile file(source);
  GoldenTree tree(file);
  tree.expect(expected["content"], file.root(), "");
  tree.expect_layout(expected["layout"]);
}

void expect_golden_safetensors(const Json& expected) {
  const std::string name = expected["file"];
  SCOPED_TRACE(name);
  const accelerate::detail::InputFile source(golden_checkpoint(name));
  const accelerate::detail::SafetensorsFile file(source);
  EXPECT_EQ(file.header().entries.size(), expected["content"].size());
  for (const auto& [tensor, content] : expected["content"].items()) {
    const auto* entry = file.find(tensor);
    ASSERT_NE(entry, nullptr) << tensor;
    const auto* dtype = accelerate::detail::find_safetensors_dtype(entry->dtype);
    ASSERT_NE(dtype, nullptr) << entry->dtype;
    std::vector<int64_t> strides(entry->shape.size(), 1);
    for (size_t i = entry->shape.size(); i-- > 1;) strides[i - 1] = strides[i] * entry->shape[i];
    std::string bytes(entry->end - entry->begin, '\0');
    file.read(*entry, bytes.data());
    expect_tensor(content, std::string(dtype->name), entry->shape, flat_elements(*dtype, entry->shape, strides, bytes.data()),
                  tensor);
  }
}

/// Writes anew what a file holds, storages and all.
std::string written_again(const accelerate::detail::TorchFile& file, const std::string& name) {
  accelerate::detail::MemorySink sink;
  accelerate::detail::TorchFileWriter writer(sink, accelerate::detail::torch_archive_name(name), file.root());
  for (const auto& storage : file.storages()) {
    std::string bytes(storage.size, '\0');
    file.read(storage, bytes.data());
    writer.begin(storage.key, storage.size);
    writer.write(bytes.data(), bytes.size());
  }
  writer.finish();
  return sink.bytes();
}

TEST(GoldenFiles, TorchFilesOfEveryFormatHoldWhatPythonSaved) {
  const Json all = golden_json("files.json")["torch_save"];
  EXPECT_EQ(all.size(), 25u);
  for (const auto& file : all) expect_golden_torch_file(file);
}

TEST(GoldenFiles, FilesOfSavedStatesHoldWhatPythonSaved) {
  size_t seen = 0;
  const Json all = golden_json("state.json")["save_state"];
  for (const auto& state : all) {
    for (const auto& file : state["files"]) {
      const std::string name = file["file"];
      if (name.ends_with(".safetensors")) {
        expect_golden_safetensors(file);
      } else if (file.contains("content")) {
        expect_golden_torch_file(file);
      }
      ++seen;
    }
  }
  EXPECT_EQ(seen, 26u);
}

TEST(GoldenFiles, RandomStatesOfPythonNumpyAndTorchAreRead) {
  const Json all = golden_json("state.json")["save_state"];
  for (const auto& state : all) {
    for (const auto& expected : state["files"]) {
      if (!expected.contains("torch_state_head")) continue;
      const accelerate::detail::InputFile source(golden_checkpoint(expected["file"]));
      const accelerate::detail::TorchFile file(source);
      std::vector<std::string> keys;
      for (const auto& item : file.root().dict().items) keys.push_back(item.first->text());
      std::sort(keys.begin(), keys.end());
      std::vector<std::string> wanted = expected["keys"];
      std::sort(wanted.begin(), wanted.end());
      EXPECT_EQ(keys, wanted);
      EXPECT_EQ(file.root().find("step")->integer(), expected["step"].get<int64_t>());
      EXPECT_EQ(file.root().find("random_state")->items().at(1)->items().size(), 625u);
      const auto& numpy = file.root().find("numpy_random_seed")->items();
      EXPECT_EQ(numpy.at(0)->text(), "MT19937");
      EXPECT_EQ(numpy.at(1)->array().dtype, "<u4");
      EXPECT_EQ(numpy.at(1)->array().shape, std::vector<int64_t>{624});
      EXPECT_EQ(numpy.at(1)->array().bytes->text().size(), 624u * 4);
      EXPECT_EQ(numpy.at(2)->integer(), expected["numpy_position"].get<int64_t>());
      const auto& storage = file.storage(file.root().find("torch_manual_seed")->tensor().storage);
      EXPECT_EQ(storage.size, expected["torch_state_bytes"].get<uint64_t>());
      std::string bytes(storage.size, '\0');
      file.read(storage, bytes.data());
      for (size_t i = 0; i < expected["torch_state_head"].size(); ++i) {
        EXPECT_EQ(static_cast<unsigned char>(bytes[i]), expected["torch_state_head"][i].get<int>());
      }
    }
  }
}

TEST(GoldenFiles, WhatWasReadIsWrittenWithTheBytesOfPython) {
  size_t seen = 0;
  for (const auto& item : std::filesystem::recursive_directory_iterator(golden_checkpoint(""))) {
    const std::string name = item.path().filename();
    if (!name.ends_with(".pt") && !name.ends_with(".bin") && !name.ends_with(".pkl")) continue;
    // The old format and protocol 4 are read only; damaged files are another test's.
    if (name.find("_legacy") != std::string::npos || name.find("_protocol4") != std::string::npos || name.starts_with("damaged"))
      continue;
    const accelerate::detail::InputFile source(item.path());
    EXPECT_EQ(written_again(accelerate::detail::TorchFile(source), name), source.text(0, source.size())) << name;
    ++seen;
  }
  EXPECT_EQ(seen, 39u);
}

TEST(GoldenFiles, ProtocolFourAndTheOldFormatBecomeTheBytesOfTheZipFormat) {
  for (const std::string name : {"classic_dtypes", "nested", "parameters", "shapes", "views"}) {
    const accelerate::detail::InputFile zip(golden_checkpoint("torch_" + name + "_zip.pt"));
    const accelerate::detail::InputFile newer(golden_checkpoint("torch_" + name + "_protocol4.bin"));
    EXPECT_EQ(written_again(accelerate::detail::TorchFile(newer), "torch_" + name + "_zip.pt"), zip.text(0, zip.size())) << name;
  }
}

TEST(GoldenFiles, DamagedTorchFilesAreRefusedByName) {
  for (const std::string name : {"damaged_truncated.pt", "damaged_empty.pt", "damaged_text.pt", "damaged_flipped.pt"}) {
    const accelerate::detail::InputFile source(golden_checkpoint(name));
    expect_parts(message_of<accelerate::CheckpointError>([&] { const accelerate::detail::TorchFile file(source); }), {name});
  }
}

TEST(GoldenFiles, SafetensorsFilesHoldWhatPythonSaved) {
  const Json all = golden_json("files.json")["safetensors"];
  for (const auto& file : all) {
    if (file["content"].is_object() && !file["content"].contains("error")) expect_golden_safetensors(file);
  }
}

TEST(GoldenFiles, ModelsAreSplitIntoTheShardsOfPython) {
  const Json all = golden_json("state.json")["save_model"];
  for (const auto& model : all) {
    SCOPED_TRACE(model["name"].get<std::string>());
    const bool safe = model["safe_serialization"];
    const auto format = safe ? accelerate::detail::WeightFormat::kSafetensors : accelerate::detail::WeightFormat::kTorch;
    std::set<std::string> dropped;  // safetensors keep the first of tied tensors only
    std::map<std::string, uint64_t> tied;
    for (const auto& group : model["tied"]) {
      for (size_t i = 0; i < group.size(); ++i) {
        if (safe && i > 0) dropped.insert(group[i]);
        tied[group[i]] = 7;
      }
    }
    std::vector<accelerate::detail::WeightToPlace> weights;
    for (const auto& item : model["state_dict"]) {
      const std::string name = item[0];
      if (dropped.contains(name)) continue;
      const auto bytes = static_cast<uint64_t>(accelerate::detail::find_dtype(item[1]["dtype"].get<std::string>())->bytes);
      weights.push_back({name, bytes * item[1]["data"].size(), std::nullopt});
      if (tied.contains(name)) weights.back().storage = tied[name];
    }
    const auto& limit = model["max_shard_size"];
    const auto plan = accelerate::detail::plan_shards(
        weights, limit.is_string() ? accelerate::detail::parse_shard_size(limit.get<std::string>()) : limit.get<uint64_t>());
    accelerate::detail::WeightIndex index;
    index.total_size = plan.total_size;
    for (size_t shard = 0; shard < plan.shards.size(); ++shard) {
      const std::string file = accelerate::detail::weight_file_name(format, shard + 1, plan.shards.size());
      for (const auto& name : plan.shards[shard]) index.weight_map.emplace_back(name, file);
      EXPECT_TRUE(std::filesystem::exists(golden_checkpoint("model_" + model["name"].get<std::string>() + "/" + file))) << file;
    }
    for (const auto& file : model["files"]) {
      if (file.contains("text")) {
        EXPECT_EQ(accelerate::detail::write_weight_index(index), file["text"].get<std::string>());
      }
    }
  }
}

TEST(GoldenFiles, AnIndexIsReadAsPythonWroteIt) {
  const accelerate::detail::InputFile source(golden_checkpoint("model_sharded/model.safetensors.index.json"));
  const auto index = accelerate::detail::read_weight_index(source);
  EXPECT_EQ(index.total_size, 504u);
  EXPECT_EQ(index.weight_map.size(), 7u);
  EXPECT_EQ(index.files().size(), 4u);
  EXPECT_EQ(accelerate::detail::write_weight_index(index), source.text(0, source.size()));
}

}  // namespace
