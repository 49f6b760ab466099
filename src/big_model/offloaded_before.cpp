#include "big_model/offloaded_before.h"

#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/offload_index.h"
#include "core/escaped.h"

namespace accelerate::detail {
namespace {

bool fits(const StoredTensor& stored, const WeightGroup& group) {
  if (!stored.in_place) return false;
  if (!group.is_one_tensor()) return stored.name == name_on_disk(group) && stored.bytes() == group.storage_bytes();
  return stored.dtype == group.tensor().scalar_type() && at::IntArrayRef(stored.shape) == group.tensor().sizes() &&
         std::any_of(group.weights.begin(), group.weights.end(),
                     [&](const ModelWeight& weight) { return weight.name == stored.name; });
}

}  // namespace

std::vector<StoredTensor> offloaded_before(const std::string& folder) {
  std::error_code problem;
  if (folder.empty() || !std::filesystem::exists(std::filesystem::path(folder) / kOffloadIndexName, problem)) return {};
  try {
    return list_offloaded(folder);
  } catch (const CheckpointError& error) {
    get_logger("accelerate").warning("The offloaded weights in {} cannot be used: {}", escaped(folder), error.what());
    return {};
  }
}

const StoredTensor* find_offloaded(const std::vector<StoredTensor>& offloaded, const WeightGroup& group) {
  const auto found =
      std::find_if(offloaded.begin(), offloaded.end(), [&](const StoredTensor& stored) { return fits(stored, group); });
  return found == offloaded.end() ? nullptr : &*found;
}

std::string name_on_disk(const WeightGroup& group) { return group.is_one_tensor() ? group.name() : group.name() + ".storage"; }

bool is_own_file(const StoredTensor& stored) {
  return stored.offset == 0 && std::filesystem::path(stored.file).extension() == ".dat";
}

}  // namespace accelerate::detail
