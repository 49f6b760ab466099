#include <accelerate/checkpoint/offload_folder.h>
#include <accelerate/checkpoint/save_file.h>
#include <torch/torch.h>

#include "checkpoint/value_file.h"
#include "conformance/checkpoint_cases.h"
#include "conformance/golden.h"
#include "core/file.h"
#include "support/together.h"

namespace {

using accelerate::StateDict;
using accelerate::TensorDict;
using accelerate::Value;
using nlohmann::json;

std::string golden_checkpoint(const json& file) { return golden::path("checkpoints/" + file.at("file").get<std::string>()); }

Value as_value(const TensorDict& tensors) {
  StateDict value;
  for (const auto& [name, tensor] : tensors) value[name] = tensor;
  return value;
}

bool is_dict_of_tensors(const json& content) {
  if (content.at("t") != "dict") return false;
  for (const auto& entry : content.at("v")) {
    if (entry[1].at("t") != "tensor") return false;
  }
  return true;
}

/// Only tensors by name can be loaded as such; what load_file says of others names the file.
std::string load_file_difference(const json& file, const Value& read) {
  const std::string path = golden_checkpoint(file);
  const auto outcome = golden::outcome_of([&] { return as_value(accelerate::load_file(path)); });
  if (is_dict_of_tensors(file.at("content"))) {
    if (!outcome.error.empty()) return outcome.error;
    return golden::difference(outcome.value, read, 0);
  }
  return outcome.error.find(file.at("file").get<std::string>()) != std::string::npos ? ""
                                                                                     : "load_file says: " + to_string(outcome);
}

/// The sentence by which a torch file is read otherwise on purpose, or nothing.
std::string listed_torch_file(const std::string& name) {
  if (name.starts_with("torch_nested"))
    return "a torch file with integers of more than 64 bits, or keys of both kinds, is refused";
  return "";
}

TEST(Golden, TorchFilesOfPythonAreRead) {
  golden::Tally tally("checkpoints/files.json, torch_save");
  const json all = golden::read("checkpoints/files.json");
  for (const auto& file : all.at("torch_save")) {
    const std::string name = file.at("file");
    Value read;
    auto outcome = golden::outcome_of(
        [&] { return read = accelerate::detail::read_value(accelerate::detail::InputFile(golden_checkpoint(file))); });
    std::string wrong = outcome.error;
    // The data has numbers that a Value cannot hold, and so has the file: both are refused or neither is.
    if (wrong.empty()) wrong = golden::difference(read, golden::value_of(file.at("content")), 0);
    json layout = file.at("layout");
    for (auto& place : layout) {
      for (const auto* about_autograd : {"requires_grad", "parameter"}) place.erase(about_autograd);
    }
    if (wrong.empty() && golden::layout_of(read) != layout) wrong = "lies otherwise: " + golden::layout_of(read).dump();
    if (wrong.empty()) wrong = load_file_difference(file, read);
    tally.judge(name, wrong.empty(), wrong, listed_torch_file(name));
    if (!outcome.error.empty()) {
      EXPECT_NE(outcome.error.find(name), std::string::npos) << outcome.error;
    }
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, FoldersOfOffloadedWeightsAreReadAndWrittenAgain) {
  const json offload = golden::read("checkpoints/files.json").at("offload").at(0);
  const std::string folder = golden::path("checkpoints/" + offload.at("folder").get<std::string>());
  const TensorDict weights = accelerate::load_offloaded_weights(folder);
  for (const auto& [name, content] : offload.at("content").items()) {
    if (name == "in_memory") continue;  // was in no file
    json node = content;
    node["t"] = "tensor";
    EXPECT_EQ(golden::difference(Value(weights.at(name)), golden::value_of(node), 0), "") << name;
  }
  const TemporaryFolder copy;
  accelerate::offload_state_dict(copy.path(), {{"replaced", torch::ones({2})}});
  accelerate::offload_state_dict(copy.path(), weights);
  accelerate::offload_state_dict(copy.path(), {{"replaced", torch::zeros({3})}});
  EXPECT_EQ(accelerate::load_offloaded_weights(copy.path()).size(), weights.size() + 1);
  EXPECT_EQ(accelerate::load_offloaded_weights(copy.path()).at("replaced").size(0), 3);
  const TemporaryFolder same;
  accelerate::offload_state_dict(same.path(), weights);
  const auto text_of = [](const std::filesystem::path& path) {
    const accelerate::detail::InputFile file(path);
    return file.text(0, file.size());
  };
  EXPECT_EQ(text_of(same / "index.json"), offload.at("index_text").get<std::string>());
  for (const auto& item : weights)
    EXPECT_EQ(text_of(same / (item.first + ".dat")), text_of(folder + "/" + item.first + ".dat")) << item.first;
}

TEST(Golden, TensorsOfTorchFilesAreWeightsNotLeaves) {
  for (const auto& item : accelerate::load_file(golden::path("checkpoints/torch_parameters_zip.pt"))) {
    EXPECT_FALSE(item.second.requires_grad()) << item.first;
  }
}

TEST(Golden, SafetensorsFilesOfPythonAreRead) {
  golden::Tally tally("checkpoints/files.json, safetensors");
  const json all = golden::read("checkpoints/files.json");
  for (const auto& file : all.at("safetensors")) {
    const bool refused = file.at("accelerate_load").is_object();
    StateDict expected;
    const auto outcome = golden::outcome_of([&] { return as_value(accelerate::load_file(golden_checkpoint(file))); });
    std::string wrong = outcome.error;
    if (wrong.empty()) {
      const auto& read = outcome.value.as<StateDict>();
      if (read.size() != file.at("content").size()) wrong = "another number of tensors";
      for (const auto& [name, node] : file.at("content").items()) {
        if (wrong.empty())
          wrong = read.contains(name) ? golden::difference(read.at(name), golden::tensor(node), 0) : "no " + name;
      }
    }
    tally.judge(file.at("file"), wrong.empty() != refused, wrong.empty() ? "was read" : wrong,
                refused ? "safetensors files of any framework are read" : "");
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, DamagedFilesAreRefusedByName) {
  golden::Tally tally("checkpoints/files.json, damaged");
  const json all = golden::read("checkpoints/files.json");
  for (const auto& file : all.at("damaged")) {
    const std::string name = file.at("file");
    const auto outcome = golden::outcome_of([&]() -> Value {
      if (name.ends_with(".safetensors")) return as_value(accelerate::load_file(golden_checkpoint(file)));
      return accelerate::detail::read_value(accelerate::detail::InputFile(golden_checkpoint(file)));
    });
    if (name == "damaged_flipped.pt") {
      EXPECT_NE(outcome.error.find("checksum"), std::string::npos) << outcome.error;
    }
    const bool named = outcome.error.find(name) != std::string::npos;
    const bool held = file.at("result").contains("error") ? named : outcome.error.empty();
    tally.judge(name, held, to_string(outcome),
                file.at("result").contains("error") ? "" : "a torch file whose checksums do not fit is refused");
  }
  EXPECT_GT(tally.cases(), 0);
}

}  // namespace
