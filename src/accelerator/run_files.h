#pragma once

#include <functional>
#include <string>
#include <vector>

#include "accelerator/run_parts.h"
#include "checkpoint/manifest.h"
#include "core/byte_sink.h"

namespace accelerate::detail {

/// One file of a checkpoint that has yet to be written.
struct RunFile {
  std::string name;
  std::function<void(ByteSink&)> write;
};

struct SnapshotOptions {
  /// Model weights as safetensors files; off: files of torch.save.
  bool safe_serialization = true;
  /// With copies in host memory, so that the run may go on while they are written.
  bool copy = false;
  /// This process writes what is the same on all.
  bool writes_shared = true;
};

/// The files that this process writes of a checkpoint taken now, in which the models have these weights. `python_random` are
/// Python's own random numbers, from the checkpoint that the run went on from, or null.
std::vector<RunFile> snapshot_of(const RunParts& parts, const std::vector<TensorDict>& weights,
                                 std::shared_ptr<const PythonRandomStates> python_random, const SnapshotOptions& options);

/// Writes them into `folder`, several at a time, and makes them durable.
std::vector<FileRecord> write_files(const std::vector<RunFile>& files, const std::string& folder);

/// What was read of a checkpoint, before anything of the run is changed.
struct LoadedRun;
std::shared_ptr<LoadedRun> read_run(const RunParts& parts, const std::string& folder);
/// Sets the run to it. Returns Python's own random numbers, or null.
std::shared_ptr<const PythonRandomStates> restore_run(RunParts& parts, const LoadedRun& loaded);
/// The record of a file that somebody else wrote.
FileRecord record_of(const std::string& folder, const std::string& name);

/// Whether it is a file that save_state writes, here or in Python.
bool is_run_file(const std::string& name);

}  // namespace accelerate::detail
