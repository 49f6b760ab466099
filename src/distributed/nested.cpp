#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/nested.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "distributed/tensor_text.h"

namespace accelerate {

using namespace detail;
namespace detail {

void collect(Value& value, Leaves& leaves) {
  switch (value.kind()) {
    case Value::Kind::tensor:
      collect(value.as<at::Tensor>(), leaves);
      break;
    case Value::Kind::list:
      collect(value.as<Value::List>(), leaves);
      break;
    case Value::Kind::tuple:
      leaves.outline += '(';
      for (auto& item : value.as<Value::Tuple>().items) collect(item, leaves);
      leaves.outline += ')';
      break;
    case Value::Kind::dict:
      collect(value.as<StateDict>(), leaves);
      break;
    default:
      leaves.outline += 'o';
      if (leaves.other.empty()) leaves.other = std::string(to_string(value.kind())) + " " + to_string(value);
  }
}

void collect(StateDict& dict, Leaves& leaves) {
  leaves.outline += '{';
  for (auto& [name, item] : dict) {
    leaves.outline += name + ":";
    collect(item, leaves);
    leaves.outline += ',';
  }
  leaves.outline += '}';
}

void collect_other(Leaves& leaves, const char* type) {
  leaves.outline += 'o';
  if (leaves.other.empty()) leaves.other = "a value of type " + c10::demangle(type);
}

void send_to_device(const Leaves& leaves, at::Device device, bool non_blocking) {
  // "cpu:0", which Python gives CPU processes, is where every CPU tensor is; taken literally it would copy them all.
  if (device.is_cpu()) device = at::kCPU;
  for (at::Tensor* tensor : leaves.tensors) {
    if (tensor->defined()) *tensor = tensor->to(device, non_blocking);
  }
}

int64_t find_batch_size(const Leaves& leaves) {
  if (leaves.tensors.empty()) {
    throw UsageError("find_batch_size needs a tensor and was given " +
                     (leaves.other.empty() ? "an empty container" : leaves.other) + ".");
  }
  const at::Tensor& first = *leaves.tensors.front();
  if (!first.defined() || first.dim() == 0) {
    throw UsageError(
        "find_batch_size reads the first dimension of the first tensor, which has no dimensions: " + describe(first) + ".");
  }
  return first.size(0);
}

void slice_tensors(const Leaves& leaves, int64_t start, int64_t stop) {
  for (at::Tensor* tensor : leaves.tensors) {
    if (!tensor->defined() || tensor->dim() == 0)
      throw UsageError("slice_tensors slices the first dimension, and " + describe(*tensor) + " has none.");
    *tensor = tensor->slice(0, start, stop);
  }
}

void convert_to_fp32(const Leaves& leaves) {
  for (at::Tensor* tensor : leaves.tensors) {
    if (tensor->scalar_type() == at::kHalf || tensor->scalar_type() == at::kBFloat16) *tensor = tensor->to(at::kFloat);
  }
}

void pad_input_tensors(const Leaves& leaves, int64_t batch_size, int64_t num_processes) {
  if (num_processes < 1)
    throw UsageError("pad_input_tensors needs at least one process and was given " + std::to_string(num_processes) + ".");
  const int64_t missing = (num_processes - batch_size % num_processes) % num_processes;
  for (at::Tensor* tensor : leaves.tensors) {
    if (missing == 0 || tensor->dim() == 0) continue;
    auto shape = tensor->sizes().vec();
    shape[0] = missing;
    *tensor = at::cat({*tensor, at::zeros(shape, tensor->options())});
  }
}

void concatenate(const std::vector<Leaves>& parts, int64_t dim) {
  if (parts.empty()) throw UsageError("concatenate needs at least one tensor.");
  if (parts.size() == 1) return;
  for (const auto& part : parts) {
    if (!part.other.empty()) throw UsageError("concatenate joins tensors and was given " + part.other + ".");
    if (part.outline != parts.front().outline) {
      throw UsageError("concatenate needs parts of the same structure (t is a tensor): the first is " + parts.front().outline +
                       ", another is " + part.outline + ".");
    }
  }
  for (size_t i = 0; i < parts.front().tensors.size(); ++i) {
    std::vector<at::Tensor> pieces;
    for (const auto& part : parts) pieces.push_back(*part.tensors[i]);
    try {
      *parts.front().tensors[i] = at::cat(pieces, dim);
    } catch (const c10::Error& error) {
      throw UsageError("concatenate along dimension " + std::to_string(dim) + ": " + error.what_without_backtrace());
    }
  }
}

namespace {

Value listify_tensor(const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    if (tensor.scalar_type() == at::kBool) return tensor.item<bool>();
    return at::isIntegralType(tensor.scalar_type(), false) ? Value(tensor.item<int64_t>()) : Value(tensor.item<double>());
  }
  Value::List items;
  for (int64_t i = 0; i < tensor.size(0); ++i) items.push_back(listify_tensor(tensor.select(0, i)));
  return items;
}

}  // namespace
}  // namespace detail

Value listify(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::tensor:
      return detail::listify_tensor(value.as<at::Tensor>().detach().cpu());
    case Value::Kind::list: {
      Value::List items;
      for (const auto& item : value.as<Value::List>()) items.push_back(listify(item));
      return items;
    }
    case Value::Kind::tuple: {
      Value::Tuple items;
      for (const auto& item : value.as<Value::Tuple>().items) items.items.push_back(listify(item));
      return items;
    }
    case Value::Kind::dict: {
      StateDict items;
      for (const auto& [name, item] : value.as<StateDict>()) items[name] = listify(item);
      return items;
    }
    default:
      return value;
  }
}

}  // namespace accelerate
