#include "formats/safetensors_file.h"

#include <accelerate/core/error.h>

#include <algorithm>

namespace accelerate::detail {
namespace {

/// The dimensions of a slice, with complete trailing dimensions merged: each iteration of the innermost loop is one read.
struct SlicePlan {
  struct Loop {
    uint64_t count, step;  // step in bytes
  };
  std::vector<Loop> loops;
  uint64_t start = 0, run = 0;  // bytes
};

SlicePlan plan_slice(const SafetensorsEntry& entry, std::span<const std::pair<int64_t, int64_t>> ranges) {
  const int bits = safetensors_dtype_bits(entry.dtype);
  if (bits % 8 != 0) throw UsageError("A part of " + entry.name + " cannot be read: its elements are smaller than a byte.");
  if (ranges.size() > entry.shape.size())
    throw UsageError("A slice of " + entry.name + " names " + std::to_string(ranges.size()) + " dimensions of " +
                     std::to_string(entry.shape.size()) + ".");
  SlicePlan plan;
  plan.run = static_cast<uint64_t>(bits / 8);
  uint64_t stride = plan.run;
  bool contiguous = true;  // as long as all dimensions behind are whole
  for (size_t i = entry.shape.size(); i-- > 0;) {
    const int64_t size = entry.shape[i];
    const auto [begin, end] = i < ranges.size() ? ranges[i] : std::pair<int64_t, int64_t>(0, size);
    if (begin < 0 || end < begin || end > size)
      throw UsageError("A slice of " + entry.name + " asks for " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
                       std::to_string(size) + ".");
    const auto count = static_cast<uint64_t>(end - begin);
    plan.start += static_cast<uint64_t>(begin) * stride;
    if (contiguous) {
      plan.run *= count;
    } else {
      plan.loops.insert(plan.loops.begin(), {count, stride});
    }
    contiguous = contiguous && begin == 0 && end == size;
    stride *= static_cast<uint64_t>(size);
  }
  return plan;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const ByteSource& source) : source_(source) {
  const std::string start = source.text(0, std::min<uint64_t>(8, source.size()));
  const std::string json = source.text(8, safetensors_header_size(start, source.size(), source.name()));
  header_ = parse_safetensors_header(json, source.size(), source.name());
  for (size_t i = 0; i < header_.entries.size(); ++i) places_.emplace(header_.entries[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &header_.entries[place->second];
}

void SafetensorsFile::read(const SafetensorsEntry& entry, void* bytes) const {
  source_.read(bytes, entry.end - entry.begin, offset_of(entry));
}

void SafetensorsFile::read_slice(const SafetensorsEntry& entry, std::span<const std::pair<int64_t, int64_t>> ranges,
                                 void* bytes) const {
  const SlicePlan plan = plan_slice(entry, ranges);
  if (plan.run == 0 || std::any_of(plan.loops.begin(), plan.loops.end(), [](const auto& loop) { return loop.count == 0; }))
    return;
  auto* target = static_cast<char*>(bytes);
  std::vector<uint64_t> at(plan.loops.size(), 0);
  for (;;) {
    uint64_t offset = offset_of(entry) + plan.start;
    for (size_t i = 0; i < at.size(); ++i) offset += at[i] * plan.loops[i].step;
    source_.read(target, plan.run, offset);
    target += plan.run;
    size_t dimension = at.size();
    while (dimension > 0 && ++at[dimension - 1] == plan.loops[dimension - 1].count) at[--dimension] = 0;
    if (dimension == 0) return;
  }
}

}  // namespace accelerate::detail
