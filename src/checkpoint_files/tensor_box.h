#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace accelerate::detail {

/// A box of a tensor: where it begins and how many elements it has in each dimension.
struct TensorBox {
  std::vector<int64_t> offsets = {}, sizes = {};

  bool operator==(const TensorBox&) const = default;
  /// How many elements are in it; of no dimensions, one.
  uint64_t elements() const;
};

/// How many elements a tensor of that shape has. The caller knows that the number fits.
uint64_t element_count(std::span<const int64_t> shape);

/// The elements [begin, end) of a flattened tensor as the fewest boxes whose elements follow each other in memory: at most
/// 2 * dimensions - 1, in the order of the elements. None for an empty range. UsageError for a range outside of the tensor.
std::vector<TensorBox> boxes_of_range(std::span<const int64_t> shape, uint64_t begin, uint64_t end);

/// How many elements of `box` come before element `index` of the flattened tensor, which may be one past its last. As a box keeps
/// the order of the tensor's elements, those in [begin, end) of the tensor are one range of the box, too.
uint64_t elements_before(std::span<const int64_t> shape, const TensorBox& box, uint64_t index);

/// The place in the flattened tensor of element `index` of `box`.
uint64_t place_in_tensor(std::span<const int64_t> shape, const TensorBox& box, uint64_t index);

/// How many elements of `box`, counted from a multiple of it, follow each other in the tensor as well.
uint64_t run_length(std::span<const int64_t> shape, const TensorBox& box);

/// How boxes lie in a tensor.
enum class BoxCover : uint8_t {
  /// Each element of the tensor is in one of them.
  kExact,
  /// Some are missing.
  kHole,
  /// Some are in several.
  kOverlap,
  /// A box has another number of dimensions, or is not inside.
  kOutside,
  /// Boxes that are no ranges of the flattened tensor, cut along more than 8 dimensions: nobody shards so.
  kUnknown,
};

/// In time and memory that follow the number of boxes, whatever they are.
BoxCover cover_of(std::span<const int64_t> shape, std::span<const TensorBox> boxes);

}  // namespace accelerate::detail
