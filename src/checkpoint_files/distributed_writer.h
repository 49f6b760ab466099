#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint_files/distributed_metadata.h"
#include "core/byte_sink.h"
#include "formats/pickle_value.h"

/// Writes distributed checkpoints that torch.distributed.checkpoint loads: a file for each rank, then `.metadata`.
///
/// The places of chunks are known before a byte is written, from names, dtypes and sizes alone. So the ranks gather
/// `write_distributed_metadata(plan_distributed_file(...))` first, one of them writes `.metadata` from
/// `joined_metadata` of all, and the files are written in any order, also later and in the background.
namespace accelerate::detail {

/// Takes the next bytes of a chunk.
using TakeBytes = std::function<void(const void* bytes, uint64_t size)>;

/// What a rank saves under one name: a box of a tensor, or plain data.
struct SavedPiece {
  /// The keys that lead to it; joined by dots they are its name.
  StatePath path;
  /// Of the tensor; nullptr of plain data.
  const DtypeFacts* dtype = nullptr;
  /// Of the whole tensor.
  std::vector<int64_t> shape = {};
  /// What this rank holds of it. A box without elements says only that the tensor exists.
  TensorBox box = {};
  /// The elements of the box, one after the other.
  const void* bytes = nullptr;
  /// Gives them in order, where they do not lie at `bytes`.
  std::function<void(const TakeBytes&)> give = {};
  /// Plain data, without tensors. It outlives the piece.
  const PickleNode* value = nullptr;
};

/// The elements [begin, end) of a flattened tensor, which lie at `bytes`, as pieces: see boxes_of_range. None for an empty
/// range, but one without elements for a tensor that has none.
std::vector<SavedPiece> pieces_of_range(const StatePath& path, const DtypeFacts& dtype, const std::vector<int64_t>& shape,
                                        uint64_t begin, uint64_t end, const void* bytes);

/// What `write_distributed_file` will have written where. No element is read. UsageError for a box outside of its tensor, for
/// plain data that has tensors in it, and for a piece without a path or with both or neither of dtype and value.
DistributedMetadata plan_distributed_file(const std::vector<SavedPiece>& pieces, const std::string& file);

/// Writes the pieces in their order, each as torch.save would. UsageError as above, and when `give` gives more or fewer bytes
/// than the box has.
void write_distributed_file(const std::vector<SavedPiece>& pieces, ByteSink& sink);

}  // namespace accelerate::detail
