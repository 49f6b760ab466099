#pragma once

#include <accelerate/distributed/nested.h>
#include <accelerate/distributed/objects.h>
#include <accelerate/distributed/process_state.h>

/// Collectives between processes. Every process calls the same ones in the same order. Accelerator has them as members.
namespace accelerate {

/// How `reduce` joins the tensors of all processes. `none` adds them, as in Python.
enum class Reduction { sum, mean, max, none };
const char* to_string(Reduction reduction);

/// How pad_across_processes fills up.
struct PadOptions {
  /// The dimension to make equal; negative ones count from the end.
  int64_t dim = 0;
  /// What to fill with.
  double pad_index = 0;
  /// Fill before the data instead of behind it.
  bool pad_first = false;
};

struct SplitOptions {
  /// Repeat the last element until every process has the same number.
  bool apply_padding = false;
};

namespace detail {
void gather(const ProcessState& state, const Leaves& leaves, std::source_location where);
void reduce(const ProcessState& state, const Leaves& leaves, Reduction reduction, std::source_location where);
void broadcast(const ProcessState& state, const Leaves& leaves, int from_process, std::source_location where);
void reduce_scatter(const ProcessState& state, const Leaves& leaves, Reduction reduction, std::source_location where);
void all_to_all(const ProcessState& state, const Leaves& leaves, std::source_location where);
void pad_across_processes(const ProcessState& state, const Leaves& leaves, const PadOptions& options, std::source_location where);
std::vector<Value::List> gather_lists(const ProcessState& state, const Value::List& mine, std::source_location where);
Value::List broadcast_list(const ProcessState& state, const Value::List& mine, int from_process, std::source_location where);

/// The part of `length` elements that belongs to one process, and how often the last one is repeated after it.
struct Share {
  int64_t start, stop, padding;
};
Share share_of(const ProcessState& state, int64_t length, const SplitOptions& options);
at::Tensor split_tensor(const ProcessState& state, const at::Tensor& tensor, const SplitOptions& options);
[[noreturn]] void unequal_lengths(int64_t first, int64_t other);
std::optional<int64_t> length_of(const Value& value);
std::optional<int64_t> length_of(const at::Tensor& tensor);
template <class T>
std::optional<int64_t> length_of(const T& value) {
  if constexpr (SequenceLike<T>) {
    return static_cast<int64_t>(value.size());
  } else {
    return std::nullopt;
  }
}
}  // namespace detail

/// The tensors of all processes, joined along the first dimension, on every process. A tensor without dimensions counts
/// as one element. Shapes must be the same everywhere (ACCELERATE_DEBUG_MODE checks that first); see pad_across_processes.
template <class T>
T gather(const ProcessState& state, T data, std::source_location where = std::source_location::current()) {
  detail::expect_nested<T>();
  detail::gather(state, detail::leaves_of(data), where);
  return data;
}

/// The tensors of all processes, joined element by element, on every process.
template <class T>
T reduce(const ProcessState& state, T data, Reduction reduction = Reduction::mean,
         std::source_location where = std::source_location::current()) {
  detail::expect_nested<T>();
  detail::reduce(state, detail::leaves_of(data), reduction, where);
  return data;
}

/// The tensors of process `from_process`, on every process; there the result is what was given. Shapes and dtypes must be
/// the same everywhere.
template <class T>
T broadcast(const ProcessState& state, T data, int from_process = 0,
            std::source_location where = std::source_location::current()) {
  detail::expect_nested<T>();
  detail::broadcast(state, detail::leaves_of(data), from_process, where);
  return data;
}

/// The tensors of all processes, joined element by element, of which each process gets an equal part of the first dimension:
/// process i has part i. Half the traffic of `reduce`. The first dimension must be a multiple of num_processes().
template <class T>
T reduce_scatter(const ProcessState& state, T data, Reduction reduction = Reduction::sum,
                 std::source_location where = std::source_location::current()) {
  detail::expect_nested<T>();
  detail::reduce_scatter(state, detail::leaves_of(data), reduction, where);
  return data;
}

/// Part i of the first dimension goes to process i; the result holds the part that each process sent here, in the order of
/// processes. The first dimension must be a multiple of num_processes().
template <class T>
T all_to_all(const ProcessState& state, T data, std::source_location where = std::source_location::current()) {
  detail::expect_nested<T>();
  detail::all_to_all(state, detail::leaves_of(data), where);
  return data;
}

/// Tensors filled up along one dimension to the length of the longest one among all processes, so that they can be
/// gathered. A tensor that has no such dimension is left as it is.
template <class T>
T pad_across_processes(const ProcessState& state, T data, const PadOptions& options = {},
                       std::source_location where = std::source_location::current()) {
  detail::expect_nested<T>();
  detail::pad_across_processes(state, detail::leaves_of(data), options, where);
  return data;
}

/// The objects of all processes in one list, in the order of processes.
template <Object T>
std::vector<T> gather_object(const ProcessState& state, const std::vector<T>& objects,
                             std::source_location where = std::source_location::current()) {
  std::vector<T> all;
  for (const auto& list : detail::gather_lists(state, detail::to_list(objects), where)) {
    for (const auto& value : list) all.push_back(from_value<T>(value));
  }
  return all;
}
/// The same for a Value, which must be a list.
Value gather_object(const ProcessState& state, const Value& objects,
                    std::source_location where = std::source_location::current());

/// Replaces the objects in `objects` by those of process `from_process`.
template <Object T>
void broadcast_object_list(const ProcessState& state, std::vector<T>& objects, int from_process = 0,
                           std::source_location where = std::source_location::current()) {
  const auto list = detail::broadcast_list(state, detail::to_list(objects), from_process, where);
  objects.clear();
  for (const auto& value : list) objects.push_back(from_value<T>(value));
}
void broadcast_object_list(const ProcessState& state, Value& objects, int from_process = 0,
                           std::source_location where = std::source_location::current());

/// This process's part of `inputs`: a vector, a tensor (by rows), a map of these with equal lengths, or a Value. The first
/// processes have one element more when it does not divide evenly. Anything else is given whole.
Value split_between_processes(const ProcessState& state, const Value& inputs, const SplitOptions& options = {});
template <class T>
T split_between_processes(const ProcessState& state, const T& inputs, const SplitOptions& options = {}) {
  if (!state.use_distributed()) return inputs;
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return detail::split_tensor(state, inputs, options);
  } else if constexpr (std::is_same_v<T, StateDict> || std::is_same_v<T, Value::Tuple>) {
    return split_between_processes(state, Value(inputs), options).template get<T>();
  } else if constexpr (detail::MapLike<T>) {
    T mine = inputs;
    std::optional<int64_t> length;
    for (auto& entry : mine) {
      const auto here = detail::length_of(entry.second);
      if (length && here && *length != *here) detail::unequal_lengths(*length, *here);
      if (here) length = here;
    }
    for (auto& entry : mine) entry.second = split_between_processes(state, entry.second, options);
    return mine;
  } else if constexpr (detail::SequenceLike<T> && !detail::is_std_array<T>::value) {
    const auto share = detail::share_of(state, static_cast<int64_t>(inputs.size()), options);
    T mine(inputs.begin() + share.start, inputs.begin() + share.stop);
    for (int64_t i = 0; i < share.padding; ++i) mine.push_back(inputs.back());
    return mine;
  } else {
    return inputs;
  }
}

}  // namespace accelerate
