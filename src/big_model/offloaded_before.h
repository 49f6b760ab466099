#pragma once

#include <string>
#include <vector>

#include "big_model/weight_groups.h"
#include "checkpoint/stored_tensors.h"

/// Weights that a run before this one has written to a folder for offloaded ones.
namespace accelerate::detail {

/// What its index has; nothing when there is no index, or, with a warning, when it is damaged or a file is missing.
std::vector<StoredTensor> offloaded_before(const std::string& folder);

/// The one that a group of weights can be read from as it is needed, or null.
const StoredTensor* find_offloaded(const std::vector<StoredTensor>& offloaded, const WeightGroup& group);

/// Under which name a group is written.
std::string name_on_disk(const WeightGroup& group);

/// Whether it is a file of its own, as in folders of offloaded weights; otherwise it is a part of one.
bool is_own_file(const StoredTensor& stored);

}  // namespace accelerate::detail
