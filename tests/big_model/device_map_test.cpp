#include <accelerate/big_model/device_map.h>
#include <accelerate/big_model/infer_auto_device_map.h>
#include <accelerate/big_model/module_sizes.h>
#include <accelerate/big_model/tied_parameters.h>
#include <accelerate/core/error.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "big_model/available_memory.h"
#include "big_model/described_model.h"
#include "support/error_text.h"

namespace device_map_claims {
namespace {

using accelerate::DeviceMap;
using accelerate::UsageError;
using accelerate::testing::message_of;
namespace nn = torch::nn;

struct SmallBlockImpl : nn::Module {
  SmallBlockImpl() {
    up = register_module("up", nn::Linear(4, 8));
    down = register_module("down", nn::Linear(8, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) { return down(up(x)); }
  nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(SmallBlock);

/// 76 parameters a block: 304 bytes, 160 and 144 in its layers.
nn::Sequential small_tower() { return nn::Sequential(SmallBlock(), SmallBlock(), SmallBlock()); }

std::string refusal_of(const nn::Module& model, const DeviceMap& map) {
  return message_of<UsageError>([&] { accelerate::check_device_map(model, map); });
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(InferAutoDeviceMap, ClassesThatAreNotSplitMayBeSpelledInFourWays) {
  auto tower = small_tower();
  const std::string full = SmallBlockImpl().name(), plain = full.substr(0, full.size() - 4);
  const accelerate::MaxMemory limits = {{0, 700}, {"cpu", 10000}};
  const DeviceMap whole = {{"0", 0}, {"1", "cpu"}, {"2", "cpu"}};
  for (const std::string& spelled : {std::string("SmallBlock"), std::string("SmallBlockImpl"), full, plain}) {
    EXPECT_EQ(accelerate::infer_auto_device_map(*tower, {.max_memory = limits, .no_split_module_classes = {spelled}}), whole)
        << spelled;
  }
  for (const char* other : {"Block", "SmallBloc", "Small", "torch::nn::SmallBlock", ""}) {
    EXPECT_FALSE(accelerate::infer_auto_device_map(*tower, {.max_memory = limits, .no_split_module_classes = {other}}) == whole)
        << other;
  }
}

TEST(InferAutoDeviceMap, WeightsOnTheMetaDeviceCountAsRealOnes) {
  const described::Tree tree = {.class_name = "Model",
                                .children = {{"a", {.class_name = "A", .parameters = {{"w", at::kFloat, {10}}}}},
                                             {"b", {.class_name = "B", .parameters = {{"w", at::kHalf, {30}}}}}}};
  const auto empty = described::build(tree), real = described::build(tree, {}, at::kCPU);
  const accelerate::InferDeviceMapOptions options{.max_memory = {{0, 100}, {"cpu", 500}}};
  EXPECT_EQ(accelerate::infer_auto_device_map(*real, options), (DeviceMap{{"", 0}}));
  EXPECT_EQ(accelerate::infer_auto_device_map(*empty, options), (DeviceMap{{"", 0}}));
  EXPECT_EQ(accelerate::find_tied_parameters(*empty).size(), 0u);
}

TEST(InferAutoDeviceMap, WarnsWhenBuffersOfOffloadedLayersFitNowhere) {
  const auto model = described::build(
      {.class_name = "Model",
       .children = {
           {"a", {.class_name = "A", .parameters = {{"w", at::kFloat, {10}}}}},
           {"b", {.class_name = "B", .parameters = {{"w", at::kFloat, {10}}}, .buffers = {{"big", at::kFloat, {100}}}}}}});
  accelerate::InferDeviceMapOptions options{.max_memory = {{0, 300}, {"cpu", 10000}}};
  testing::internal::CaptureStderr();
  accelerate::infer_auto_device_map(*model, options);
  EXPECT_TRUE(says(testing::internal::GetCapturedStderr(), "need 400 bytes"));
  options.offload_buffers = true;
  testing::internal::CaptureStderr();
  accelerate::infer_auto_device_map(*model, options);
  EXPECT_FALSE(says(testing::internal::GetCapturedStderr(), "need 400 bytes"));
}

TEST(InferAutoDeviceMap, SaysHowMuchAPlaceWouldHaveNeeded) {
  auto tower = small_tower();
  testing::internal::CaptureStderr();
  EXPECT_EQ(accelerate::infer_auto_device_map(*tower, {.max_memory = {{"cpu", 100}}}), (DeviceMap{{"", "disk"}}));
  EXPECT_TRUE(says(testing::internal::GetCapturedStderr(), "cpu (at least 320 bytes)"));
}

TEST(InferAutoDeviceMap, VerboseTellsEachDecision) {
  auto tower = small_tower();
  testing::internal::CaptureStderr();
  accelerate::infer_auto_device_map(*tower, {.max_memory = {{0, 500}, {"cpu", 10000}}, .verbose = true});
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(says(told, "goes to 0")) << told;
  EXPECT_TRUE(says(told, "is split")) << told;
  EXPECT_TRUE(says(told, "does not fit on 0")) << told;
}

TEST(InferAutoDeviceMap, AModelWithoutTensorsHasAnEmptyMap) {
  EXPECT_TRUE(accelerate::infer_auto_device_map(nn::Module("Nothing"), {.max_memory = {{0, 5}}}).empty());
  EXPECT_TRUE(accelerate::get_balanced_memory(nn::Module("Nothing"), {.max_memory = {{0, 5}, {1, 5}}}) ==
              (accelerate::MaxMemory{{0, 5}, {1, 5}}));
}

TEST(ResolveDeviceMap, FollowsTheRuleThatWasChosen) {
  auto tower = small_tower();
  const accelerate::InferDeviceMapOptions options{.max_memory = {{0, 5000}, {1, 5000}},
                                                  .no_split_module_classes = {"SmallBlock"}};
  EXPECT_EQ(accelerate::resolve_device_map(*tower, "sequential", options), (DeviceMap{{"", 0}}));
  EXPECT_EQ(accelerate::resolve_device_map(*tower, "auto", options), (DeviceMap{{"0", 0}, {"1", 1}, {"2", 1}}));
  EXPECT_EQ(accelerate::resolve_device_map(*tower, "balanced_low_0", options), (DeviceMap{{"", 1}}));
  EXPECT_EQ(accelerate::resolve_device_map(*tower, "disk", options), (DeviceMap{{"", "disk"}}));
  EXPECT_THROW(accelerate::resolve_device_map(*tower, DeviceMap{{"0", 0}}, options), UsageError);
  EXPECT_THROW(accelerate::resolve_device_map(*tower, {}, options), UsageError);
}

TEST(ResolveDeviceMap, BuffersOfASplitModuleGoWhereItsFirstPartWent) {
  const described::Tree layer = {.class_name = "Layer", .parameters = {{"w", at::kFloat, {10}}}};
  const described::Tree stack = {
      .class_name = "Stack", .buffers = {{"mask", at::kFloat, {2}}}, .children = {{"a", layer}, {"b", layer}, {"c", layer}}};
  const auto model = described::build({.class_name = "Model", .children = {{"m", stack}}});
  const accelerate::InferDeviceMapOptions options{.max_memory = {{0, 100}, {"cpu", 1000}}};
  EXPECT_EQ(accelerate::infer_auto_device_map(*model, options), (DeviceMap{{"m.a", 0}, {"m.b", "cpu"}, {"m.c", "cpu"}}));
  const DeviceMap map = accelerate::resolve_device_map(*model, "sequential", options);
  EXPECT_EQ(map, (DeviceMap{{"m.a", 0}, {"m.b", "cpu"}, {"m.c", "cpu"}, {"m.mask", 0}}));
  EXPECT_EQ(refusal_of(*model, map), "no error");
}

TEST(CheckDeviceMap, NamesWhatHasNoPlace) {
  auto tower = small_tower();
  const std::string refusal = refusal_of(*tower, {{"0", 0}, {"1.up", "cpu"}, {"2", "disk"}});
  EXPECT_TRUE(says(refusal, "1.down.weight, 1.down.bias")) << refusal;
  EXPECT_FALSE(says(refusal, "1.up.weight")) << refusal;
}

TEST(CheckDeviceMap, NamesWhatTheModelLacksAndTheClosest) {
  auto tower = small_tower();
  const std::string refusal = refusal_of(*tower, {{"", 0}, {"1.upp", "cpu"}});
  EXPECT_TRUE(says(refusal, "'1.upp'")) << refusal;
  EXPECT_TRUE(says(refusal, "'1.up'")) << refusal;
}

TEST(CheckDeviceMap, TensorsMayHaveEntriesOfTheirOwn) {
  auto tower = small_tower();
  EXPECT_EQ(refusal_of(*tower, {{"0", 0}, {"1", 0}, {"2.up", 0}, {"2.down.weight", "cpu"}, {"2.down.bias", "disk"}}), "no error");
}

TEST(FindTiedParameters, FindsSharedTensorsAndSharedMemory) {
  auto first = nn::Linear(4, 4), second = nn::Linear(4, 4), apart = nn::Linear(4, 4);
  second->weight.set_data(first->weight);
  const nn::Sequential model(first, second, apart);
  using Groups = std::vector<std::vector<std::string>>;
  EXPECT_EQ(accelerate::find_tied_parameters(*model), (Groups{{"0.weight", "1.weight"}}));
  described::Model both("Both");
  both.register_module("b", nn::Sequential(first).ptr());
  both.register_module("a", nn::Sequential(apart, first).ptr());
  EXPECT_EQ(accelerate::find_tied_parameters(both), (Groups{{"a.1.weight", "b.0.weight"}, {"a.1.bias", "b.0.bias"}}));
}

TEST(FindTiedParameters, PartsOfOneMemoryAreNotOne) {
  const torch::Tensor whole = torch::zeros({4, 4});
  described::Model model("Model");
  model.register_parameter("upper", whole.narrow(0, 0, 2), false);
  model.register_parameter("lower", whole.narrow(0, 2, 2), false);
  EXPECT_TRUE(accelerate::find_tied_parameters(model).empty());
  EXPECT_EQ(accelerate::compute_module_sizes(model).at(""), 64);
}

TEST(ModuleSizes, CountsATiedParameterUnderItsFirstName) {
  auto first = nn::Linear(4, 4), second = nn::Linear(4, 4);
  second->weight.set_data(first->weight);
  const nn::Sequential model(first, second);
  const auto sizes = accelerate::compute_module_sizes(*model);
  EXPECT_EQ(sizes.at(""), 96);
  EXPECT_EQ(sizes.at("0"), 80);
  EXPECT_EQ(sizes.at("1"), 16);
}

TEST(ModuleSizes, CountsSmallDtypesInBits) {
  using enum c10::ScalarType;
  EXPECT_EQ(accelerate::dtype_byte_size(Int4), 0.5);
  EXPECT_EQ(accelerate::dtype_byte_size(UInt2), 0.25);
  EXPECT_EQ(accelerate::dtype_byte_size(Bool), 0.125);
  EXPECT_EQ(accelerate::dtype_byte_size(Float8_e8m0fnu), 1);
  const nn::Linear layer(4, 4);
  const auto sizes = accelerate::compute_module_sizes(*layer, {.special_dtypes = {{"weight", Int4}}});
  EXPECT_EQ(sizes.at("weight"), 8);
  EXPECT_EQ(accelerate::compute_module_sizes(*layer, {.dtype = Int4}).at(""), 10);
}

TEST(HostMemory, IsWhatTheKernelCallsAvailable) {
  const std::string path = ::testing::TempDir() + "meminfo_of_test";
  std::ofstream(path) << "MemTotal:       100 kB\nMemFree:  5 kB\nMemAvailable:    7 kB\n";
  EXPECT_EQ(accelerate::detail::available_host_memory(path), 7 * 1024);
  std::ofstream(path) << "MemAvailable: much\n";
  EXPECT_THROW(accelerate::detail::available_host_memory(path), accelerate::Error);
  EXPECT_THROW(accelerate::detail::available_host_memory(path + "_missing"), accelerate::Error);
}

}  // namespace
}  // namespace device_map_claims
