#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <vector>

#include "checkpoint_files/distributed_writer.h"
#include "sharding/sharded_model.h"

/// Parts of tensors that are sharded as a parameter is, on their way to distributed checkpoints and back.
namespace accelerate::detail {

/// What a rank saves of such a tensor, of which it has `part`: the elements of its piece, one after the other. They are read when
/// they are written. A part without elements has no pieces, unless the tensor has none at all.
std::vector<SavedPiece> saved_pieces(const ShardedModel& model, const ShardedModel::Place& place, const StatePath& path,
                                     const at::Tensor& part);

/// A tensor that a rank saves as a whole. CheckpointError when files cannot hold it.
SavedPiece saved_whole(const StatePath& path, const at::Tensor& tensor);

/// A tensor of a file, which is read by ranges of its flattened elements.
struct RangedTensor {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape = {};
  std::function<void(uint64_t begin, uint64_t end, void* bytes)> read = {};

  at::Tensor read_whole() const;
};

/// This rank's part of a tensor that has the shape of the parameter at `place`. Of one whose memory is not in the order of its
/// indices the whole is read.
at::Tensor read_part(const ShardedModel& model, const ShardedModel::Place& place, const RangedTensor& tensor);

}  // namespace accelerate::detail
