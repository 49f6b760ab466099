#include <torch/torch.h>

#include <algorithm>

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
namespace fs = std::filesystem;

constexpr double kKernelTolerance = 1e-6;

Value value_in_file(const fs::path& path) { return accelerate::detail::read_value(accelerate::detail::InputFile(path)); }

/// A folder that all processes know. It is the first one's, which looks at what all have left there.
class SharedFolder {
 public:
  explicit SharedFolder(const accelerate::Accelerator& accelerator) {
    std::vector<std::string> name = {folder_.path().string()};
    accelerate::broadcast_object_list(accelerator.state(), name);
    path_ = name[0];
  }
  const fs::path& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  fs::path path_;
};

/// The cases of save_state for this number of processes.
std::vector<json> saved_states(const json& all, int processes) {
  std::vector<json> cases;
  for (const auto& data : all.at("save_state")) {
    if (data.at("recipe").at("world") == processes) cases.push_back(data);
  }
  return cases;
}

fs::path folder_of(const json& data) {
  return golden::path("checkpoints/state_" + data.at("recipe").at("name").get<std::string>());
}

TensorDict tensors_of(const json& nodes) {
  TensorDict tensors;
  for (const auto& [name, node] : nodes.items()) tensors[name] = golden::tensor(node);
  return tensors;
}

/// As a value, in the order of the names where files have another than the data.
Value sorted_value(const TensorDict& tensors) {
  std::vector<TensorDict::Item> items(tensors.begin(), tensors.end());
  std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  StateDict value;
  for (const auto& [name, tensor] : items) value[name] = tensor;
  return value;
}

/// Without the numbers that are made of rounding alone. The bias before a normalisation changes nothing, so its gradient is 0 but
/// for rounding, which these optimizers make steps of full size from: another on every kind of machine, in Python as well.
Value without_noise(Value value) {
  const auto forget = [](StateDict& dict, const std::string& name) {
    if (!dict.contains(name)) return;
    auto& entry = dict.at(name);
    if (entry.kind() == Value::Kind::tensor) entry = torch::zeros_like(entry.as<at::Tensor>());
  };
  auto& dict = value.as<StateDict>();
  for (const auto* name : {"fc1.bias", "norm.running_mean"}) forget(dict, name);
  if (dict.contains("state")) {
    auto& of_bias = dict.at("state").as<StateDict>().at("1").as<StateDict>();
    for (const auto& item : StateDict(of_bias)) {
      if (item.first != "step") forget(of_bias, item.first);
    }
  }
  return value;
}

std::string difference_but_noise(const Value& ours, const Value& theirs) {
  return golden::difference(without_noise(ours), without_noise(theirs), kKernelTolerance);
}

// --- Resuming from what Python saved ----------------------------------------------------------------------------------------

std::string difference_going_on(const json& data) {
  golden::RecipeRun run(data,
                        data.at("recipe").at("seed").get<int64_t>() + 100);  // other weights and numbers than the saved ones
  run.accelerator.load_state(folder_of(data));
  const json& theirs = data.at("ranks").at(static_cast<size_t>(run.accelerator.process_index()));
  const json& draws = theirs.at("draws_right_after_saving").at("torch_rand");
  const auto drawn = torch::rand({3});
  std::string wrong;
  const auto expect = [&](const std::string& what, double ours, double expected, double tolerance) {
    if (std::abs(ours - expected) > tolerance * std::max(1.0, std::abs(expected)) && wrong.empty()) {
      wrong = what + " is " + std::to_string(ours) + " instead of " + std::to_string(expected);
    }
  };
  for (int64_t i = 0; i < 3; ++i) expect("a random number", drawn[i].item<double>(), draws[static_cast<size_t>(i)], 0);
  const size_t saved_after = data.at("steps_before_saving"), in_all = data.at("steps_in_all");
  for (size_t i = 0; i < run.counters().size(); ++i) {
    expect("a counter", static_cast<double>(run.counters()[i]->count), static_cast<double>(i + saved_after), 0);
  }
  for (size_t i = saved_after; i < in_all; ++i) {
    expect("the loss of step " + std::to_string(i), run.step(static_cast<int64_t>(i)), theirs.at("losses")[i], kKernelTolerance);
  }
  const auto rates = run.learning_rates();
  for (size_t i = 0; i < rates.size(); ++i) expect("a learning rate", rates[i], theirs.at("learning_rates_at_the_end")[i], 1e-12);
  const json& models = theirs.at("weights_at_the_end");
  for (size_t i = 0; i < models.size() && wrong.empty(); ++i) {
    wrong = difference_but_noise(sorted_value(run.weights(i)), sorted_value(tensors_of(models[i])));
  }
  return wrong;
}

// --- Saving what Python saved ------------------------------------------------------------------------------------------------

/// Why a file is not Python's to the byte although all that is in it is, or nothing.
std::string listed_as_other_bytes(const std::string& name) {
  return name.starts_with("pytorch_model") ? "versions of layers are not written into torch files" : "";
}

std::string scaler_difference(const json& data) {
  accelerate::GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  scaler.load_state_dict(value_in_file(folder_of(data) / "scaler.pt").as<StateDict>());
  TemporaryFolder folder;
  accelerate::detail::OutputFile file(folder / "scaler.pt");
  accelerate::detail::write_value(file, accelerate::detail::torch_archive_name("scaler.pt"), scaler.state_dict());
  file.commit();
  return golden::bytes_of_file(folder / "scaler.pt") == golden::bytes_of_file(folder_of(data) / "scaler.pt") ? "" : "other bytes";
}

/// Compares the files of a checkpoint with the golden ones. `file_difference` tells what is not right with one.
void judge_files(golden::Tally& tally, const json& data, const accelerate::Accelerator& accelerator, const std::string& title,
                 const std::function<std::string(const json& file, const std::string& name)>& file_difference,
                 const std::function<std::string(const std::string& name)>& listed) {
  if (!accelerator.is_main_process()) return;
  for (const auto& file : data.at("files")) {
    const std::string name = fs::path(file.at("file").get<std::string>()).filename();
    if (name.starts_with("random_states") && torch::cuda::is_available()) {
      tally.absent("random states of a machine without GPUs");  // this one saves those of its GPUs too
      continue;
    }
    const auto wrong = name == "scaler.pt" ? scaler_difference(data) : file_difference(file, name);
    tally.judge(title + " " + file.at("file").get<std::string>(), wrong.empty(), wrong, listed(name));
  }
}

void judge_round_trip(golden::Tally& tally, const json& data) {
  golden::RecipeRun run(data, 1);
  const SharedFolder folder(run.accelerator);
  run.accelerator.load_state(folder_of(data));
  run.accelerator.save_state(folder.path() / "again", {.safe_serialization = data.at("recipe").at("safe").get<bool>()});
  judge_files(
      tally, data, run.accelerator, "loaded and saved again:",
      [&](const json&, const std::string& name) -> std::string {
        const auto ours = golden::bytes_of_file(folder.path() / "again" / name),
                   theirs = golden::bytes_of_file(folder_of(data) / name);
        return ours == theirs ? "" : "other bytes, " + std::to_string(ours.size()) + " of them";
      },
      listed_as_other_bytes);
}

/// What the same run, begun here, leaves in a file.
std::string content_difference(const json& file, const fs::path& path) {
  if (file.contains("metadata")) {
    return difference_but_noise(sorted_value(accelerate::load_file(path)), sorted_value(tensors_of(file.at("content"))));
  }
  if (file.contains("content")) {
    const Value ours = value_in_file(path);
    const auto wrong = difference_but_noise(ours, golden::value_of(file.at("content")));
    json layout = file.at("layout");
    for (auto& place : layout) {
      for (const auto* about_autograd : {"requires_grad", "parameter"}) place.erase(about_autograd);
    }
    return !wrong.empty() ? wrong : golden::layout_of(ours) == layout ? "" : "tensors that lie otherwise in memory";
  }
  return "";
}

/// Files that hold no result of a kernel, so that the same run gives the same bytes.
bool has_exact_content(const std::string& name) {
  return name.starts_with("custom") || name.starts_with("scheduler") || name.starts_with("random_states");
}

void judge_same_run(golden::Tally& tally, const json& data) {
  golden::RecipeRun run(data, data.at("recipe").at("seed"));
  const SharedFolder folder(run.accelerator);
  for (int64_t i = 0; i < data.at("steps_before_saving").get<int64_t>(); ++i) run.step(i);
  run.accelerator.save_state(folder.path() / "ours", {.safe_serialization = data.at("recipe").at("safe").get<bool>()});
  judge_files(
      tally, data, run.accelerator, "the same run:",
      [&](const json& file, const std::string& name) -> std::string {
        const auto path = folder.path() / "ours" / name;
        if (!fs::exists(path)) return "was not written";
        const auto wrong = content_difference(file, path);
        if (!wrong.empty() || !has_exact_content(name)) return wrong;
        return golden::bytes_of_file(path) == golden::bytes_of_file(folder_of(data) / name) ? "" : "other bytes";
      },
      [](const std::string&) { return ""; });
  if (!run.accelerator.is_main_process()) return;
  for (const auto& entry : fs::directory_iterator(folder.path() / "ours")) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(fs::exists(folder_of(data) / name) || name == "accelerate_state.bin" || name == "accelerate_manifest.json")
        << name;
  }
}

class TogetherGoldenCheckpoints : public Together {};

TEST_F(TogetherGoldenCheckpoints, RunsGoOnFromWhatPythonSaved) {
  golden::Tally tally("checkpoints/state.json, going on, " + std::to_string(world()) + " processes");
  const json all = golden::read("checkpoints/state.json");
  for (const auto& data : saved_states(all, world())) {
    const auto wrong = difference_going_on(data);
    tally.judge(data.at("recipe").dump(), wrong.empty(), wrong);
  }
  EXPECT_EQ(tally.cases() > 0, world() <= 2);
}

TEST_F(TogetherGoldenCheckpoints, WhatPythonSavedIsSavedAgain) {
  golden::Tally tally("checkpoints/state.json, bytes, " + std::to_string(world()) + " processes");
  const json all = golden::read("checkpoints/state.json");
  for (const auto& data : saved_states(all, world())) judge_round_trip(tally, data);
}

TEST_F(TogetherGoldenCheckpoints, TheSameRunSavesTheSame) {
  golden::Tally tally("checkpoints/state.json, content, " + std::to_string(world()) + " processes");
  const json all = golden::read("checkpoints/state.json");
  for (const auto& data : saved_states(all, world())) judge_same_run(tally, data);
}

// --- Weights alone -----------------------------------------------------------------------------------------------------------

/// A module that has just these parameters, of which some are tied.
struct NetOfParts : torch::nn::Module {
  NetOfParts(const json& state, const json& tied) : Module("NetOfParts") {
    for (const auto& [name, node] : state.get<std::vector<std::pair<std::string, json>>>()) {
      at::Tensor tensor = golden::tensor(node);
      for (const auto& group : tied) {
        const auto names = group.get<std::vector<std::string>>();
        if (std::find(names.begin(), names.end(), name) != names.end())
          tensor = shared_.try_emplace(names[0], tensor).first->second;
      }
      add(name, tensor);
    }
  }

 private:
  void add(const std::string& name, const at::Tensor& tensor) {
    const auto dot = name.find('.');
    if (dot == std::string::npos) {
      register_buffer(name, tensor);
      return;
    }
    auto& part = parts_[name.substr(0, dot)];
    if (!part) part = register_module(name.substr(0, dot), std::make_shared<torch::nn::Module>("Part"));
    part->register_parameter(name.substr(dot + 1), tensor);
  }

  std::map<std::string, at::Tensor> shared_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> parts_;
};

std::string difference_saving_model(const json& data) {
  const TemporaryFolder folder;
  accelerate::Accelerator accelerator;
  const auto net = std::make_shared<NetOfParts>(data.at("state_dict"), data.at("tied"));
  const auto model = accelerator.prepare(net);
  const json& limit = data.at("max_shard_size");
  accelerator.save_model(model, folder / "model",
                         {.max_shard_size = limit.is_string() ? limit.get<std::string>() : limit.dump(),
                          .safe_serialization = data.at("safe_serialization")});
  size_t files = 0;
  for (const auto& file : data.at("files")) {
    const fs::path theirs = golden::path("checkpoints/" + file.at("file").get<std::string>());
    if (golden::bytes_of_file(folder / "model" / theirs.filename()) != golden::bytes_of_file(theirs)) {
      return theirs.filename().string() + " has other bytes";
    }
    ++files;
  }
  const auto written = static_cast<size_t>(std::distance(fs::directory_iterator(folder / "model"), {}));
  if (written != files) return std::to_string(written) + " files instead of " + std::to_string(files);
  for (auto& parameter : net->parameters()) parameter.data().zero_();
  accelerate::load_state_dict(*net, accelerate::load_weights(folder / "model"));
  for (const auto& [name, node] : data.at("state_dict").get<std::vector<std::pair<std::string, json>>>()) {
    if (!torch::equal(accelerate::state_dict(*net).at(name).cpu(), golden::tensor(node))) return name + " was not loaded";
  }
  return "";
}

TEST(Golden, ModelsAreSavedAsPythonSavesThem) {
  golden::Tally tally("checkpoints/state.json, save_model");
  const json all = golden::read("checkpoints/state.json");
  for (const auto& data : all.at("save_model")) {
    const auto wrong = difference_saving_model(data);
    tally.judge(data.at("name"), wrong.empty(), wrong);
  }
  EXPECT_GT(tally.cases(), 0);
}

// --- The folders of a project ------------------------------------------------------------------------------------------------

/// Folders and files of a project, without those that only we have.
std::vector<std::string> listing(const fs::path& project) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(project)) {
    const std::string name = fs::relative(entry.path(), project);
    const bool ours = name == "unfinished_checkpoints" || entry.path().filename().string().starts_with("accelerate_");
    if (!ours) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Golden, FoldersOfCheckpointsAreNamedAsPythonNamesThem) {
  golden::Tally tally("checkpoints/state.json, automatic_naming");
  const json all = golden::read("checkpoints/state.json");
  for (const auto& data : all.at("automatic_naming")) {
    const TemporaryFolder folder;
    accelerate::Accelerator accelerator({.project = {.project_dir = folder.path(),
                                                     .automatic_checkpoint_naming = true,
                                                     .total_limit = data.at("total_limit").get<int>()}});
    const auto model = accelerator.prepare(std::make_shared<golden::RecipeNet>(2));
    for (const auto& expected : data.at("saves")) {
      accelerator.save_state();
      const auto names = listing(folder.path());
      tally.judge(data.dump(), names == expected.get<std::vector<std::string>>(), json(names).dump());
    }
    const std::string next = accelerator.save_state();
    tally.judge("the next number", next.ends_with("checkpoint_" + data.at("iteration").dump()), next);
  }
}

}  // namespace
