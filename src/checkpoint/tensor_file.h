#pragma once

#include <accelerate/checkpoint/tensor_dict.h>

#include <functional>

#include "core/byte_sink.h"
#include "core/byte_source.h"
#include "formats/pickle_value.h"

/// Tensors by name in a file, in either of two formats.
namespace accelerate::detail {

enum class TensorFormat { safetensors, torch };

/// By the extension: .safetensors, or .pt, .pth, .bin. UsageError for any other.
TensorFormat format_by_name(const std::string& path);

/// Writes all of a file called `name`. CheckpointError names a tensor that the format cannot hold. A torch file has what a module
/// of Python gives, an OrderedDict, unless another kind of dictionary is asked for.
void write_tensors(ByteSink& sink, TensorFormat format, const std::string& name, const TensorDict& tensors,
                   PickleKind dict = PickleKind::kOrderedDict);

/// Gives the elements of a tensor when it is their turn to be written.
using FetchTensor = std::function<at::Tensor(const std::string& name)>;

/// A safetensors file of tensors that are brought one after the other. `described` has their dtypes and shapes, and needs no
/// elements. Each of them is fetched, in an order that follows from these alone, also without a sink.
void write_fetched(ByteSink* sink, const TensorDict& described, const FetchTensor& fetch);

/// Reads either format, which the first bytes tell. CheckpointError names the file and what is wrong with it.
TensorDict read_tensors(const ByteSource& source);

/// A file of torch.save rather than a safetensors file, by its first bytes.
bool looks_like_torch(const ByteSource& source);

/// Without the names whose tensor is the same memory in the same shape under an earlier name: weights that are tied. Those are
/// listed in `tied`, with the name that was kept.
TensorDict without_tied(const TensorDict& tensors, std::vector<std::pair<std::string, std::string>>* tied = nullptr);

}  // namespace accelerate::detail
