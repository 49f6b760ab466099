#pragma once

#include <accelerate/distributed/leaves.h>

#include <vector>

/// Nested data: tensors inside vectors, arrays, tuples, pairs, maps, optionals, plain structs and Values, to any depth.
/// Every operation on it copies the structure (handles, not elements) and changes the tensors in place, so that types,
/// keys and order are kept by construction and the work itself is done in a .cpp on a plain list of tensors.
namespace accelerate {

/// A tensor, a Value, or vectors, arrays, tuples, pairs, maps, optionals and plain structs that hold some, to any depth.
/// Text and numbers alone are objects: gather_object and broadcast_object_list take those.
template <class T>
concept Nested = detail::may_hold_tensors<std::remove_cvref_t<T>>();

namespace detail {
/// Data in which tensors can be found: of a struct with more fields nothing is known.
template <class T>
concept Searchable = Nested<T> && !(PlainStruct<T> && field_count<T>() > kMostFields);

template <class T>
constexpr void expect_nested() {
  expect_parts<T>();
  constexpr bool may_hold = Nested<T> || is_opaque<T>();
  static_assert(may_hold, "this type cannot hold a tensor: send text and numbers with gather_object or broadcast_object_list");
}

void send_to_device(const Leaves& leaves, at::Device device, bool non_blocking);
int64_t find_batch_size(const Leaves& leaves);
void slice_tensors(const Leaves& leaves, int64_t start, int64_t stop);
void convert_to_fp32(const Leaves& leaves);
void pad_input_tensors(const Leaves& leaves, int64_t batch_size, int64_t num_processes);
void concatenate(const std::vector<Leaves>& parts, int64_t dim);
}  // namespace detail

/// The same data with its tensors on `device`. Anything that is not a tensor is left as it is.
template <class T>
T send_to_device(T data, at::Device device, bool non_blocking = false) {
  detail::expect_nested<T>();
  detail::send_to_device(detail::leaves_of(data), device, non_blocking);
  return data;
}

/// The length of the first dimension of the first tensor. UsageError when there is no tensor or it has no dimension.
template <class T>
int64_t find_batch_size(T data) {
  detail::expect_nested<T>();
  return detail::find_batch_size(detail::leaves_of(data));
}

/// Rows `start` up to `stop` of every tensor.
template <class T>
T slice_tensors(T data, int64_t start, int64_t stop) {
  detail::expect_nested<T>();
  detail::slice_tensors(detail::leaves_of(data), start, stop);
  return data;
}

/// float16 and bfloat16 tensors as float32; every other tensor as it is.
template <class T>
T convert_to_fp32(T data) {
  detail::expect_nested<T>();
  detail::convert_to_fp32(detail::leaves_of(data));
  return data;
}

/// Zero rows added to tensors of `batch_size` rows until the batch divides among `num_processes`.
template <class T>
T pad_input_tensors(T data, int64_t batch_size, int64_t num_processes) {
  detail::expect_nested<T>();
  detail::pad_input_tensors(detail::leaves_of(data), batch_size, num_processes);
  return data;
}

/// Several pieces of nested data of one shape as one, tensors joined along `dim`. A single piece is returned as it is.
template <class T>
T concatenate(std::vector<T> pieces, int64_t dim = 0) {
  detail::expect_nested<T>();
  std::vector<detail::Leaves> parts;
  for (auto& piece : pieces) parts.push_back(detail::leaves_of(piece));
  detail::concatenate(parts, dim);
  return std::move(pieces.front());
}

/// Tensors as nested lists of numbers, bfloat16 converted to float32; the rest as it is.
Value listify(const Value& value);

}  // namespace accelerate
