#include "sharding/shard_pieces.h"

#include <ATen/ops/empty.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <numeric>

#include "checkpoint/dtypes.h"
#include "distributed/plain_tensor.h"
#include "distributed/tensor_text.h"
#include "sharding/own_operators.h"

namespace accelerate::detail {
namespace {

/// The dimensions of a dense tensor, that of the largest steps in memory first.
std::vector<int64_t> dimensions_in_memory(const at::Tensor& tensor) {
  std::vector<int64_t> dimensions(static_cast<size_t>(tensor.dim()));
  std::iota(dimensions.begin(), dimensions.end(), 0);
  std::stable_sort(dimensions.begin(), dimensions.end(),
                   [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  return dimensions;
}

const DtypeFacts& saved_dtype(const at::Tensor& tensor, const StatePath& path) {
  const auto* facts = tensor.layout() == at::kStrided ? facts_of(tensor.scalar_type()) : nullptr;
  if (facts == nullptr)
    throw CheckpointError("The tensor " + flattened_name(path) + " cannot be saved: " + describe(tensor) +
                          " has no dense data, or an unsupported dtype.");
  return *facts;
}

void give_elements(const at::Tensor& tensor, const TakeBytes& take) {
  const at::Tensor host = plain(tensor).cpu();
  take(host.const_data_ptr(), host.nbytes());
}

/// Puts the values of each dimension, given in the order of `dimensions`, into that of the tensor.
std::vector<int64_t> in_index_order(const std::vector<int64_t>& values, const std::vector<int64_t>& dimensions) {
  std::vector<int64_t> ordered(values.size());
  for (size_t i = 0; i < values.size(); ++i) ordered[static_cast<size_t>(dimensions[i])] = values[i];
  return ordered;
}

}  // namespace

std::vector<SavedPiece> saved_pieces(const ShardedModel& model, const ShardedModel::Place& place, const StatePath& path,
                                     const at::Tensor& part) {
  const ShardedUnit& unit = *model.units()[place.unit];
  const at::Tensor& parameter = unit.weights[place.weight].parameter;
  const auto held = unit.layout.piece(place.weight, model.shard_group().process_index());
  const auto shape = parameter.sizes().vec();
  const auto& dtype = saved_dtype(part, path);
  const auto begin = static_cast<uint64_t>(held.begin), end = static_cast<uint64_t>(held.begin + held.length);
  if (parameter.numel() == 0) return pieces_of_range(path, dtype, shape, 0, 0, nullptr);
  // A range of its memory is a few boxes of the tensor with its dimensions in the order of memory.
  const auto dimensions = dimensions_in_memory(parameter);
  std::vector<int64_t> shape_in_memory, positions(dimensions.size());
  for (size_t i = 0; i < dimensions.size(); ++i) {
    shape_in_memory.push_back(shape[static_cast<size_t>(dimensions[i])]);
    positions[static_cast<size_t>(dimensions[i])] = static_cast<int64_t>(i);
  }
  std::vector<SavedPiece> pieces;
  int64_t done = 0;
  for (const TensorBox& box : boxes_of_range(shape_in_memory, begin, end)) {
    const auto count = static_cast<int64_t>(box.elements());
    const auto give = [elements = part.narrow(0, done, count), sizes = box.sizes, positions](const TakeBytes& take) {
      const OwnOperators own;
      give_elements(elements.view(sizes).permute(positions), take);
    };
    done += count;
    pieces.push_back({.path = path,
                      .dtype = &dtype,
                      .shape = shape,
                      .box = {in_index_order(box.offsets, dimensions), in_index_order(box.sizes, dimensions)},
                      .give = give});
  }
  return pieces;
}

SavedPiece saved_whole(const StatePath& path, const at::Tensor& tensor) {
  SavedPiece piece{.path = path, .dtype = &saved_dtype(tensor, path), .shape = tensor.sizes().vec()};
  piece.box = {std::vector<int64_t>(piece.shape.size(), 0), piece.shape};
  piece.give = [tensor](const TakeBytes& take) {
    const OwnOperators own;
    give_elements(tensor, take);
  };
  return piece;
}

at::Tensor RangedTensor::read_whole() const {
  at::Tensor whole = at::empty(shape, dtype);
  if (whole.numel() > 0) read(0, static_cast<uint64_t>(whole.numel()), whole.mutable_data_ptr());
  return whole;
}

at::Tensor read_part(const ShardedModel& model, const ShardedModel::Place& place, const RangedTensor& tensor) {
  const OwnOperators own;
  const ShardedUnit& unit = *model.units()[place.unit];
  if (!unit.weights[place.weight].parameter.is_contiguous()) return model.part_of(tensor.read_whole(), place).clone();
  const auto held = unit.layout.piece(place.weight, model.shard_group().process_index());
  at::Tensor part = at::empty({held.length}, tensor.dtype);
  if (held.length > 0)
    tensor.read(static_cast<uint64_t>(held.begin), static_cast<uint64_t>(held.begin + held.length), part.mutable_data_ptr());
  return part;
}

}  // namespace accelerate::detail
