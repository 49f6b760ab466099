#pragma once

#include <accelerate/checkpoint/tensor_dict.h>

#include <c10/core/Device.h>

#include <string>

namespace accelerate {

/// Writes tensors to a safetensors file that Python reads (metadata {"format": "pt"}). The same tensors give the same
/// bytes. The file appears whole or not at all: it is written beside its place, made durable, and renamed.
/// A std::filesystem::path is a string here, without the cost of its header.
void save_file(const TensorDict& tensors, const std::string& path);

/// Reads a safetensors file, whoever wrote it, onto `device`. CheckpointError names the file and what is wrong with it.
TensorDict load_file(const std::string& path, c10::Device device = c10::kCPU);

}  // namespace accelerate
