#include <accelerate/core/error.h>

#include <algorithm>

#include "checkpoint_files/distributed_checkpoint.h"
#include "checkpoint_files/weight_sources.h"
#include "core/escaped.h"

namespace accelerate::detail {
namespace {

[[noreturn]] void refuse_merge(const DistributedCheckpoint& checkpoint, const std::string& name, const std::string& what) {
  throw CheckpointError((checkpoint.folder() / kDistributedMetadataName).string() + ": " + escaped(name, kLongestQuote) + what);
}

/// Do all tensors lie in one dict, as those of {"model": {...}} do?
bool lie_in_one_dict(const DistributedCheckpoint& checkpoint) {
  const auto& tensors = checkpoint.tensors();
  return std::all_of(tensors.begin(), tensors.end(), [&](const DistributedTensor& tensor) {
    return tensor.path.size() > 1 && std::holds_alternative<std::string>(tensor.path[0]) &&
           tensor.path[0] == tensors.front().path[0];
  });
}

/// The name as it was before the nested dicts were flattened.
std::string weight_name(const DistributedCheckpoint& checkpoint, const DistributedTensor& tensor, bool nested) {
  if (tensor.path.size() != (nested ? 2u : 1u) || !std::holds_alternative<std::string>(tensor.path.back()))
    refuse_merge(checkpoint, tensor.name,
                 " is nested deeper than the weights of a model are. Is it an optimizer's state? Only weights can be merged.");
  return std::get<std::string>(tensor.path.back());
}

}  // namespace

WeightSources open_distributed_weights(const std::filesystem::path& folder) {
  const auto checkpoint = std::make_shared<const DistributedCheckpoint>(folder);
  if (!checkpoint->values().empty())
    refuse_merge(*checkpoint, checkpoint->values().front().name, " is not a tensor. Only weights can be merged.");
  const bool nested = lie_in_one_dict(*checkpoint);
  WeightSources weights;
  weights.owners.push_back(checkpoint);
  for (const auto& tensor : checkpoint->tensors()) {
    WeightSource made{weight_name(*checkpoint, tensor, nested), std::string(tensor.dtype->safetensors), tensor.dtype,
                      tensor.shape};
    made.bytes = tensor.bytes();
    made.read_part = [from = checkpoint.get(), &tensor](void* bytes, uint64_t size, uint64_t offset) {
      const auto element = static_cast<uint64_t>(tensor.dtype->bytes);
      from->read(tensor, offset / element, (offset + size) / element, bytes);
    };
    made.read = [read_part = made.read_part, bytes = made.bytes](const auto& take) {
      std::string whole(bytes, '\0');
      read_part(whole.data(), whole.size(), 0);
      take(whole.data(), whole.size());
    };
    weights.tensors.push_back(std::move(made));
  }
  return weights;
}

}  // namespace accelerate::detail
