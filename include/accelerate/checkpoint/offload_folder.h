#pragma once

#include <accelerate/checkpoint/tensor_dict.h>

#include <string>

namespace accelerate {

/// Writes weights into a folder from which they can be read one by one, as Python's offload_state_dict does: a file of raw
/// elements for each, and index.json. What the folder has already stays, under other names. CheckpointError names the file that
/// cannot be written.
void offload_state_dict(const std::string& folder, const TensorDict& weights);

/// Reads all of such a folder.
TensorDict load_offloaded_weights(const std::string& folder);

}  // namespace accelerate
