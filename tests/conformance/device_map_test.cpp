#include <accelerate/big_model/device_map.h>
#include <accelerate/big_model/infer_auto_device_map.h>
#include <accelerate/big_model/max_memory.h>
#include <accelerate/big_model/module_sizes.h>
#include <accelerate/big_model/tied_parameters.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <cstdlib>

#include "big_model/described_model.h"
#include "big_model/module_tensors.h"
#include "conformance/golden.h"

namespace golden_device_maps {
namespace {

using accelerate::DeviceMap;
using accelerate::MaxMemory;
using accelerate::Place;
using nlohmann::json;

at::ScalarType dtype_named(const std::string& name) {
  static const std::map<std::string, at::ScalarType> dtypes = {{"bool", at::kBool},
                                                               {"int8", at::kChar},
                                                               {"uint8", at::kByte},
                                                               {"int16", at::kShort},
                                                               {"int32", at::kInt},
                                                               {"int64", at::kLong},
                                                               {"float16", at::kHalf},
                                                               {"bfloat16", at::kBFloat16},
                                                               {"float32", at::kFloat},
                                                               {"float64", at::kDouble},
                                                               {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                               {"float8_e5m2", at::kFloat8_e5m2},
                                                               {"complex64", at::kComplexFloat}};
  return dtypes.at(name);
}

described::Tree tree_of(const json& node) {
  described::Tree tree{.class_name = node.at("class")};
  const auto tensors = [](const json& list) {
    std::vector<described::Tensor> all;
    for (const auto& one : list) all.push_back({one[0], dtype_named(one[1]), one[2].get<std::vector<int64_t>>()});
    return all;
  };
  tree.parameters = tensors(node.at("params"));
  tree.buffers = tensors(node.at("buffers"));
  for (const auto& child : node.at("children")) tree.children.emplace_back(child[0], tree_of(child[1]));
  return tree;
}

std::shared_ptr<described::Model> model_of(const json& model) {
  return described::build(tree_of(model.at("tree")), model.at("tied").get<described::Ties>());
}

Place place_of(const json& device) { return device.is_number() ? Place(device.get<int>()) : Place(device.get<std::string>()); }

json device_of(const Place& place) { return place.is_indexed() ? json(place.device().index()) : json(to_string(place)); }

MaxMemory memory_of(const json& pairs) {
  MaxMemory memory;
  for (const auto& [device, bytes] : pairs.get<std::vector<std::pair<json, json>>>()) {
    memory[place_of(device)] =
        bytes.is_string() ? accelerate::ByteSize(bytes.get<std::string>()) : accelerate::ByteSize(bytes.get<double>());
  }
  return memory;
}

DeviceMap map_of(const json& pairs) {
  DeviceMap map;
  for (const auto& pair : pairs) map[pair[0]] = place_of(pair[1]);
  return map;
}

json pairs_of(const MaxMemory& memory) {
  json pairs = json::array();
  for (const auto& [place, limit] : memory) pairs.push_back({device_of(place), limit.bytes()});
  return pairs;
}

/// Sorted by name, as the data has it.
json pairs_of(const DeviceMap& map) {
  std::vector<std::pair<std::string, json>> pairs;
  for (const auto& [name, place] : map) pairs.emplace_back(name, device_of(place));
  std::sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  json result = json::array();
  for (const auto& [name, device] : pairs) result.push_back({name, device});
  return result;
}

json sizes_as_json(const accelerate::ModuleSizes& sizes) {
  json object = json::object();
  for (const auto& [name, size] : sizes) object[name] = size;
  return object;
}

std::vector<std::string> classes_of(const json& no_split) {
  return no_split.is_null() ? std::vector<std::string>() : no_split.get<std::vector<std::string>>();
}

accelerate::SpecialDtypes special_of(const json& model) {
  accelerate::SpecialDtypes special;
  for (const auto& [name, dtype] : model.at("special_dtypes").items()) special[name] = dtype_named(dtype);
  return special;
}

bool is_error(const json& result) { return result.is_object() && result.contains("error"); }

/// Our result, or {"error": message}.
json result_of(const std::function<json()>& call) {
  try {
    return call();
  } catch (const accelerate::Error& error) {
    return {{"error", error.what()}};
  }
}

/// Errors hold when both sides have one.
void judge_result(golden::Tally& tally, const std::string& name, const json& theirs, const std::function<json()>& call,
                  const std::string& listed = "") {
  const json ours = result_of(call);
  const bool held = is_error(theirs) || is_error(ours) ? is_error(theirs) && is_error(ours) : ours == theirs;
  tally.judge(name, held, ours.dump() + " instead of " + theirs.dump(), listed);
}

/// Calls `judge` with each model of the data.
void for_each_model(const std::function<void(const json&, const torch::nn::Module&)>& judge) {
  for (const auto& model : golden::read("device_map.json").value("models", json::array())) judge(model, *model_of(model));
}

/// Says nothing of limits that are too small: hundreds of them are, on purpose.
class QuietMaps {
 public:
  QuietMaps() { ::setenv("ACCELERATE_LOG_LEVEL", "error", 1); }
  ~QuietMaps() { ::unsetenv("ACCELERATE_LOG_LEVEL"); }
};

TEST(Golden, ModuleSizes) {
  golden::Tally tally("device_map.json, sizes");
  for_each_model([&](const json& model, const torch::nn::Module& ours) {
    const std::string name = model.at("name");
    const auto judge = [&](const char* field, const accelerate::ModuleSizeOptions& options) {
      judge_result(tally, name + " " + field, model.at(field),
                   [&] { return sizes_as_json(accelerate::compute_module_sizes(ours, options)); });
    };
    judge("sizes", {});
    judge("sizes_float16", {.dtype = at::kHalf});
    judge("sizes_special", {.special_dtypes = special_of(model)});
    judge("sizes_buffers_only", {.buffers_only = true});
    judge_result(tally, name + " tied", model.at("tied_found"), [&] { return json(accelerate::find_tied_parameters(ours)); });
    judge_result(tally, name + " names", model.at("tensor_names"), [&] {
      json names = json::array();
      for (const auto& one : accelerate::detail::each_once(accelerate::detail::all_parameters(ours))) names.push_back(one.name);
      for (const auto& one : accelerate::detail::each_once(accelerate::detail::all_buffers(ours))) names.push_back(one.name);
      return names;
    });
    for (const auto& layer : model.at("max_layer")) {
      const auto largest =
          accelerate::get_max_layer_size(ours, accelerate::compute_module_sizes(ours), classes_of(layer.at("no_split")));
      tally.judge(name + " max_layer", layer.at("size") == largest.size && layer.at("names") == largest.names, layer.dump());
    }
  });
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, BalancedMemory) {
  golden::Tally tally("device_map.json, balanced");
  for_each_model([&](const json& model, const torch::nn::Module& ours) {
    for (const auto& c : model.at("balanced")) {
      const MaxMemory memory = memory_of(c.at("max_memory"));
      judge_result(
          tally, model.at("name").get<std::string>() + " " + c.dump(), c.at("result"),
          [&] {
            return pairs_of(accelerate::get_balanced_memory(
                ours,
                {.max_memory = memory, .no_split_module_classes = classes_of(c.at("no_split")), .low_zero = c.at("low_zero")}));
          },
          memory.contains(Place::disk()) ? "a limit for the disk may be given to get_balanced_memory" : "");
    }
  });
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, InferredDeviceMaps) {
  const QuietMaps quiet;
  golden::Tally tally("device_map.json, infer");
  for_each_model([&](const json& model, const torch::nn::Module& ours) {
    for (const auto& c : model.at("infer")) {
      const json& given = c.at("options");
      accelerate::InferDeviceMapOptions options{
          .max_memory = memory_of(c.at("max_memory")),
          .no_split_module_classes = classes_of(given.value("no_split_module_classes", json())),
          .clean_result = given.value("clean_result", true),
          .offload_buffers = given.value("offload_buffers", false),
          .fallback_allocation = given.value("fallback_allocation", false)};
      if (given.contains("dtype")) options.dtype = dtype_named(given.at("dtype"));
      if (given.contains("special_dtypes")) options.special_dtypes = special_of(model);
      judge_result(
          tally, model.at("name").get<std::string>() + " " + c.at("max_memory").dump() + given.dump(), c.at("map"),
          [&] { return pairs_of(accelerate::infer_auto_device_map(ours, options)); },
          is_error(c.at("map")) ? "fallback_allocation works for tied weights" : "");
    }
  });
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, CheckedAndCleanedDeviceMaps) {
  golden::Tally tally("device_map.json, check_device_map and clean_device_map");
  const json data = golden::read("device_map.json");
  for (const auto& c : data.value("check_device_map", json::array())) {
    const auto& models = data.at("models");
    const auto model =
        std::find_if(models.begin(), models.end(), [&](const json& one) { return one.at("name") == c.at("model"); });
    const bool unknown = c.at("result") == "ok" && !c.at("warnings").empty();
    judge_result(
        tally, c.at("map").dump(), c.at("result"),
        [&] {
          accelerate::check_device_map(*model_of(*model), map_of(c.at("map")));
          return json("ok");
        },
        unknown ? "a device map with a name that the model lacks is an error" : "");
  }
  for (const auto& c : data.value("clean_device_map", json::array())) {
    judge_result(tally, c.at("given").dump(), c.at("result"),
                 [&] { return pairs_of(accelerate::clean_device_map(map_of(c.at("given")))); });
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, AmountsOfMemory) {
  golden::Tally tally("device_map.json, get_max_memory, file_sizes and dtype_byte_size");
  const QuietMaps quiet;
  const json data = golden::read("device_map.json");
  for (const auto& c : data.value("get_max_memory", json::array())) {
    const bool spelled = c.at("given").dump().find("cuda:0") != std::string::npos;
    judge_result(
        tally, c.at("given").dump(), c.at("result"),
        [&] { return pairs_of(accelerate::get_max_memory(memory_of(c.at("given")))); },
        spelled ? "cuda:0 is another name for accelerator 0, in max_memory too" : "");
  }
  for (const auto& c : data.value("file_sizes", json::array())) {
    judge_result(tally, c.at("given").dump(), c.at("result"),
                 [&] { return json(accelerate::ByteSize(c.at("given").get<std::string>()).bytes()); });
  }
  const json dtypes = data.value("dtype_byte_size", json::object());
  for (const auto& [name, bytes] : dtypes.items()) {
    judge_result(tally, name, bytes, [&] { return json(accelerate::dtype_byte_size(dtype_named(name))); });
  }
  EXPECT_GT(tally.cases(), 0);
}

}  // namespace
}  // namespace golden_device_maps
