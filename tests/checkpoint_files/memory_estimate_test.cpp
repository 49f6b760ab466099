#include "checkpoint_files/memory_estimate.h"

#include <accelerate/core/error.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/hub_cache.h"
#include "support/error_text.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

namespace fs = std::filesystem;

/// A safetensors file of tensors without much in them: names, dtypes and shapes.
struct PlannedTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  uint64_t bytes;
};
void write_planned(const fs::path& path, const std::vector<PlannedTensor>& tensors) {
  nlohmann::ordered_json header;
  uint64_t end = 0;
  for (const auto& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {end, end + tensor.bytes}}};
    end += tensor.bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text << std::string(end, '\0');
}

/// 236 bytes and its kin: two linear layers, a norm with a counter, and a block of two.
const std::vector<PlannedTensor> kPlannedModel = {{"scale", "F32", {2}, 8},
                                                  {"wte.weight", "F16", {10, 4}, 80},
                                                  {"h.0.up.weight", "BF16", {8, 4}, 64},
                                                  {"h.0.down.weight", "F32", {4, 8}, 128},
                                                  {"h.10.up.weight", "F32", {2, 4}, 32},
                                                  {"norm.weight", "F32", {4}, 16},
                                                  {"norm.steps", "I64", {}, 8},
                                                  {"norm.mask", "BOOL", {16}, 16}};

Environment hub_variables(std::map<std::string, std::string> values) {
  return [values](const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

ProgramResult estimate_command(std::vector<std::string> arguments, const std::string& hub = "/nowhere") {
  arguments.insert(arguments.begin(), {"/usr/bin/env", "HF_HUB_CACHE=" + hub, ACCELERATE_CLI, "estimate-memory"});
  return run_program(arguments);
}

bool text_has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(GoldenFiles, TablesOfEstimates) {
  std::ifstream file(std::string(ACCELERATE_TEST_GOLDEN) + "/estimate_memory.json");
  const auto data = nlohmann::json::parse(file);
  for (const auto& c : data.at("cases")) {
    const WeightSizes sizes{.total = c.at("total"), .largest_layer = c.at("layer"), .largest_names = {}};
    std::vector<MemoryEstimate> estimates;
    for (const auto& dtype : c.at("dtypes")) estimates.push_back(estimate_memory(sizes, dtype.get<std::string>()));
    EXPECT_EQ("\n" + estimates_table(c.at("name"), estimates), "\n" + c.at("table").get<std::string>());
  }
}

TEST(MemoryEstimate, CountsFloatsAsFloat32AndTheOthersAsTheyAre) {
  const TemporaryFolder folder;
  write_planned(fs::path(folder.name()) / "model.safetensors", kPlannedModel);
  const WeightSizes sizes = read_weight_sizes(folder.name());
  EXPECT_EQ(sizes.tensors, 8u);
  EXPECT_EQ(sizes.total, 8 + 160 + 128 + 128 + 32 + 16 + 8 + 2);
  EXPECT_EQ(sizes.largest_layer, 256);
  EXPECT_EQ(sizes.largest_names, (std::vector<std::string>{"h.0"}));
}

TEST(MemoryEstimate, AFileAnIndexAndAConfigurationBesideThemSayTheSame) {
  const TemporaryFolder folder;
  const fs::path path = folder.name();
  const std::vector<PlannedTensor> first(kPlannedModel.begin(), kPlannedModel.begin() + 3),
      second(kPlannedModel.begin() + 3, kPlannedModel.end());
  write_planned(path / "model-00001-of-00002.safetensors", first);
  write_planned(path / "model-00002-of-00002.safetensors", second);
  nlohmann::json index = {{"weight_map", nlohmann::json::object()}};
  for (const auto& tensor : first) index["weight_map"][tensor.name] = "model-00001-of-00002.safetensors";
  for (const auto& tensor : second) index["weight_map"][tensor.name] = "model-00002-of-00002.safetensors";
  std::ofstream(path / "model.safetensors.index.json") << index;
  std::ofstream(path / "config.json") << "{\"model_type\": \"gpt2\"}";
  for (const char* name : {"", "model.safetensors.index.json", "config.json"}) {
    EXPECT_EQ(read_weight_sizes(path / name).total, 482) << name;
  }
  EXPECT_EQ(read_weight_sizes(path / "model-00001-of-00002.safetensors").total, 8 + 160 + 128);
}

TEST(MemoryEstimate, AConfigurationWithoutWeightsSaysWhatIsMissing) {
  const TemporaryFolder folder;
  std::ofstream(fs::path(folder.name()) / "config.json") << "{}";
  const std::string text = message_of<Error>([&] { read_weight_sizes(fs::path(folder.name()) / "config.json"); });
  EXPECT_TRUE(text_has(text, "config.json")) << text;
  EXPECT_TRUE(text_has(text, "model.safetensors")) << text;
}

TEST(MemoryEstimate, ATiedWeightOfATorchFileCountsOnce) {
  const WeightSizes sizes = read_weight_sizes(std::string(ACCELERATE_TEST_GOLDEN) + "/checkpoints/torch_shared_zip.pt");
  EXPECT_EQ(sizes.tensors, 2u);  // a is b; c has its memory in another shape
  EXPECT_EQ(sizes.total, 48);
}

ShardEstimate estimate_of(const std::vector<ShardEstimate>& estimates, const std::string& precision,
                          const std::string& strategy) {
  for (const auto& estimate : estimates) {
    if (estimate.precision == precision && estimate.strategy == strategy) return estimate;
  }
  ADD_FAILURE() << "there is no estimate for " << precision << " and " << strategy;
  return {};
}

TEST(ShardEstimate, StateIsDividedByTheRanksAndUnitsAreWhole) {
  const WeightSizes sizes{.tensors = 9, .total = 4096, .largest_layer = 256, .largest_names = {}};
  const auto four = estimate_sharding(sizes, 4);
  EXPECT_EQ(four.size(), 8u);
  const auto full = estimate_of(four, "float32", "full_shard");
  EXPECT_EQ(full.weights, 1024);
  EXPECT_EQ(full.gradients, 1024);
  EXPECT_EQ(full.optimizer, 2048);
  EXPECT_EQ(full.units, 4 * 256) << "weights and gradients of two units";
  EXPECT_EQ(full.peak, 4096 + 1024);
  EXPECT_EQ(full.host, 0);
  EXPECT_EQ(estimate_of(four, "bf16", "full_shard").peak, 4096 + 512) << "units are half as large, shards are not";
  EXPECT_EQ(estimate_of(four, "float32", "shard_grad_op").peak, 4096 + 4096 + 512) << "all weights are whole";
  EXPECT_EQ(estimate_of(four, "float32", "no_shard").peak, 4 * 4096);
  EXPECT_EQ(estimate_of(four, "bf16", "no_shard").peak, 4 * 4096 + 2048);
  const auto offloaded = estimate_of(four, "float32", "full_shard + CPU offload");
  EXPECT_EQ(offloaded.peak, 1024);
  EXPECT_EQ(offloaded.host, 4096);
  const WeightSizes one_layer{.tensors = 1, .total = 4096, .largest_layer = 4096, .largest_names = {}};
  EXPECT_EQ(estimate_of(estimate_sharding(one_layer, 4), "float32", "full_shard").units, 2 * 4096) << "there is no second unit";
  EXPECT_EQ(estimate_of(estimate_sharding(sizes, 1), "float32", "full_shard").weights, 4096);
}

TEST(EstimateCommand, ShardAddsWhatEachRankNeeds) {
  const TemporaryFolder folder;
  write_planned(fs::path(folder.name()) / "model.safetensors", kPlannedModel);
  const auto table = estimate_command({folder.name(), "--shard", "2"});
  EXPECT_EQ(table.exit_code, 0) << table.errors;
  for (const char* part : {"on 2 ranks", "full_shard + CPU offload", "shard_grad_op", "no_shard", "bf16", "Peak on Device"}) {
    EXPECT_TRUE(text_has(table.output, part)) << part << "\n" << table.output;
  }
  const auto json = nlohmann::json::parse(estimate_command({folder.name(), "--shard", "2", "--json"}).output);
  EXPECT_EQ(json.at("sharding").at("ranks"), 2);
  EXPECT_EQ(json.at("sharding").at("per_rank").size(), 8u);
  EXPECT_EQ(json.at("sharding").at("per_rank").at(2).at("strategy"), "full_shard");
  EXPECT_EQ(json.at("sharding").at("per_rank").at(2).at("weights"), 241);
  EXPECT_FALSE(nlohmann::json::parse(estimate_command({folder.name(), "--json"}).output).contains("sharding"));
  for (const char* wrong : {"0", "-2", "two", "1.5"}) {
    const auto refused = estimate_command({folder.name(), "--shard", wrong});
    EXPECT_EQ(refused.exit_code, 2) << wrong;
    EXPECT_TRUE(text_has(refused.errors, wrong)) << refused.errors;
  }
}

TEST(EstimateCommand, PrintsTheTableOfTheDtypesThatWereAskedFor) {
  const TemporaryFolder folder;
  write_planned(fs::path(folder.name()) / "model.safetensors", kPlannedModel);
  const auto all = estimate_command({folder.name()});
  EXPECT_EQ(all.exit_code, 0) << all.errors;
  for (const char* part : {"float32", "float16", "int8", "int4", "482 bytes", "256 bytes", "1.88 KB", "N/A"}) {
    EXPECT_TRUE(text_has(all.output, part)) << part << "\n" << all.output;
  }
  EXPECT_FALSE(text_has(all.output, "bfloat16"));
  for (const auto& arguments : {std::vector<std::string>{folder.name(), "--dtypes", "bfloat16", "int8"},
                                std::vector<std::string>{"--dtypes", "bfloat16", "int8", folder.name()}}) {
    const auto two = estimate_command(arguments);
    EXPECT_EQ(two.exit_code, 0) << two.errors;
    EXPECT_TRUE(text_has(two.output, "bfloat16")) << two.output;
    EXPECT_TRUE(text_has(two.output, "int8")) << two.output;
    EXPECT_FALSE(text_has(two.output, "float32")) << two.output;
  }
}

TEST(EstimateCommand, ShortNamesOfDtypesAreUnderstood) {
  const std::string model = std::string(ACCELERATE_TEST_GOLDEN) + "/checkpoints/state_adamw";
  const auto full = run_program({ACCELERATE_CLI, "estimate-memory", "--dtypes", "bfloat16", "float16", "float32", model});
  EXPECT_EQ(full.exit_code, 0) << full.errors;
  for (const std::vector<std::string>& names :
       std::vector<std::vector<std::string>>{{"bf16", "fp16", "fp32"}, {"bf16", "half", "float"}}) {
    std::vector<std::string> line = {ACCELERATE_CLI, "estimate-memory", "--dtypes"};
    line.insert(line.end(), names.begin(), names.end());
    line.push_back(model);
    const auto result = run_program(line);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(result.output, full.output);
  }
}

TEST(EstimateCommand, JsonHasBytes) {
  const TemporaryFolder folder;
  write_planned(fs::path(folder.name()) / "model.safetensors", kPlannedModel);
  const auto result = estimate_command({folder.name(), "--json", "--dtypes", "float16", "int4"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["largest_layers"], nlohmann::json({"h.0"}));
  ASSERT_EQ(json["estimates"].size(), 2u);
  EXPECT_EQ(json["estimates"][0]["total_size"], 241);
  EXPECT_EQ(json["estimates"][0]["training"], 964);
  EXPECT_TRUE(json["estimates"][1]["training"].is_null());
}

TEST(EstimateCommand, WrongArgumentsAreNamed) {
  const auto dtype = estimate_command({"x", "--dtypes", "float31"});
  EXPECT_EQ(dtype.exit_code, 2);
  EXPECT_TRUE(text_has(dtype.errors, "float31")) << dtype.errors;
  const auto missing = estimate_command({"some/model"});
  EXPECT_NE(missing.exit_code, 0);
  EXPECT_TRUE(text_has(missing.errors, "hf download some/model")) << missing.errors;
  const auto path = estimate_command({"./no/such/folder"});
  EXPECT_NE(path.exit_code, 0);
  EXPECT_TRUE(text_has(path.errors, "./no/such/folder")) << path.errors;
}

TEST(EstimateCommand, ADownloadedModelIsFoundByItsName) {
  const TemporaryFolder folder;
  const fs::path model = fs::path(folder.name()) / "models--some--model";
  write_planned(model / "snapshots" / "abc123" / "model.safetensors", kPlannedModel);
  fs::create_directories(model / "refs");
  std::ofstream(model / "refs" / "main") << "abc123";
  const auto result = estimate_command({"some/model"}, folder.name());
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_TRUE(text_has(result.output, "`some/model`")) << result.output;
}

TEST(HubCache, LiesWhereHuggingfaceHubPutsIt) {
  EXPECT_EQ(hub_cache_folder(hub_variables({{"HOME", "/h"}})), "/h/.cache/huggingface/hub");
  EXPECT_EQ(hub_cache_folder(hub_variables({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}})), "/x/huggingface/hub");
  EXPECT_EQ(hub_cache_folder(hub_variables({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "~/f"}})), "/h/f/hub");
  EXPECT_EQ(hub_cache_folder(hub_variables({{"HF_HOME", "/f"}, {"HF_HUB_CACHE", "/c"}})), "/c");
  EXPECT_EQ(hub_cache_folder(hub_variables({{"HOME", "/h"}, {"HF_HOME", ""}})), "/h/.cache/huggingface/hub");
}

TEST(HubCache, ANameCannotLeadElsewhere) {
  const TemporaryFolder folder;
  const auto environment = hub_variables({{"HF_HUB_CACHE", folder.name()}});
  for (const char* name : {"../up", "a/../b", "a/b/c", "/abs/olute", "", "a b", "~", "a/"}) {
    EXPECT_TRUE(text_has(message_of<Error>([&] { find_model(name, environment); }), "not the name of a model")) << name;
  }
  fs::create_directories(fs::path(folder.name()) / "models--a--b" / "refs");
  std::ofstream(fs::path(folder.name()) / "models--a--b" / "refs" / "main") << "../../../elsewhere";
  EXPECT_TRUE(text_has(message_of<Error>([&] { find_model("a/b", environment); }), "hf download a/b"));
}

}  // namespace
}  // namespace accelerate::testing
