#include "accelerator/run_files.h"

#include <ATen/ops/zeros_like.h>
#include <accelerate/checkpoint/module_state.h>
#include <accelerate/checkpoint/optimizer_state.h>
#include <accelerate/core/error.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <thread>

#include "checkpoint/tensor_file.h"
#include "checkpoint/value_file.h"
#include "core/crc32.h"
#include "core/file.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

constexpr char kOwnState[] = "accelerate_state";

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true) : tensor;
}

/// Collects files, of copies where the run goes on.
class Snapshot {
 public:
  explicit Snapshot(bool copy) : copy_(copy) {}

  void add(const std::string& name, StateDict state) {
    Value value = copy_ ? copied_value(std::move(state)) : Value(std::move(state));
    files.push_back(
        {name, [name, value = std::move(value)](ByteSink& sink) { write_value(sink, torch_archive_name(name), value); }});
  }

  void add(const std::string& name, TensorFormat format, TensorDict tensors) {
    if (copy_) {
      for (auto& item : tensors) item.second = on_host(item.second);
    }
    files.push_back(
        {name, [name, format, tensors = std::move(tensors)](ByteSink& sink) { write_tensors(sink, format, name, tensors); }});
  }

  std::vector<RunFile> files;

 private:
  bool copy_;
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
      if (parameter.grad().defined()) gradients[std::to_string(i) + "." + name] = parameter.grad();
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
          {"loaders", std::move(loaders)}};
}

void add_weights(Snapshot& snapshot, const std::vector<TensorDict>& weights, bool safe_serialization) {
  for (size_t i = 0; i < weights.size(); ++i) {
    if (safe_serialization) {
      snapshot.add(numbered_name("model", i, ".safetensors"), TensorFormat::safetensors, without_tied(weights[i]));
    } else {
      snapshot.add(numbered_name("pytorch_model", i, ".bin"), TensorFormat::torch, weights[i]);
    }
  }
}

void add_shared(Snapshot& snapshot, const RunParts& parts) {
  for (size_t i = 0; i < parts.optimizers.size(); ++i) {
    snapshot.add(numbered_name("optimizer", i, ".bin"), optimizer_state(parts.optimizers[i], parts.schedulers));
  }
  for (size_t i = 0; i < parts.schedulers.size(); ++i) {
    snapshot.add(numbered_name("scheduler", i, ".bin"), parts.schedulers[i].state_dict());
  }
  if (parts.scaler) snapshot.add("scaler.pt", parts.scaler->state_dict());
  for (size_t i = 0; i < parts.registered.size(); ++i) {
    snapshot.add(fmt::format("custom_checkpoint_{}.pkl", i), parts.registered[i].state_dict());
  }
  snapshot.add(std::string(kOwnState) + ".bin", own_state(parts));
}

/// Counts and sums what goes into a file.
class SummedSink final : public ByteSink {
 public:
  SummedSink(ByteSink& sink, FileRecord& record) : sink_(sink), record_(record) {}
  void write(const void* bytes, uint64_t size) override {
    record_.crc32 = crc32(record_.crc32, bytes, size);
    record_.bytes += size;
    sink_.write(bytes, size);
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
  output.commit();
  return record;
}

/// Calls `work` for each number below `count`, on a few threads. The first exception comes out.
void in_parallel(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> threads;
  const size_t wanted = std::min<size_t>({count, std::max(1U, std::thread::hardware_concurrency()), 8});
  for (size_t i = 1; i < wanted; ++i) threads.emplace_back(run);
  run();
  for (auto& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

Value copied_value(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::tensor:
      return on_host(value.as<at::Tensor>());
    case Value::Kind::list: {
      Value::List list;
      for (const auto& item : value.as<Value::List>()) list.push_back(copied_value(item));
      return list;
    }
    case Value::Kind::tuple: {
      Value::List list;
      for (const auto& item : value.as<Value::Tuple>().items) list.push_back(copied_value(item));
      return Value::Tuple(std::move(list));
    }
    case Value::Kind::dict: {
      StateDict dict;
      dict.set_numbered(value.as<StateDict>().is_numbered());
      for (const auto& [name, item] : value.as<StateDict>()) dict[name] = copied_value(item);
      return dict;
    }
    default:
      return value;
  }
}

std::string numbered_name(const std::string& stem, size_t number, const std::string& extension) {
  return number == 0 ? stem + extension : fmt::format("{}_{}{}", stem, number, extension);
}

std::vector<RunFile> snapshot_of(const RunParts& parts, const std::vector<TensorDict>& weights,
                                 std::shared_ptr<const PythonRandomStates> python_random, const SnapshotOptions& options) {
  Snapshot snapshot(options.copy);
  if (options.writes_shared) {
    add_weights(snapshot, weights, options.safe_serialization);
    add_shared(snapshot, parts);
  }
  if (!parts.gradients->sync_gradients()) {
    TensorDict gradients = pending_gradients(parts);
    if (!gradients.empty()) {
      snapshot.add(fmt::format("accelerate_gradients_{}.safetensors", parts.state.process_index()), TensorFormat::safetensors,
                   std::move(gradients));
    }
  }
  const std::string name = fmt::format("random_states_{}.pkl", parts.state.process_index());
  const auto random = current_random_states(parts.gradients->step(), std::move(python_random));
  snapshot.files.push_back(
      {name, [name, random](ByteSink& sink) { write_random_states(sink, torch_archive_name(name), random); }});
  return std::move(snapshot.files);
}

std::vector<FileRecord> write_files(const std::vector<RunFile>& files, const std::string& folder) {
  std::vector<FileRecord> records(files.size());
  in_parallel(files.size(), [&](size_t i) { records[i] = write_file(files[i], folder); });
  return records;
}

FileRecord record_of(const std::string& folder, const std::string& name) {
  const InputFile file(fs::path(folder) / name);
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
  for (const auto* stem : {"model", "pytorch_model", "optimizer", "scheduler", "scaler", "random_states_", "custom_checkpoint_",
                           "accelerate_", "sampler", "dl_state_dict"}) {
    if (!name.starts_with(stem)) continue;
    for (const auto* extension : {".safetensors", ".bin", ".pt", ".pkl", ".json"}) {
      if (name.ends_with(extension)) return true;
    }
  }
  return false;
}

// --- Reading --------------------------------------------------------------------------------------------------------------

namespace {

bool is_there(const fs::path& path) {
  std::error_code problem;
  return fs::exists(path, problem);
}

StateDict read_state(const fs::path& path) {
  const InputFile file(path);
  const Value value = read_value(file);
  if (value.kind() != Value::Kind::dict) throw CheckpointError(fmt::format("{} holds no dictionary.", path.string()));
  return value.as<StateDict>();
}

TensorDict read_model(const fs::path& folder, size_t number) {
  for (const auto& name : {numbered_name("model", number, ".safetensors"), numbered_name("pytorch_model", number, ".bin")}) {
    if (is_there(folder / name)) return read_tensors(InputFile(folder / name));
  }
  throw CheckpointError(fmt::format("{} has no weights for model {}: neither {} nor {} is there.", folder.string(), number,
                                    numbered_name("model", number, ".safetensors"),
                                    numbered_name("pytorch_model", number, ".bin")));
}

void check_count(const fs::path& folder, size_t registered) {
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    files += name.starts_with("custom_checkpoint_") && name.ends_with(".pkl") ? 1 : 0;
  }
  if (files == registered) return;
  throw CheckpointError(
      fmt::format("{} holds the states of {} registered objects; {} are registered with register_for_checkpointing. Register the "
                  "same ones, in "
                  "the same order, before load_state.",
                  folder.string(), files, registered));
}

/// This process's, or where another number of processes saved, the mean over those: what all of them would have come to.
TensorDict read_gradients(const fs::path& folder, const RunParts& parts) {
  const auto path_of = [&](int process) { return folder / fmt::format("accelerate_gradients_{}.safetensors", process); };
  int saved = 0;
  while (is_there(path_of(saved))) ++saved;
  if (saved == parts.state.num_processes()) return read_tensors(InputFile(path_of(parts.state.process_index())));
  TensorDict mean;
  for (int process = 0; process < saved; ++process) {
    for (const auto& [name, gradient] : read_tensors(InputFile(path_of(process)))) {
      mean[name] = mean.contains(name) ? mean.at(name).add(gradient, 1.0 / saved) : gradient / saved;
    }
  }
  return mean;
}

}  // namespace

std::shared_ptr<LoadedRun> read_run(const RunParts& parts, const std::string& folder_name) {
  const fs::path folder = folder_name;
  auto loaded = std::make_shared<LoadedRun>();
  loaded->folder = folder.string();
  for (size_t i = 0; i < parts.models.size(); ++i) loaded->models.push_back(read_model(folder, i));
  for (size_t i = 0; i < parts.optimizers.size(); ++i) {
    loaded->optimizers.push_back(read_state(folder / numbered_name("optimizer", i, ".bin")));
  }
  for (size_t i = 0; i < parts.schedulers.size(); ++i) {
    loaded->schedulers.push_back(read_state(folder / numbered_name("scheduler", i, ".bin")));
  }
  if (parts.scaler && is_there(folder / "scaler.pt")) loaded->scaler = read_state(folder / "scaler.pt");
  check_count(folder, parts.registered.size());
  for (size_t i = 0; i < parts.registered.size(); ++i) {
    loaded->registered.push_back(read_state(folder / fmt::format("custom_checkpoint_{}.pkl", i)));
  }
  const fs::path own = folder / (std::string(kOwnState) + ".bin");
  if (is_there(own)) loaded->own = read_state(own);
  const fs::path random = folder / fmt::format("random_states_{}.pkl", parts.state.process_index());
  if (is_there(random)) loaded->random = read_random_states(InputFile(random));
  loaded->gradients = read_gradients(folder, parts);
  return loaded;
}

void check_run(const RunParts& parts, const std::string& folder) {
  read_run(parts, folder);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    // Those of the other processes, too.
    if (name.starts_with("random_states_") && name.ends_with(".pkl")) read_random_states(InputFile(entry.path()));
  }
}

}  // namespace accelerate::detail
