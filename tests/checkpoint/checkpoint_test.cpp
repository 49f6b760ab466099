#include <sys/stat.h>
#include <torch/torch.h>

#include <fstream>

#include "support/error_text.h"
#include "support/paths.h"
#include "support/together.h"

namespace {

using accelerate::CheckpointError;
using accelerate::load_file;
using accelerate::save_file;
using accelerate::TensorDict;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::filesystem::path golden_file(const std::string& name) {
  return std::filesystem::path(kProjectFolder) / "tests/golden/checkpoints" / name;
}

TEST(SafetensorsFile, EveryDtypeAndShapeComesBack) {
  TemporaryFolder folder;
  TensorDict saved;
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kBool, torch::kByte,
                           torch::kChar, torch::kShort, torch::kInt, torch::kLong, torch::kComplexFloat, torch::kFloat8_e4m3fn,
                           torch::kFloat8_e5m2, torch::kUInt16, torch::kUInt32, torch::kUInt64}) {
    saved[c10::toString(dtype)] = torch::arange(6).reshape({2, 3}).to(dtype);
  }
  saved["scalar"] = torch::tensor(1.5);
  saved["empty"] = torch::empty({0, 3});
  saved["conjugated"] = torch::complex(torch::ones({2}), torch::ones({2})).conj();
  saved["transposed"] = torch::arange(6).reshape({2, 3}).t();
  save_file(saved, folder / "all.safetensors");
  const auto loaded = load_file(folder / "all.safetensors");
  EXPECT_EQ(loaded.size(), saved.size());
  for (const auto& [name, tensor] : saved) {
    EXPECT_EQ(loaded.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(loaded.at(name).sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(torch::equal(loaded.at(name).to(torch::kComplexDouble), tensor.to(torch::kComplexDouble))) << name;
  }
}

TEST(SafetensorsFile, TheSameTensorsGiveTheBytesThatPythonWrites) {
  TemporaryFolder folder;
  for (const std::string name : {"safetensors_dtypes", "safetensors_shapes", "safetensors_names", "safetensors_nothing"}) {
    const auto python = golden_file(name + ".safetensors");
    save_file(load_file(python), folder / "again.safetensors");
    EXPECT_EQ(bytes_of(folder / "again.safetensors"), bytes_of(python)) << name;
  }
}

TEST(SafetensorsFile, DamagedFilesAreRefusedByName) {
  size_t seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden_file(""))) {
    const auto name = entry.path().filename().string();
    if (!name.starts_with("damaged_") || entry.path().extension() != ".safetensors") continue;
    ++seen;
    EXPECT_NE(message_of<CheckpointError>([&] { load_file(entry.path()); }).find(name), std::string::npos) << name;
  }
  EXPECT_EQ(seen, 10u);
}

TEST(SafetensorsFile, AFileCutAnywhereIsRefused) {
  TemporaryFolder folder;
  save_file({{"a", torch::arange(3)}, {"b", torch::ones({2, 2})}}, folder / "whole.safetensors");
  const auto whole = bytes_of(folder / "whole.safetensors");
  for (size_t length = 0; length < whole.size(); ++length) {
    std::ofstream(folder / "cut.safetensors", std::ios::binary) << whole.substr(0, length);
    EXPECT_NE(message_of<CheckpointError>([&] { load_file(folder / "cut.safetensors"); }).find("cut.safetensors"),
              std::string::npos)
        << length;
  }
}

TEST(SafetensorsFile, ABadHeaderIsRefusedWithTheTensorsName) {
  TemporaryFolder folder;
  const auto told = [&](const std::string& json, size_t data) {
    std::string bytes(8, '\0');
    const uint64_t size = json.size();
    std::memcpy(bytes.data(), &size, 8);
    std::ofstream(folder / "bad.safetensors", std::ios::binary) << bytes << json << std::string(data, 'x');
    return message_of<CheckpointError>([&] { load_file(folder / "bad.safetensors"); });
  };
  const auto entry = [](const std::string& name, const std::string& shape, const std::string& offsets,
                        const std::string& dtype = "F32") {
    return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  EXPECT_NE(told("{" + entry("w", "[2]", "[0,8]") + "," + entry("w", "[2]", "[0,8]") + "}", 8).find("duplicate entry for w"),
            std::string::npos);
  EXPECT_NE(told("{" + entry("a", "[2]", "[0,8]") + "," + entry("b", "[2]", "[4,12]") + "}", 12).find("b overlaps"),
            std::string::npos);
  EXPECT_NE(told("{" + entry("a", "[2]", "[0,8]") + "," + entry("b", "[1]", "[12,16]") + "}", 16).find("b leaves a gap"),
            std::string::npos);
  EXPECT_NE(told("{" + entry("w", "[4611686018427387904,4611686018427387904]", "[0,8]") + "}", 8).find("too large"),
            std::string::npos);
  EXPECT_NE(told("{" + entry("w", "[0,4611686018427387904,4]", "[0,0]") + "}", 0).find("too large"), std::string::npos);
  EXPECT_NE(told("{" + entry("w", "[-1]", "[0,8]") + "}", 8).find("negative"), std::string::npos);
  EXPECT_NE(told("{" + entry("w", "[2]", "[8,0]") + "}", 8).find("w has data_offsets"), std::string::npos);
  EXPECT_NE(told("{" + entry("w", "[2]", "[0,8]", "F99") + "}", 8).find("unknown dtype F99"), std::string::npos);
  EXPECT_NE(told("{" + entry("w", "[2]", "[0,18446744073709551615]") + "}", 8).find("w has data_offsets"), std::string::npos);
  EXPECT_NE(told(R"({"w":{"dtype":"F32","dtype":"I8","shape":[1],"data_offsets":[0,4]}})", 4).find("duplicate key dtype"),
            std::string::npos);
  EXPECT_NE(told(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4).find("lacks dtype"), std::string::npos);
  EXPECT_NE(told(R"({"w":[1]})", 4).find("bad.safetensors"), std::string::npos);
  EXPECT_NE(told("{" + std::string(100000, '['), 0).find("bad.safetensors"), std::string::npos);
}

TEST(SafetensorsFile, AFileThatCannotBeWrittenLeavesTheOldOneAndNothingElse) {
  TemporaryFolder folder;
  save_file({{"w", torch::zeros({2})}}, folder / "kept.safetensors");
  EXPECT_THROW(save_file({{"w", torch::eye(2).to_sparse()}}, folder / "kept.safetensors"), CheckpointError);
  EXPECT_EQ(load_file(folder / "kept.safetensors").at("w").sum().item<double>(), 0);
  EXPECT_NE(message_of<CheckpointError>([&] {
              save_file({{"\xff", torch::zeros({2})}}, folder / "kept.safetensors");
            }).find("UTF-8"),
            std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_NE(message_of<CheckpointError>([&] {
              save_file({{"w", torch::zeros({2})}}, folder / "absent/x.safetensors");
            }).find("absent/x.safetensors"),
            std::string::npos);
  EXPECT_NE(message_of<CheckpointError>([&] { load_file(folder / "nowhere.safetensors"); }).find("nowhere.safetensors"),
            std::string::npos);
  std::filesystem::create_directory(folder / "folder.safetensors");
  EXPECT_NE(
      message_of<CheckpointError>([&] { load_file(folder / "folder.safetensors"); }).find("is a folder, not a regular file"),
      std::string::npos);
  EXPECT_THROW(save_file({}, folder / "weights.txt"), accelerate::UsageError);
}

TEST(SafetensorsFile, AFifoIsRefusedAndHostileNamesAreEscaped) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "model.safetensors").c_str(), 0600), 0);
  const std::string told = (folder / "model.safetensors").string() + " is a FIFO, not a regular file.";
  EXPECT_EQ(message_of<CheckpointError>([&] { load_file(folder / "model.safetensors"); }), told);
  EXPECT_EQ(message_of<CheckpointError>([&] { accelerate::load_weights(folder.path()); }), told);
  // What is told of the names in a file is one line, and nothing that a terminal obeys.
  save_file({{"\x1b]0;owned\a\nforged\u202e", torch::zeros({2})}}, folder / "hostile.safetensors");
  torch::nn::Linear net(2, 3);
  const std::string misfit =
      message_of<CheckpointError>([&] { accelerate::load_state_dict(*net, load_file(folder / "hostile.safetensors")); });
  EXPECT_NE(misfit.find("unexpected: \\x1b]0;owned\\x07\\nforged\\u202e"), std::string::npos) << misfit;
}

TEST(ModuleState, NamesAndOrderAreThoseOfPython) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  std::vector<std::string> names;
  for (const auto& item : accelerate::state_dict(*net)) names.push_back(item.first);
  EXPECT_EQ(names, (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
                                             "1.num_batches_tracked"}));
}

TEST(ModuleState, WhatDoesNotFitIsListedAndNothingIsChanged) {
  torch::nn::Linear net(2, 3);
  const auto before = net->weight.detach().clone();
  const TensorDict state = {{"weight", torch::zeros({3, 2})}, {"stray", torch::zeros({1})}};
  const auto text = message_of<CheckpointError>([&] { accelerate::load_state_dict(*net, state); });
  EXPECT_NE(text.find("missing: bias"), std::string::npos) << text;
  EXPECT_NE(text.find("unexpected: stray"), std::string::npos) << text;
  EXPECT_TRUE(torch::equal(net->weight, before));
  const auto shapes = message_of<CheckpointError>([&] {
    accelerate::load_state_dict(*net, {{"weight", torch::zeros({9, 9})}}, {.strict = false});
  });
  EXPECT_NE(shapes.find("weight (float32[9, 9] given, float32[3, 2] in the module)"), std::string::npos) << shapes;

  const auto report = accelerate::load_state_dict(*net, state, {.strict = false});
  EXPECT_EQ(report.missing, std::vector<std::string>{"bias"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"stray"});
  EXPECT_EQ(net->weight.abs().sum().item<double>(), 0);
}

TEST(ModuleState, DtypesAreConvertedToTheModules) {
  torch::nn::Linear net(2, 2);
  accelerate::load_state_dict(
      *net, {{"weight", torch::full({2, 2}, 0.5, torch::kBFloat16)}, {"bias", torch::ones({2}, torch::kDouble)}});
  EXPECT_EQ(net->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(net->weight[0][0].item<float>(), 0.5f);
  EXPECT_TRUE(net->weight.requires_grad());
}

TEST(TorchTensorFile, ComesBackUnderEveryExtension) {
  TemporaryFolder folder;
  const TensorDict saved = {{"a", torch::arange(6).reshape({2, 3}).t()}, {"b", torch::ones({2}, torch::kBFloat16)}};
  for (const std::string name : {"w.pt", "w.pth", "w.bin"}) {
    save_file(saved, folder / name);
    const auto loaded = load_file(folder / name);
    EXPECT_EQ(loaded.size(), 2U);
    EXPECT_EQ(loaded.at("a").strides(), saved.at("a").strides());
    EXPECT_TRUE(torch::equal(loaded.at("a"), saved.at("a")) && torch::equal(loaded.at("b"), saved.at("b"))) << name;
  }
}

TEST(TorchTensorFile, TensorsThatShareMemoryStillDo) {
  TemporaryFolder folder;
  const auto whole = torch::arange(6.0);
  save_file({{"whole", whole}, {"part", whole.slice(0, 2, 4)}}, folder / "shared.pt");
  const auto loaded = load_file(folder / "shared.pt");
  loaded.at("whole").fill_(7);
  EXPECT_EQ(loaded.at("part").sum().item<double>(), 14);
}

TEST(Renamed, NamesBeginOtherwiseAndKeepTheirOrder) {
  const TensorDict old = {{"body.a", torch::zeros({1})}, {"head", torch::ones({1})}, {"body.b", torch::zeros({1})}};
  std::vector<std::string> names;
  for (const auto& item : accelerate::renamed(old, {{"body.", "encoder."}, {"body", "never."}})) names.push_back(item.first);
  EXPECT_EQ(names, (std::vector<std::string>{"encoder.a", "head", "encoder.b"}));
  const auto shouted = accelerate::renamed(old, [](const std::string& name) { return name + "!"; });
  EXPECT_EQ(shouted.at("head!").item<float>(), 1);
  EXPECT_EQ(shouted.size(), 3U);
}

TEST(Renamed, TwoTensorsOfOneNameAreRefused) {
  const TensorDict old = {{"a.w", torch::zeros({1})}, {"b.w", torch::zeros({1})}};
  expect_parts(message_of<accelerate::UsageError>([&] {
                 accelerate::renamed(old, {{"a.", ""}, {"b.", ""}});
               }),
               {"a.w and b.w would both be called w"});
}

TEST(SavedWeights, AreCutAtANumberOfBytesAndReadAsOne) {
  TemporaryFolder folder;
  const TensorDict weights = {{"a", torch::ones({8})}, {"b", torch::zeros({8})}};
  accelerate::save_weights(weights, folder / "model", {.max_shard_size = "40"});
  EXPECT_TRUE(std::filesystem::exists(folder / "model/model-00002-of-00002.safetensors"));
  EXPECT_EQ(accelerate::load_weights(folder / "model").size(), 2U);
  for (const std::string size : {"", "x", "-1", "12 bytes"}) {
    EXPECT_THROW(accelerate::save_weights(weights, folder / "model", {.max_shard_size = size}), accelerate::UsageError) << size;
  }
}

TEST(ModuleState, AModuleIsTheSameWhetherItWasPreparedOrNot) {
  accelerate::Accelerator accelerator;
  const auto net = std::make_shared<torch::nn::LinearImpl>(2, 2);
  EXPECT_EQ(accelerate::extract_model_from_parallel(accelerator.prepare(net)), net);
  EXPECT_EQ(accelerate::extract_model_from_parallel(net), net);
}

}  // namespace
