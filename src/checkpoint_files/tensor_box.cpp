#include "checkpoint_files/tensor_box.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <map>

namespace accelerate::detail {
namespace {

constexpr size_t kMostCutDimensions = 8;

uint64_t unsigned_of(int64_t number) { return static_cast<uint64_t>(number); }

bool lies_inside(std::span<const int64_t> shape, const TensorBox& box) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (box.offsets[i] < 0 || box.sizes[i] < 0 || box.offsets[i] > shape[i] || box.sizes[i] > shape[i] - box.offsets[i])
      return false;
  }
  return true;
}

/// Boxes that are ranges of the flattened tensor: each begins where the last one ends.
BoxCover cover_of_ranges(std::span<const int64_t> shape, std::span<const TensorBox* const> boxes) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const TensorBox* box : boxes) ranges.emplace_back(place_in_tensor(shape, *box, 0), box->elements());
  std::sort(ranges.begin(), ranges.end());
  uint64_t end = 0;
  for (const auto& [begin, size] : ranges) {
    if (begin != end) return begin < end ? BoxCover::kOverlap : BoxCover::kHole;
    end = begin + size;
  }
  return end == element_count(shape) ? BoxCover::kExact : BoxCover::kHole;
}

using Corners = std::map<std::vector<int64_t>, int64_t>;

/// Adds the corners of a box along some dimensions, with alternating signs.
void add_corners(const TensorBox& box, const std::vector<size_t>& dimensions, int64_t sign, Corners& corners) {
  for (uint64_t ends = 0; ends < uint64_t{1} << dimensions.size(); ++ends) {
    std::vector<int64_t> corner;
    for (size_t i = 0; i < dimensions.size(); ++i)
      corner.push_back(box.offsets[dimensions[i]] + ((ends >> i & 1) != 0 ? box.sizes[dimensions[i]] : 0));
    const auto place = corners.try_emplace(std::move(corner), 0).first;
    place->second += __builtin_popcountll(ends) % 2 == 0 ? sign : -sign;
    if (place->second == 0) corners.erase(place);
  }
}

/// How often each element is covered is known from its mixed differences alone, and those of a box are its corners, with
/// alternating signs: boxes cover the tensor exactly when the sum of their corners is the tensor's.
BoxCover cover_of_boxes(std::span<const int64_t> shape, std::span<const TensorBox* const> boxes) {
  std::vector<size_t> cut;
  uint64_t elements = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (std::any_of(boxes.begin(), boxes.end(), [&](const TensorBox* box) { return box->sizes[i] != shape[i]; }))
      cut.push_back(i);
  }
  if (cut.size() > kMostCutDimensions) return BoxCover::kUnknown;
  for (const TensorBox* box : boxes) {
    if (__builtin_add_overflow(elements, box->elements(), &elements)) return BoxCover::kOverlap;
  }
  if (elements != element_count(shape)) return elements < element_count(shape) ? BoxCover::kHole : BoxCover::kOverlap;
  Corners corners;
  for (const TensorBox* box : boxes) add_corners(*box, cut, 1, corners);
  add_corners({std::vector<int64_t>(shape.size(), 0), {shape.begin(), shape.end()}}, cut, -1, corners);
  return corners.empty() ? BoxCover::kExact : BoxCover::kOverlap;
}

}  // namespace

uint64_t element_count(std::span<const int64_t> shape) {
  uint64_t count = 1;
  for (const int64_t size : shape) count *= unsigned_of(size);
  return count;
}

uint64_t TensorBox::elements() const { return element_count(sizes); }

std::vector<TensorBox> boxes_of_range(std::span<const int64_t> shape, uint64_t begin, uint64_t end) {
  if (begin > end || end > element_count(shape)) {
    throw UsageError("The elements " + std::to_string(begin) + " to " + std::to_string(end) + " are not in a tensor of " +
                     std::to_string(element_count(shape)) + ".");
  }
  std::vector<uint64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * unsigned_of(shape[i]);
  std::vector<TensorBox> boxes;
  while (begin < end) {
    TensorBox& box = boxes.emplace_back();
    // The outermost dimension along which whole slices begin here.
    size_t along = 0;
    while (along < shape.size() && (begin % strides[along] != 0 || end - begin < strides[along])) ++along;
    uint64_t rest = begin;
    for (size_t i = 0; i < shape.size(); ++i) {
      box.offsets.push_back(static_cast<int64_t>(rest / strides[i]));
      rest %= strides[i];
      box.sizes.push_back(i < along ? 1 : shape[i]);
    }
    if (along < shape.size()) {
      const uint64_t slices = std::min((end - begin) / strides[along], unsigned_of(shape[along] - box.offsets[along]));
      box.sizes[along] = static_cast<int64_t>(slices);
    }
    begin += box.elements();
  }
  return boxes;
}

uint64_t elements_before(std::span<const int64_t> shape, const TensorBox& box, uint64_t index) {
  if (shape.empty()) return index;
  uint64_t stride = element_count(shape), inner = box.elements(), before = 0;
  if (inner == 0) return 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    stride /= unsigned_of(shape[i]);
    inner /= unsigned_of(box.sizes[i]);
    const auto slice = static_cast<int64_t>(index / stride);
    index %= stride;
    before += unsigned_of(std::clamp<int64_t>(slice - box.offsets[i], 0, box.sizes[i])) * inner;
    if (slice < box.offsets[i] || slice >= box.offsets[i] + box.sizes[i]) break;
  }
  return before;
}

uint64_t place_in_tensor(std::span<const int64_t> shape, const TensorBox& box, uint64_t index) {
  uint64_t place = 0, stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    place += (unsigned_of(box.offsets[i]) + index % unsigned_of(box.sizes[i])) * stride;
    index /= unsigned_of(box.sizes[i]);
    stride *= unsigned_of(shape[i]);
  }
  return place;
}

uint64_t run_length(std::span<const int64_t> shape, const TensorBox& box) {
  uint64_t run = 1;
  bool whole = true;
  for (size_t i = shape.size(); i-- > 0;) {
    if (!whole && box.sizes[i] != 1) break;
    run *= unsigned_of(box.sizes[i]);
    whole = whole && box.sizes[i] == shape[i];
  }
  return run;
}

BoxCover cover_of(std::span<const int64_t> shape, std::span<const TensorBox> boxes) {
  std::vector<const TensorBox*> filled;
  for (const TensorBox& box : boxes) {
    if (!lies_inside(shape, box)) return BoxCover::kOutside;
    if (box.elements() > 0) filled.push_back(&box);
  }
  const bool ranges =
      std::all_of(filled.begin(), filled.end(), [&](const auto* box) { return run_length(shape, *box) == box->elements(); });
  return ranges ? cover_of_ranges(shape, filled) : cover_of_boxes(shape, filled);
}

}  // namespace accelerate::detail
