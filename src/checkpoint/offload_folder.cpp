#include <accelerate/checkpoint/offload_folder.h>
#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/dtypes.h"
#include "checkpoint/offload_index.h"
#include "checkpoint/staged_folder.h"
#include "core/escaped.h"
#include "core/file.h"
#include "distributed/plain_tensor.h"

namespace accelerate {

using namespace detail;
namespace {

namespace fs = std::filesystem;
using Index = nlohmann::ordered_json;

fs::path index_path(const std::string& folder) { return fs::path(folder) / kOffloadIndexName; }

Index read_index(const std::string& folder) {
  const InputFile file(index_path(folder));
  Index index = Index::parse(file.text(0, file.size()), nullptr, /*allow_exceptions=*/false);
  if (!index.is_object()) throw CheckpointError(file.name() + " is not an index of offloaded weights: expected a JSON object.");
  return index;
}

/// A weight that lies in a safetensors file.
StoredTensor find_in_file(const std::string& name, const Index& entry, const std::string& folder) {
  // Relative to the folder; Python writes absolute paths.
  const std::string file = (fs::path(folder) / entry["safetensors_file"].get<std::string>()).string();
  const std::string inner = entry.value("weight_name", name);
  for (auto& tensor : list_stored_tensors(file)) {
    if (tensor.name != inner) continue;
    tensor.name = name;
    return tensor;
  }
  throw CheckpointError(escaped(
      fmt::format("{} says that {} is {} in {}, which does not contain it.", index_path(folder).string(), name, inner, file)));
}

StoredTensor find_own_file(const std::string& name, const Index& entry, const std::string& folder) {
  const std::string dtype = entry.at("dtype").get<std::string>();
  const auto* facts = find_dtype(dtype);
  if (!facts)
    throw CheckpointError(escaped(fmt::format("{}: {} has the unknown dtype {}.", index_path(folder).string(), name, dtype)));
  StoredTensor tensor{.name = name,
                      .dtype = scalar_type_of(*facts, index_path(folder).string(), name),
                      .shape = entry.at("shape").get<std::vector<int64_t>>(),
                      .file = (fs::path(folder) / (name + ".dat")).string()};
  const uint64_t size = InputFile(tensor.file).size();
  if (size != tensor.bytes()) {
    throw CheckpointError(escaped(fmt::format("{} has {} bytes; its index says {}.", tensor.file, size, tensor.bytes())));
  }
  return tensor;
}

/// Whether a file that may be changed, and is nobody else's under another name, has those bytes already.
bool has_bytes(const std::string& path, const char* bytes, uint64_t size) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink != 1) return false;
  if (static_cast<uint64_t>(status.st_size) != size || access(path.c_str(), R_OK | W_OK) != 0) return false;
  const InputFile file(path);
  constexpr uint64_t kAtOnce = uint64_t{1} << 20;
  for (uint64_t at = 0; at < size; at += kAtOnce) {
    const uint64_t count = std::min(kAtOnce, size - at);
    if (file.text(at, count).compare(0, count, bytes + at, count) != 0) return false;
  }
  return true;
}

/// Files that were moved to their places. Its end puts back what they replaced, the same files as before, unless all are kept: a
/// model whose weights are there keeps reading them.
class PlacedFiles {
 public:
  PlacedFiles() = default;
  ~PlacedFiles() {
    for (auto each = placed_.rbegin(); each != placed_.rend(); ++each) {
      if (each->backup.empty()) {
        unlink(each->path.c_str());
      } else {
        rename(each->backup.c_str(), each->path.c_str());
      }
    }
  }
  PlacedFiles(const PlacedFiles&) = delete;
  PlacedFiles& operator=(const PlacedFiles&) = delete;

  void place(OutputFile& file) {
    const std::string path = file.path().string(), backup = file.staged().string() + ".old";
    struct stat status {};
    const bool replaces = lstat(path.c_str(), &status) == 0;
    // A second name, so that the first one is there at every instant; not every file system has those.
    if (replaces && link(path.c_str(), backup.c_str()) != 0 && rename(path.c_str(), backup.c_str()) != 0)
      throw CheckpointError(fmt::format("Cannot replace {}: {}.", path, std::strerror(errno)));
    try {
      file.place();
    } catch (...) {
      if (replaces) rename(backup.c_str(), path.c_str());
      if (replaces) unlink(backup.c_str());  // two names of one file are left as they are by a rename
      throw;
    }
    placed_.push_back({path, replaces ? backup : ""});
  }
  void keep() {
    for (const auto& each : placed_) {
      if (!each.backup.empty()) unlink(each.backup.c_str());
    }
    placed_.clear();
  }

 private:
  struct Placed {
    std::string path, backup;
  };
  std::vector<Placed> placed_;
};

}  // namespace

std::vector<StoredTensor> detail::list_offloaded(const std::string& folder) {
  std::vector<StoredTensor> tensors;
  const Index index = read_index(folder);
  for (const auto& [name, entry] : index.items()) {
    try {
      tensors.push_back(entry.contains("safetensors_file") ? find_in_file(name, entry, folder)
                                                           : find_own_file(name, entry, folder));
    } catch (const Index::exception&) {
      throw CheckpointError(escaped(fmt::format("{}: the entry of {} is invalid.", index_path(folder).string(), name)));
    }
  }
  return tensors;
}

FolderLock::FolderLock(const std::string& folder) {
  make_folder(folder);
  descriptor_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) throw CheckpointError(fmt::format("Cannot open {}: {}.", folder, std::strerror(errno)));
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  get_logger("accelerate").info("Waiting for another process that writes to {}.", escaped(folder));
  while (flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

FolderLock::~FolderLock() {
  flock(descriptor_, LOCK_UN);  // children of a fork may have it open too
  close(descriptor_);
}

void FolderLock::sync() const { fsync(descriptor_); }

OffloadWriter::OffloadWriter(std::string folder) : folder_(std::move(folder)), lock_(folder_) {
  std::error_code problem;
  if (fs::exists(index_path(folder_), problem)) read_index(folder_);  // an error now, and not when all is written
}

OutputFile& OffloadWriter::stage(const std::string& path) {
  if (fs::is_directory(fs::symlink_status(path))) throw CheckpointError("Cannot write " + path + ": a folder has that name.");
  return *staged_.emplace_back(std::make_unique<OutputFile>(path));
}

OffloadWriter::Written OffloadWriter::write(const std::string& name, const at::Tensor& tensor) {
  if (name.find('/') != std::string::npos)
    throw CheckpointError(escaped(fmt::format("The weight '{}' cannot be offloaded: its name is not a valid file name.", name)));
  const at::Tensor elements = plain(tensor.cpu());
  const StoredTensor stored{.name = name,
                            .dtype = tensor.scalar_type(),
                            .shape = tensor.sizes().vec(),
                            .file = (fs::path(folder_) / (name + ".dat")).string()};
  written_.push_back(stored);
  const auto* bytes = static_cast<const char*>(elements.const_data_ptr());
  // What is there already stays: a process that offloaded the same model before us reads it, and would take another for a change.
  if (has_bytes(stored.file, bytes, elements.nbytes())) return {.tensor = stored};
  OutputFile& file = stage(stored.file);
  file.write(bytes, elements.nbytes());
  file.settle();
  return {.tensor = stored, .staged = file.staged().string()};
}

void OffloadWriter::stage_index() {
  std::error_code problem;
  const bool exists = fs::exists(index_path(folder_), problem);
  if (exists && written_.empty()) return;
  Index index = exists ? read_index(folder_) : Index::object();
  for (const auto& tensor : written_) {
    index[tensor.name] = {{"dtype", facts_of(tensor.dtype)->name}, {"shape", tensor.shape}};
  }
  const std::string text = index.dump(2);
  OutputFile& file = stage(index_path(folder_).string());
  file.write(text.data(), text.size());
  file.settle();
}

void OffloadWriter::finish() {
  PlacedFiles placed;
  for (const auto& file : staged_) placed.place(*file);  // the index is the last
  placed.keep();
  lock_.sync();
  staged_.clear();
}

void offload_state_dict(const std::string& folder, const TensorDict& weights) {
  OffloadWriter writer(folder);
  for (const auto& [name, tensor] : weights) writer.write(name, tensor);
  writer.stage_index();
  writer.finish();
}

TensorDict load_offloaded_weights(const std::string& folder) {
  TensorDict weights;
  for (const auto& stored : list_offloaded(folder)) weights[stored.name] = read_stored_tensor(stored);
  return weights;
}

}  // namespace accelerate
