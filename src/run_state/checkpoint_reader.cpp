#include "run_state/checkpoint_reader.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <accelerate/core/error.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>

#include "checkpoint/tensor_file.h"
#include "checkpoint/value_file.h"
#include "core/file.h"
#include "run_state/checkpoint_files.h"
#include "run_state/hook_states.h"
#include "run_state/named_optimizer_state.h"
#include "run_state/run_parts.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

StateDict read_state(const FolderFiles& files, const std::string& name) {
  const auto file = files.open(name);
  Value value = read_value(*file);
  if (value.kind() != Value::Kind::dict) throw CheckpointError(fmt::format("{} does not contain a dictionary.", file->name()));
  return std::move(value.as<StateDict>());
}

void read_model(LoadedRun& loaded, const ModelCore& model, const FolderFiles& files, size_t number) {
  for (const auto& name : model_names(number)) {
    if (!files.contains(name)) continue;
    auto read = name == sharded_model_folder(number) ? read_distributed_model(model, files.folder() / name)
                                                     : LoadedWeights{read_tensors(*files.open(name)), std::nullopt};
    loaded.models.push_back(std::move(read.weights));
    loaded.shards.push_back(std::move(read.shards));
    return;
  }
  throw CheckpointError(fmt::format("{} has no weights for model {}: neither {} exists.", files.folder().string(), number,
                                    fmt::join(model_names(number), " nor ")));
}

void read_optimizer(LoadedRun& loaded, const RunParts& parts, const FolderFiles& files, size_t number) {
  const std::string folder = optimizer_folder(number);
  const bool is_part = files.contains(folder) && !files.contains(optimizer_name(number));
  const auto& optimizer = parts.optimizers[number];
  StateDict state =
      is_part ? read_distributed_optimizer(parts, optimizer, files.folder() / folder) : read_state(files, optimizer_name(number));
  const std::string source = is_part ? folder : optimizer_name(number);
  try {
    loaded.optimizers.push_back(numbered_state(std::move(state), group_names(parts, optimizer)));
  } catch (const std::exception& error) {  // the state's owner does not know the file
    throw CheckpointError(fmt::format("{} does not fit this run: {}", loaded.file(source), error.what()));
  }
  loaded.optimizer_sources.push_back({source, is_part});
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code problem;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end; entry.increment(problem))
    names.push_back(entry->path().filename().string());
  if (problem == std::errc::no_such_file_or_directory)
    throw CheckpointError(fmt::format("{} was removed while it was read.", folder.string()));
  if (problem) throw FileAccessError(fmt::format("Cannot read the folder {}: {}.", folder.string(), problem.message()));
  return names;
}

void check_count(const fs::path& folder, size_t registered) {
  size_t files = 0;
  for (const auto& name : names_in(folder)) files += name.starts_with(kRegistered) && is_checkpoint_file(name) ? 1 : 0;
  if (files == registered) return;
  throw CheckpointError(
      fmt::format("{} holds the states of {} registered objects; {} are registered with register_for_checkpointing. Register the "
                  "same ones, in the same order, before load_state.",
                  folder.string(), files, registered));
}

/// This rank's, or where another number of ranks saved, the mean over those: the result of all of them together. Pieces of
/// sharded parameters follow each other in the order of ranks.
void read_gradients(LoadedRun& loaded, const FolderFiles& files, const RunParts& parts) {
  int saved = 0;
  while (files.contains(gradients_name(saved))) ++saved;
  const int rank = parts.state.process_index();
  const bool same_ranks = saved == parts.state.num_processes();
  const TensorDict own = same_ranks ? read_tensors(*files.open(gradients_name(rank))) : TensorDict();
  const auto is_piece = [](const auto& item) { return item.first.starts_with(kPiece); };
  for (const auto& item : own) {
    if (!is_piece(item)) loaded.gradients[item.first] = item.second;
  }
  if (same_ranks && std::none_of(own.begin(), own.end(), is_piece)) return;
  std::map<std::string, std::vector<at::Tensor>> pieces;
  for (int process = 0; process < saved; ++process) {
    for (const auto& item : read_tensors(*files.open(gradients_name(process)))) {
      const auto& [name, gradient] = item;
      if (is_piece(item)) {
        pieces[name.substr(std::strlen(kPiece))].push_back(gradient);
      } else if (!same_ranks) {
        at::Tensor& mean = loaded.gradients[name];
        mean = mean.defined() ? mean.add(gradient, 1.0 / saved) : gradient / saved;
      }
    }
  }
  for (const auto& [name, in_order] : pieces) loaded.averaged_gradients[name] = at::cat(in_order);
}

/// Before anything is changed.
void check_gradients(const LoadedRun& loaded, const RunParts& parts) {
  for (size_t i = 0; i < parts.models.size(); ++i) {
    for (const auto& [name, parameter] : parts.models[i]->named_parameters()) {
      const auto key = parameter_key(i, name);
      if (!loaded.averaged_gradients.contains(key) || parameter.numel() == 0) continue;
      const auto elements = loaded.averaged_gradients.at(key).numel();
      if (elements >= parameter.numel() && elements % parameter.numel() == 0) continue;  // hybrid sharding has several copies
      throw CheckpointError(
          fmt::format("{}*.safetensors in {} hold {} elements of the gradient of {}, which has {}: a file is "
                      "missing, or of another run.",
                      kGradients, loaded.folder, elements, name, parameter.numel()));
    }
  }
}

/// Whether read_checkpoint asks for the file of that name in a checkpoint of as many ranks.
bool is_read_by(const RunParts& parts, const std::string& name) {
  const int rank = parts.state.process_index();
  // The others are those of other ranks.
  if (name.starts_with(kGradients)) return name == gradients_name(rank);
  if (name.starts_with(kRandomStates)) return name == random_states_name(rank);
  if (name.starts_with(kHookStates)) return name == hook_states_name(rank);
  if (name.find('/') != name.npos) return false;  // of shards ranges are read
  return is_checkpoint_file(name);
}

/// Reads all of a folder that has no manifest to tell whether it is whole. CheckpointError when it is not.
void check_by_reading(const RunParts& parts, FolderFiles& files) {
  read_checkpoint(parts, files);
  for (const auto& name : names_in(files.folder())) {
    // Those of the other ranks, too.
    if (name.starts_with(kRandomStates) && name.ends_with(".pkl")) read_random_states(*files.open(name));
  }
}

}  // namespace

std::vector<std::string> common_files(const RunParts& parts, const FolderFiles& files) {
  std::vector<std::string> names = {kScaler, kOwnState};
  for (size_t i = 0; i < parts.models.size(); ++i) {
    const auto models = model_names(i);
    const auto found = std::find_if(models.begin(), models.end(), [&](const auto& name) { return files.contains(name); });
    if (found != models.end() && *found != sharded_model_folder(i)) names.push_back(*found);
  }
  for (size_t i = 0; i < parts.optimizers.size(); ++i) names.push_back(optimizer_name(i));
  for (size_t i = 0; i < parts.schedulers.size(); ++i) names.push_back(numbered_name("scheduler", i, ".bin"));
  for (size_t i = 0; i < parts.registered.size(); ++i) names.push_back(registered_name(i));
  std::erase_if(names, [&](const auto& name) { return !files.contains(name); });
  return names;
}

std::shared_ptr<LoadedRun> read_checkpoint(const RunParts& parts, FolderFiles& files) {
  auto names = common_files(parts, files);
  names.push_back(gradients_name(parts.state.process_index()));
  files.read(names);  // all at once, so that threads share the work
  auto loaded = std::make_shared<LoadedRun>();
  loaded->folder = files.folder();
  for (size_t i = 0; i < parts.models.size(); ++i) read_model(*loaded, *parts.models[i], files, i);
  for (size_t i = 0; i < parts.optimizers.size(); ++i) read_optimizer(*loaded, parts, files, i);
  for (size_t i = 0; i < parts.schedulers.size(); ++i) {
    loaded->schedulers.push_back(read_state(files, numbered_name("scheduler", i, ".bin")));
  }
  if (parts.scaler && files.contains(kScaler)) loaded->scaler = read_state(files, kScaler);
  check_count(files.folder(), parts.registered.size());
  for (size_t i = 0; i < parts.registered.size(); ++i) loaded->registered.push_back(read_state(files, registered_name(i)));
  if (files.contains(kOwnState)) loaded->own = read_state(files, kOwnState);
  const std::string random = random_states_name(parts.state.process_index());
  if (files.contains(random)) loaded->random = read_random_states(*files.open(random));
  read_gradients(*loaded, files, parts);
  check_gradients(*loaded, parts);
  loaded->hooks = read_hook_states(files, parts);
  return loaded;
}

std::string find_checkpoint_defect(const RunParts& parts, const std::string& folder, bool verify,
                                   std::unique_ptr<FolderFiles>& files) {
  files.reset();  // the memory of the one before
  files = std::make_unique<FolderFiles>(folder);
  try {
    if (const auto manifest = read_manifest(folder)) {
      return verify ? files->verify(*manifest, [&](const auto& name) { return is_read_by(parts, name); })
                    : find_defect(folder, *manifest);
    }
    check_by_reading(parts, *files);  // Python wrote it, and left nothing to tell by
    return "";
  } catch (const FileAccessError&) {
    throw;  // it says nothing about the checkpoint
  } catch (const std::bad_alloc&) {
    throw;  // nor does this
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace accelerate::detail
