#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>

#include "checkpoint_files/distributed_metadata.h"
#include "formats/pickle_value.h"

namespace accelerate::detail {

/// A folder of torch.distributed.checkpoint, open for reading, however its tensors are cut into chunks: by any number of ranks,
/// along any dimensions, or in ranges of the flattened tensor. The folder is not trusted. All functions may be called from
/// several threads at once. A file is opened when it is read and closed again: a checkpoint of a thousand ranks has a thousand
/// files.
class DistributedCheckpoint {
 public:
  /// Reads `.metadata`. CheckpointError, naming file and tensor, when it is damaged or a file that it names is missing or too
  /// short.
  explicit DistributedCheckpoint(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const std::deque<DistributedTensor>& tensors() const { return metadata_.tensors; }
  const std::deque<DistributedValue>& values() const { return metadata_.values; }
  /// By name ("model.fc.weight"), or nullptr.
  const DistributedTensor* find_tensor(std::string_view name) const;
  const DistributedValue* find_value(std::string_view name) const;

  /// Fills `bytes` with the elements [begin, end) of a flattened tensor. Of the chunks only those bytes are read, each once, and
  /// the headers of their archives. A chunk that is read whole is compared with its checksum. CheckpointError names file and
  /// tensor. UsageError for a range outside of the tensor.
  void read(const DistributedTensor& tensor, uint64_t begin, uint64_t end, void* bytes) const;
  /// Plain data. CheckpointError also when there are tensors in it.
  PickleTree read(const DistributedValue& value) const;

 private:
  void read_chunk(const DistributedTensor& tensor, const DistributedChunk& chunk, uint64_t begin, uint64_t end,
                  char* bytes) const;
  void require_files() const;

  std::filesystem::path folder_;
  DistributedMetadata metadata_;
  std::unordered_map<std::string_view, size_t> tensor_places_, value_places_;
};

}  // namespace accelerate::detail
