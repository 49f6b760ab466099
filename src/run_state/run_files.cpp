#include "run_state/run_files.h"

#include <ATen/ops/zeros_like.h>
#include <accelerate/checkpoint/module_state.h>
#include <accelerate/checkpoint/optimizer_state.h>
#include <accelerate/core/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "checkpoint/tensor_file.h"
#include "checkpoint/value_file.h"
#include "core/crc32.h"
#include "core/file.h"
#include "core/in_parallel.h"
#include "run_state/hook_states.h"
#include "run_state/parameter_names.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

constexpr char kGradients[] = "accelerate_gradients_";

std::string gradients_name(int process) { return fmt::format("{}{}.safetensors", kGradients, process); }

/// The first that is there is read.
std::vector<std::string> model_names(size_t number) {
  return {numbered_name("model", number, ".safetensors"), numbered_name("pytorch_model", number, ".bin")};
}

/// Collects files, of copies where the run goes on. Those of weights and of optimizers are made later: they are most of it, and
/// nothing but operators writes to them. What objects of the user have is theirs to write to in any way.
class Snapshot {
 public:
  explicit Snapshot(HostCopies* copies) : copies_(copies) {}

  void add(const std::string& name, StateDict state, CopyTime when = CopyTime::now) {
    Value value = copies_ ? copied_value(state, *copies_, when) : Value(std::move(state));
    files.push_back(
        {name, [name, value = std::move(value)](ByteSink& sink) { write_value(sink, torch_archive_name(name), value); }});
  }

  void add(const std::string& name, TensorFormat format, TensorDict tensors, CopyTime when = CopyTime::now) {
    if (copies_) {
      for (auto& item : tensors) item.second = copies_->add(item.second, when);
    }
    files.push_back(
        {name, [name, format, tensors = std::move(tensors)](ByteSink& sink) { write_tensors(sink, format, name, tensors); }});
  }

  std::vector<RunFile> files;

 private:
  HostCopies* copies_;
};

/// With what the schedulers of Python keep among its options.
StateDict optimizer_state(const AcceleratedOptimizer& optimizer, const std::vector<AcceleratedScheduler>& schedulers) {
  StateDict state = accelerate::state_dict(optimizer.optimizer());
  auto& groups = state.at("param_groups").as<Value::List>();
  for (size_t i = 0; i < groups.size(); ++i) {
    StateDict fields;
    for (const auto& [name, value] : groups[i].as<StateDict>()) {
      if (name == "params") {  // Python has them last
        for (const auto& scheduler : schedulers) {
          if (scheduler.optimizer() != &optimizer.optimizer()) continue;
          for (const auto& [field, kept] : scheduler.group_fields(i)) fields[field] = kept;
        }
      }
      fields[name] = value;
    }
    groups[i] = std::move(fields);
  }
  return state;
}

/// Gradients of an accumulation that has not come to its step.
TensorDict pending_gradients(const RunParts& parts) {
  TensorDict gradients;
  for (size_t i = 0; i < parts.models.size(); ++i) {
    for (const auto& [name, parameter] : parts.models[i]->named_parameters()) {
      const auto gradient = parts.buffers ? parts.buffers->sum_of(parameter) : parameter.grad();
      if (gradient.defined()) gradients[parameter_key(i, name)] = gradient;
    }
  }
  return gradients;
}

StateDict own_state(const RunParts& parts) {
  Value::List loaders;
  for (const auto& loader : parts.loaders) loaders.emplace_back(loader.state_dict());
  return {{"format", 1},
          {"step", parts.gradients->step()},
          {"sync_gradients", parts.gradients->sync_gradients()},
          {"loaders", std::move(loaders)},
          {"parameter_names", parameter_names(parts)}};
}

void add_weights(Snapshot& snapshot, const std::vector<TensorDict>& weights, bool safe_serialization) {
  for (size_t i = 0; i < weights.size(); ++i) {
    if (safe_serialization) {
      snapshot.add(numbered_name("model", i, ".safetensors"), TensorFormat::safetensors, without_tied(weights[i]),
                   CopyTime::later);
    } else {
      snapshot.add(numbered_name("pytorch_model", i, ".bin"), TensorFormat::torch, weights[i], CopyTime::later);
    }
  }
}

void add_shared(Snapshot& snapshot, const RunParts& parts) {
  for (size_t i = 0; i < parts.optimizers.size(); ++i) {
    snapshot.add(numbered_name("optimizer", i, ".bin"), optimizer_state(parts.optimizers[i], parts.schedulers), CopyTime::later);
  }
  for (size_t i = 0; i < parts.schedulers.size(); ++i) {
    snapshot.add(numbered_name("scheduler", i, ".bin"), parts.schedulers[i].state_dict());
  }
  if (parts.scaler) snapshot.add(kScaler, parts.scaler->state_dict());
  for (size_t i = 0; i < parts.registered.size(); ++i) {
    snapshot.add(registered_name(i), parts.registered[i].state_dict());
  }
  snapshot.add(kOwnState, own_state(parts));
}

/// Counts and sums what goes into a file.
class SummedSink final : public ByteSink {
 public:
  SummedSink(ByteSink& sink, FileRecord& record) : sink_(sink), record_(record) {}
  void write(const void* bytes, uint64_t size) override { write_summed(bytes, size); }
  uint32_t write_summed(const void* bytes, uint64_t size) override {
    const uint32_t sum = sink_.write_summed(bytes, size);
    record_.crc32 = combine_crc32(record_.crc32, sum, size);
    record_.bytes += size;
    return sum;
  }

 private:
  ByteSink& sink_;
  FileRecord& record_;
};

FileRecord write_file(const RunFile& file, const fs::path& folder) {
  FileRecord record{.name = file.name};
  OutputFile output(folder / file.name);
  SummedSink sink(output, record);
  file.write(sink);
  output.place();  // whoever puts the checkpoint together makes the folder durable
  return record;
}

}  // namespace

Value copied_value(const Value& value, HostCopies& copies, CopyTime when) {
  switch (value.kind()) {
    case Value::Kind::tensor:
      return copies.add(value.as<at::Tensor>(), when);
    case Value::Kind::list: {
      Value::List list;
      for (const auto& item : value.as<Value::List>()) list.push_back(copied_value(item, copies, when));
      return list;
    }
    case Value::Kind::tuple: {
      Value::List list;
      for (const auto& item : value.as<Value::Tuple>().items) list.push_back(copied_value(item, copies, when));
      return Value::Tuple(std::move(list));
    }
    case Value::Kind::dict: {
      StateDict dict;
      dict.set_numbered(value.as<StateDict>().is_numbered());
      for (const auto& [name, item] : value.as<StateDict>()) dict[name] = copied_value(item, copies, when);
      return dict;
    }
    default:
      return value;
  }
}

std::string random_states_name(int process) { return fmt::format("{}{}.pkl", kRandomStates, process); }

std::string registered_name(size_t number) { return fmt::format("custom_checkpoint_{}.pkl", number); }

std::string parameter_key(size_t model, const std::string& name) { return fmt::format("{}.{}", model, name); }

std::string numbered_name(const std::string& stem, size_t number, const std::string& extension) {
  return number == 0 ? stem + extension : fmt::format("{}_{}{}", stem, number, extension);
}

RunSnapshot snapshot_of(const RunParts& parts, const std::vector<TensorDict>& weights,
                        std::shared_ptr<const PythonRandomStates> python_random, const SnapshotOptions& options) {
  if (options.copies) options.copies->begin();
  Snapshot snapshot(options.copies);
  if (options.writes_shared) {
    add_weights(snapshot, weights, options.safe_serialization);
    add_shared(snapshot, parts);
  }
  if (!parts.gradients->sync_gradients()) {
    TensorDict gradients = pending_gradients(parts);
    if (!gradients.empty()) {
      snapshot.add(gradients_name(parts.state.process_index()), TensorFormat::safetensors, std::move(gradients));
    }
  }
  if (StateDict hooks = hook_states_of(parts); !hooks.empty()) {
    snapshot.add(hook_states_name(parts.state.process_index()), std::move(hooks));
  }
  const std::string name = random_states_name(parts.state.process_index());
  const auto random = current_random_states(parts.gradients->step(), std::move(python_random));
  snapshot.files.push_back(
      {name, [name, random](ByteSink& sink) { write_random_states(sink, torch_archive_name(name), random); }});
  return {.files = std::move(snapshot.files), .copies = options.copies ? options.copies->finish() : DeferredCopies()};
}

std::vector<FileRecord> write_files(const std::vector<RunFile>& files, const std::string& folder) {
  std::vector<FileRecord> records(files.size());
  in_parallel(files.size(), [&](size_t i) { records[i] = write_file(files[i], folder); });
  return records;
}

FileRecord settled_record_of(const std::string& folder, const std::string& name) {
  const InputFile file(fs::path(folder) / name);
  file.settle();
  FileRecord record{.name = name, .bytes = file.size()};
  std::vector<char> buffer(std::min<uint64_t>(file.size(), uint64_t{1} << 20));
  for (uint64_t offset = 0; offset < file.size(); offset += buffer.size()) {
    const uint64_t size = std::min<uint64_t>(buffer.size(), file.size() - offset);
    file.read(buffer.data(), size, offset);
    record.crc32 = crc32(record.crc32, buffer.data(), size);
  }
  return record;
}

bool is_run_file(const std::string& name) {
  // A second model, optimizer or scheduler has a number; what each process has always has one.
  enum Number { none, optional, always };
  struct Kind {
    std::string_view stem, extension;
    Number number;
  };
  static constexpr Kind kKinds[] = {
      {"model", ".safetensors", optional},
      {"pytorch_model", ".bin", optional},
      {"optimizer", ".bin", optional},
      {"scheduler", ".bin", optional},
      {"sampler", ".bin", optional},
      {"dl_state_dict", ".bin", optional},
      {"scaler", ".pt", none},
      {"random_states", ".pkl", always},
      {"custom_checkpoint", ".pkl", always},
      {"accelerate_state", ".bin", none},
      {"accelerate_manifest", ".json", none},
      {"accelerate_gradients", ".safetensors", always},
      {"accelerate_comm_hooks", ".bin", always},
  };
  const std::string_view text = name;
  return std::any_of(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) {
    if (!text.starts_with(kind.stem) || !text.ends_with(kind.extension)) return false;
    if (text.size() < kind.stem.size() + kind.extension.size()) return false;
    const auto number = text.substr(kind.stem.size(), text.size() - kind.stem.size() - kind.extension.size());
    if (number.empty()) return kind.number != always;
    return kind.number != none && number.size() > 1 && number.front() == '_' &&
           number.find_first_not_of("0123456789", 1) == number.npos;
  });
}

// --- Reading --------------------------------------------------------------------------------------------------------------

namespace {

StateDict read_state(const FolderFiles& files, const std::string& name) {
  const auto file = files.open(name);
  Value value = read_value(*file);
  if (value.kind() != Value::Kind::dict) throw CheckpointError(fmt::format("{} holds no dictionary.", file->name()));
  return std::move(value.as<StateDict>());
}

TensorDict read_model(const FolderFiles& files, size_t number) {
  for (const auto& name : model_names(number)) {
    if (files.contains(name)) return read_tensors(*files.open(name));
  }
  throw CheckpointError(fmt::format("{} has no weights for model {}: neither {} is there.", files.folder().string(), number,
                                    fmt::join(model_names(number), " nor ")));
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
  for (const auto& name : names_in(folder)) files += name.starts_with("custom_checkpoint_") && is_run_file(name) ? 1 : 0;
  if (files == registered) return;
  throw CheckpointError(
      fmt::format("{} holds the states of {} registered objects; {} are registered with register_for_checkpointing. Register the "
                  "same ones, in "
                  "the same order, before load_state.",
                  folder.string(), files, registered));
}

/// This process's, or where another number of processes saved, the mean over those: what all of them would have come to.
TensorDict read_gradients(const FolderFiles& files, const RunParts& parts) {
  int saved = 0;
  while (files.contains(gradients_name(saved))) ++saved;
  if (saved == parts.state.num_processes()) return read_tensors(*files.open(gradients_name(parts.state.process_index())));
  TensorDict mean;
  for (int process = 0; process < saved; ++process) {
    for (const auto& [name, gradient] : read_tensors(*files.open(gradients_name(process)))) {
      mean[name] = mean.contains(name) ? mean.at(name).add(gradient, 1.0 / saved) : gradient / saved;
    }
  }
  return mean;
}

/// What will be asked for, all at once, so that threads share it out.
void read_ahead(const RunParts& parts, FolderFiles& files) {
  std::vector<std::string> names = {gradients_name(parts.state.process_index())};
  for (size_t i = 0; i < parts.optimizers.size(); ++i) names.push_back(numbered_name("optimizer", i, ".bin"));
  for (size_t i = 0; i < parts.models.size(); ++i) {
    const auto candidates = model_names(i);
    names.push_back(files.contains(candidates.front()) ? candidates.front() : candidates.back());
  }
  files.read(names);
}

}  // namespace

bool is_read_by(const RunParts& parts, const std::string& name) {
  const int process = parts.state.process_index();
  // The others are those of other processes.
  if (name.starts_with(kGradients)) return name == gradients_name(process);
  if (name.starts_with(kRandomStates)) return name == random_states_name(process);
  if (name.starts_with(kHookStates)) return name == hook_states_name(process);
  return is_run_file(name);
}

std::shared_ptr<LoadedRun> read_run(const RunParts& parts, FolderFiles& files) {
  read_ahead(parts, files);
  auto loaded = std::make_shared<LoadedRun>();
  loaded->folder = files.folder();
  for (size_t i = 0; i < parts.models.size(); ++i) loaded->models.push_back(read_model(files, i));
  for (size_t i = 0; i < parts.optimizers.size(); ++i) {
    loaded->optimizers.push_back(read_state(files, numbered_name("optimizer", i, ".bin")));
  }
  for (size_t i = 0; i < parts.schedulers.size(); ++i) {
    loaded->schedulers.push_back(read_state(files, numbered_name("scheduler", i, ".bin")));
  }
  if (parts.scaler && files.contains(kScaler)) loaded->scaler = read_state(files, kScaler);
  check_count(files.folder(), parts.registered.size());
  for (size_t i = 0; i < parts.registered.size(); ++i) loaded->registered.push_back(read_state(files, registered_name(i)));
  if (files.contains(kOwnState)) loaded->own = read_state(files, kOwnState);
  const std::string random = random_states_name(parts.state.process_index());
  if (files.contains(random)) loaded->random = read_random_states(*files.open(random));
  loaded->gradients = read_gradients(files, parts);
  loaded->hooks = read_hook_states(files, parts);
  return loaded;
}

void check_run(const RunParts& parts, FolderFiles& files) {
  read_run(parts, files);
  for (const auto& name : names_in(files.folder())) {
    // Those of the other processes, too.
    if (name.starts_with(kRandomStates) && name.ends_with(".pkl")) read_random_states(*files.open(name));
  }
}

}  // namespace accelerate::detail
