#pragma once

#include <accelerate/checkpoint/weights.h>

#include <string>

#include "checkpoint/tensor_file.h"

namespace accelerate::detail {

/// What save_weights does, as safetensors files, for weights that are too many to be held at once: see write_fetched. All ranks
/// of a group may call it, to fetch together, of which one `writes`. Each fetches every tensor in the same order, also when
/// writing fails, which is told at the end.
void save_fetched_weights(const TensorDict& described, const FetchTensor& fetch, const std::string& folder,
                          const std::string& max_shard_size, bool writes);

}  // namespace accelerate::detail
