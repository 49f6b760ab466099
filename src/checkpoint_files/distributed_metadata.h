#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint_files/tensor_box.h"
#include "formats/dtype_facts.h"

/// What the `.metadata` file of PyTorch's distributed checkpoints (torch.distributed.checkpoint, DCP) says. No torch.
namespace accelerate::detail {

/// The keys that lead to a value in nested dicts and lists: {"optimizer", "state", "fc.weight", "exp_avg"}.
using StatePath = std::vector<std::variant<std::string, int64_t>>;

/// The name of a value that was reached by `path`: its keys, joined by dots.
std::string flattened_name(const StatePath& path);

/// The place of a chunk or value: a torch.save file inside of a file beside `.metadata`.
struct StoredPlace {
  std::string file = {};
  uint64_t offset = 0, length = 0;

  bool operator==(const StoredPlace&) const = default;
};

/// A part of a tensor that one rank has saved.
struct DistributedChunk {
  TensorBox box = {};
  StoredPlace place = {};

  bool operator==(const DistributedChunk&) const = default;
};

struct DistributedTensor {
  std::string name;
  StatePath path;
  const DtypeFacts* dtype = nullptr;
  std::vector<int64_t> shape = {};
  std::vector<DistributedChunk> chunks = {};

  bool operator==(const DistributedTensor&) const = default;
  uint64_t elements() const { return element_count(shape); }
  uint64_t bytes() const { return elements() * static_cast<uint64_t>(dtype->bytes); }
};

/// Plain data: a learning rate, the names of a group's parameters.
struct DistributedValue {
  std::string name;
  StatePath path;
  StoredPlace place = {};

  bool operator==(const DistributedValue&) const = default;
};

/// The tensors and values of a checkpoint, or of what one rank contributes to it.
struct DistributedMetadata {
  std::deque<DistributedTensor> tensors = {};
  std::deque<DistributedValue> values = {};

  bool operator==(const DistributedMetadata&) const = default;
};

enum class MetadataScope : uint8_t {
  /// A checkpoint: the chunks of each tensor cover it exactly.
  kWhole,
  /// What one rank contributes.
  kPart,
};

/// Reads `.metadata`, which is not trusted: nothing in it is run. CheckpointError, naming `file` and the tensor, when it does not
/// describe a checkpoint, when chunks lie outside of their tensor, overlap, leave a hole or are compressed, when a chunk has less
/// room in its file than it needs, and when a file of another folder is named. Empty chunks are left out.
DistributedMetadata read_distributed_metadata(std::string_view bytes, const std::string& file,
                                              MetadataScope scope = MetadataScope::kWhole);

/// The pickle that torch.distributed.checkpoint reads. UsageError when it would refuse it: a name given twice.
std::string write_distributed_metadata(const DistributedMetadata& metadata);

/// The parts of all ranks joined, in their order. What several ranks have saved under one name and offset is kept once.
/// UsageError when ranks disagree on a dtype, shape or path, or when the chunks of a tensor do not cover it exactly.
DistributedMetadata joined_metadata(const std::vector<DistributedMetadata>& parts);

/// "has no chunk for some of its elements" or the like, for messages; empty when all is well.
std::string cover_problem(const DistributedTensor& tensor);

/// The name of what describes a distributed checkpoint, and of the file with a rank's chunks: "__2_0.distcp".
inline constexpr std::string_view kDistributedMetadataName = ".metadata";
std::string distributed_file_name(int rank);

}  // namespace accelerate::detail
