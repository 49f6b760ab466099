#pragma once

#include <accelerate/checkpoint/tensor_dict.h>

#include <c10/core/Device.h>

#include <string>

namespace accelerate {

/// Writes tensors to a file that Python reads: a safetensors file (metadata {"format": "pt"}), or for the extensions .pt, .pth
/// and .bin one that torch.load(weights_only=True) accepts. The same tensors give the same bytes. The file appears whole or not
/// at all: it is written beside its place, made durable, and renamed.
/// A std::filesystem::path is a string here, without the cost of its header.
void save_file(const TensorDict& tensors, const std::string& path);

/// Reads a safetensors file or a dictionary of tensors that torch.save wrote, onto `device`. CheckpointError names the file and
/// what is wrong with it.
TensorDict load_file(const std::string& path, c10::Device device = c10::kCPU);

}  // namespace accelerate
