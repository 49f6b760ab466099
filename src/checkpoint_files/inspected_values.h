#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint_files/inspection.h"
#include "core/byte_source.h"
#include "formats/dtype_facts.h"
#include "formats/torch_file.h"

namespace accelerate::detail {

/// How many elements of a tensor are shown.
inline constexpr uint64_t kMostShownElements = 4;

/// Adds the texts of a tensor's first elements, read from the file. Its first byte stands at `offset`; without `strides` the
/// elements follow each other.
void show_first_elements(const ByteSource& source, const DtypeFacts& dtype, const std::vector<int64_t>& shape,
                         const std::vector<int64_t>& strides, uint64_t offset, InspectedItem& item);

/// One item for each tensor and each plain value of a torch file, in order. A list of numbers is one item.
std::vector<InspectedItem> pickled_items(const TorchFile& file);

/// The same of plain data, which has no tensors in it.
std::vector<InspectedItem> plain_items(const std::string& name, const PickleNode& value);

}  // namespace accelerate::detail
