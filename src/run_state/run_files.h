#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/folder_files.h"
#include "checkpoint/host_copies.h"
#include "core/byte_sink.h"
#include "run_state/restore_run.h"
#include "run_state/run_parts.h"

namespace accelerate::detail {

/// One file of a checkpoint that has yet to be written.
struct RunFile {
  std::string name;
  std::function<void(ByteSink&)> write;
};

struct SnapshotOptions {
  /// Model weights as safetensors files; off: files of torch.save.
  bool safe_serialization = true;
  /// Where to copy to, so that the run may go on while the files are written; null: files are written from the run's memory.
  HostCopies* copies = nullptr;
  /// This process writes what is the same on all.
  bool writes_shared = true;
};

/// What this process writes of a checkpoint.
struct RunSnapshot {
  std::vector<RunFile> files = {};
  /// To be made before the files are written.
  DeferredCopies copies = {};
};

/// The files that this process writes of a checkpoint taken now, in which the models have these weights. `python_random` are
/// Python's own random numbers, from the checkpoint that the run went on from, or null.
RunSnapshot snapshot_of(const RunParts& parts, const std::vector<TensorDict>& weights,
                        std::shared_ptr<const PythonRandomStates> python_random, const SnapshotOptions& options);

/// Writes them into `folder`, several at a time, and makes them durable.
std::vector<FileRecord> write_files(const std::vector<RunFile>& files, const std::string& folder);

/// What these parts have in a checkpoint. Nothing of the run is changed. CheckpointError when it is not there or cannot be read.
/// Tensors may lie in the memory of `files`.
std::shared_ptr<LoadedRun> read_run(const RunParts& parts, FolderFiles& files);
/// Reads all of a folder that has no manifest to tell whether it is whole. CheckpointError when it is not.
void check_run(const RunParts& parts, FolderFiles& files);
/// Whether read_run asks for the file of that name in a checkpoint of as many processes.
bool is_read_by(const RunParts& parts, const std::string& name);

/// The same with copies of its tensors.
Value copied_value(const Value& value, HostCopies& copies, CopyTime when = CopyTime::now);
/// The record of a file that somebody else wrote, which is made durable.
FileRecord settled_record_of(const std::string& folder, const std::string& name);

/// Whether it is the name of a file that save_state writes, here or in Python. Exact: others in the folder are the user's.
bool is_run_file(const std::string& name);

}  // namespace accelerate::detail
