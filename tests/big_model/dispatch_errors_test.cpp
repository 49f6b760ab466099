// What people will meet: each error names the thing, and nothing stays half loaded.
#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "big_model/towers.h"
#include "support/error_text.h"

namespace fs = std::filesystem;
using accelerate::LoadCheckpointOptions;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;
using towers::empty_tower;
using towers::Saved;
using towers::Tower;

namespace {

/// Loads what cannot be loaded, and returns what is said. The model must be as empty as before.
std::string refusal(const std::string& checkpoint, const LoadCheckpointOptions& options) {
  const Tower tower = empty_tower();
  const auto text = message_of<accelerate::Error>([&] { accelerate::load_checkpoint_and_dispatch(tower, checkpoint, options); });
  if (text == "no error") return text;
  for (const auto& parameter : tower->named_parameters()) EXPECT_TRUE(parameter.value().is_meta()) << parameter.key();
  return text;
}

/// A checkpoint with other tensors than the tower has.
std::string checkpoint_without(const Saved& saved, const std::string& dropped, const std::string& added = "") {
  accelerate::TensorDict weights;
  for (const auto& [name, tensor] : accelerate::state_dict(*saved.tower)) {
    if (name != dropped) weights[name] = tensor;
  }
  if (!added.empty()) weights[added] = torch::ones({2});
  const std::string file = saved.folder / "other.safetensors";
  accelerate::save_file(weights, file);
  return file;
}

TEST(DispatchErrors, AMapThatMissesAParameterNamesIt) {
  const Saved saved;
  expect_parts(refusal(saved.checkpoint(),
                       {.device_map = {{"embedding", "cpu"}, {"blocks", "cpu"}, {"scale", "cpu"}, {"temperature", "cpu"}}}),
               {"head.weight"});
}

TEST(DispatchErrors, AMapThatNamesNoModuleOfTheModelSaysWhich) {
  const Saved saved;
  expect_parts(refusal(saved.checkpoint(), {.device_map = {{"", "cpu"}, {"haed", "disk"}}}), {"haed"});
}

TEST(DispatchErrors, ADeviceThatIsNotThere) {
  const Saved saved;
  expect_parts(refusal(saved.checkpoint(), {.device_map = {{"", "cpu"}, {"head", 100}}}), {"cuda:100", "here"});
  expect_parts(refusal(saved.checkpoint(), {.device_map = "cpu", .main_device = c10::Device("cuda:100")}), {"cuda:100", "here"});
}

TEST(DispatchErrors, ACheckpointThatIsNotThere) {
  const Saved saved;
  expect_parts(refusal(saved.folder / "nowhere", {.device_map = "disk"}), {"nowhere"});
  fs::create_directories(saved.folder / "bare");
  expect_parts(refusal(saved.folder / "bare", {.device_map = "disk"}), {"bare", "no weights"});
}

TEST(DispatchErrors, WeightsThatMustBeWrittenNeedAFolder) {
  const Saved saved;
  expect_parts(refusal(saved.checkpoint(), {.device_map = "disk", .dtype = torch::kBFloat16}),
               {"offloaded to disk", "offload_folder"});
  const Tower real(100, 32, 4);
  expect_parts(message_of<accelerate::UsageError>([&] {
                 accelerate::dispatch_model(real, {{"", "disk"}});
               }),
               {"offloaded to disk", "offload_dir"});
}

TEST(DispatchErrors, AFolderThatCannotBeWrittenIsNamed) {
  const Saved saved;
  std::ofstream(saved.folder / "file") << "no folder";
  expect_parts(refusal(saved.checkpoint(),
                       {.device_map = "disk", .offload_folder = saved.folder / "file" / "below", .dtype = torch::kBFloat16}),
               {"file"});
  if (geteuid() == 0)
    expect_parts(
        refusal(saved.checkpoint(), {.device_map = "disk", .offload_folder = "/proc/nowhere", .dtype = torch::kBFloat16}),
        {"/proc/nowhere"});
}

TEST(DispatchErrors, StrictMeansStrict) {
  const Saved saved;
  expect_parts(refusal(checkpoint_without(saved, "blocks.1.up.bias"), {.device_map = "disk", .strict = true}),
               {"missing", "blocks.1.up.bias"});
  expect_parts(refusal(checkpoint_without(saved, "", "stranger"), {.device_map = "disk", .strict = true}),
               {"unexpected", "stranger"});
  EXPECT_EQ(refusal(saved.checkpoint(), {.device_map = "disk", .strict = true}), "no error");
}

TEST(DispatchErrors, AnotherShapeIsAnErrorAlsoWhenNotStrict) {
  const Saved saved;
  auto weights = accelerate::state_dict(*saved.tower);
  weights["head.weight"] = torch::ones({3, 3});
  accelerate::save_file(weights, saved.folder / "other.safetensors");
  expect_parts(refusal(saved.folder / "other.safetensors", {.device_map = "cpu"}), {"head.weight", "[3, 3]"});
}

TEST(DispatchErrors, AnUnreadableShardIsNamed) {
  const Saved saved;
  const std::string shard = fs::path(saved.checkpoint()) / "model-00002-of-00005.safetensors";
  ASSERT_TRUE(fs::exists(shard));
  fs::resize_file(shard, fs::file_size(shard) - 10);
  for (const char* place : {"cpu", "disk"})
    expect_parts(refusal(saved.checkpoint(), {.device_map = place}), {"model-00002-of-00005.safetensors"});
  fs::remove(shard);
  expect_parts(refusal(saved.checkpoint(), {.device_map = "disk"}), {"model-00002-of-00005.safetensors", "does not exist"});
}

TEST(DispatchErrors, EmptyWeightsThatNobodyCanMakeAreNamed) {
  const Saved saved;
  Tower tower = empty_tower();
  tower->head->weight.set_data(torch::empty({100, 32}, torch::kMeta));
  const auto text = message_of<accelerate::CheckpointError>(
      [&] { accelerate::load_checkpoint_in_model(tower, checkpoint_without(saved, "head.weight"), {.device_map = "cpu"}); });
  expect_parts(text, {"head.weight", "meta device", "InitEmptyWeights"});
}

TEST(LoadCheckpoint, WhatACheckpointLacksGetsTheValuesOfTheConstructor) {
  const Saved saved;
  for (const char* place : {"cpu", "disk"}) {
    Tower tower = empty_tower();
    accelerate::load_checkpoint_in_model(tower, checkpoint_without(saved, "blocks.1.norm.weight"),
                                         {.device_map = place, .offload_folder = saved.offload()});
    const auto& weight = tower->blocks->ptr<towers::BlockImpl>(1)->norm->weight;
    EXPECT_TRUE(torch::equal(weight.detach() * 1, torch::ones({32})));
    EXPECT_FALSE(weight.is_meta());
  }
}

TEST(LoadCheckpoint, ConvertsDtypesAndRenames) {
  const Saved saved;
  accelerate::TensorDict renamed;
  for (const auto& [name, tensor] : accelerate::state_dict(*saved.tower)) renamed["model." + name] = tensor.to(torch::kBFloat16);
  accelerate::save_file(renamed, saved.folder / "renamed.bin");
  const auto without_prefix = [](const std::string& name) { return name.substr(6); };
  const torch::NoGradGuard no_grad;
  for (const char* place : {"cpu", "disk"}) {
    Tower tower = empty_tower(), half = empty_tower();
    accelerate::load_checkpoint_in_model(
        tower, saved.folder / "renamed.bin",
        {.device_map = place, .offload_folder = saved.offload(), .strict = true, .key_mapping = without_prefix});
    EXPECT_EQ(tower->head->weight.scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(tower->head->weight * 1, saved.tower->head->weight.to(torch::kBFloat16).to(torch::kFloat)));
    accelerate::load_checkpoint_in_model(
        half, saved.folder / "renamed.bin",
        {.device_map = place, .dtype = torch::kBFloat16, .strict = true, .key_mapping = without_prefix});
    EXPECT_TRUE(torch::equal(half->head->weight * 1, saved.tower->head->weight.to(torch::kBFloat16)));
  }
}

TEST(LoadCheckpoint, WithoutAMapLoadsWhereTheModelIs) {
  const Saved saved;
  Tower real(100, 32, 4);
  accelerate::load_checkpoint_in_model(real, saved.checkpoint());
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(real->forward(saved.tokens), saved.answer));
}

TEST(LoadCheckpoint, AModelOfTheHubIsFoundWhereItWasDownloaded) {
  const Saved saved;
  const fs::path model = saved.folder / "hub" / "models--org--tower";
  fs::create_directories(model / "snapshots");
  fs::create_directories(model / "refs");
  std::ofstream(model / "refs" / "main") << "abc";
  fs::rename(saved.checkpoint(), model / "snapshots" / "abc");
  ::setenv("HF_HUB_CACHE", (saved.folder / "hub").c_str(), 1);
  Tower tower = empty_tower();
  accelerate::load_checkpoint_in_model(tower, "org/tower", {.device_map = "disk"});
  const std::string unknown = refusal("org/steeple", {.device_map = "disk"});
  ::unsetenv("HF_HUB_CACHE");
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(tower->forward(saved.tokens), saved.answer));
  expect_parts(unknown, {"org/steeple", "hf download"});
}

/// Two parameters that are views of one memory, and one that lies in another order.
struct ViewsImpl : torch::nn::Module {
  ViewsImpl() {
    const auto joined = torch::randn({6, 4});
    upper = register_parameter("upper", joined.narrow(0, 0, 3));
    lower = register_parameter("lower", joined.narrow(0, 3, 3));
    turned = register_parameter("turned", torch::randn({5, 4}).t());
  }
  torch::Tensor forward(const torch::Tensor& x) { return x.matmul(upper.t()) + x.matmul(lower.t()) + x.matmul(turned).sum(); }
  torch::Tensor upper, lower, turned;
};
TORCH_MODULE(Views);

TEST(LoadCheckpoint, ViewsOfOneMemoryStayViewsOfOneMemory) {
  const TemporaryFolder folder;
  Views saved;
  accelerate::save_file(accelerate::state_dict(*saved), folder / "views.safetensors");
  const auto x = torch::randn({2, 4});
  const torch::NoGradGuard no_grad;
  for (const char* place : {"cpu", "disk"}) {
    Views views = [] {
      const accelerate::InitEmptyWeights empty;
      return Views();
    }();
    EXPECT_TRUE(views->upper.is_meta());
    accelerate::load_checkpoint_in_model(views, folder / "views.safetensors",
                                         {.device_map = place, .offload_folder = folder / place});
    EXPECT_TRUE(torch::equal(views->forward(x), saved->forward(x))) << place;
    EXPECT_EQ(views->upper.storage().unsafeGetStorageImpl(), views->lower.storage().unsafeGetStorageImpl());
  }
  Views views;
  EXPECT_THROW(
      accelerate::load_checkpoint_in_model(views, folder / "views.safetensors", {.device_map = "cpu", .dtype = torch::kBFloat16}),
      accelerate::UsageError)
      << "not quietly in the dtype that it had";
}

TEST(DispatchModel, OfARealModelGivesTheSameFromDiskAndComesBack) {
  const Saved saved;
  Tower tower(100, 32, 4);
  accelerate::load_checkpoint_in_model(tower, saved.checkpoint());
  const auto model = accelerate::dispatch_model(tower, {{"", "disk"}}, {.offload_dir = saved.offload()});
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(model(saved.tokens), saved.answer));
  EXPECT_TRUE(accelerate::has_offloaded_params(*tower));
  const auto back = accelerate::dispatch_model(tower, {{"", "cpu"}});
  EXPECT_FALSE(accelerate::has_offloaded_params(*tower));
  fs::remove_all(saved.offload());
  EXPECT_TRUE(torch::equal(back(saved.tokens), saved.answer));
}

}  // namespace
