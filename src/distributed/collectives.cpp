#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_real.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>

#include <algorithm>
#include <array>

#include "distributed/communicator.h"
#include "distributed/failure_policy.h"
#include "distributed/logbook.h"
#include "distributed/plain_tensor.h"
#include "distributed/tensor_text.h"
#include "distributed/wire.h"

namespace accelerate {

using namespace detail;
namespace {

/// Why these tensors cannot be sent, or nothing.
std::string problem_of(const detail::Leaves& leaves) {
  if (!leaves.other.empty()) return leaves.other + " (send objects with gather_object or broadcast_object_list)";
  for (const at::Tensor* tensor : leaves.tensors) {
    if (auto problem = unsendable(*tensor); !problem.empty()) return problem;
  }
  return "";
}

/// What this process is about to send, as text.
std::string describe_leaves(const detail::Leaves& leaves) {
  std::string text;
  for (const at::Tensor* tensor : leaves.tensors) text += (text.empty() ? "" : ", ") + describe(*tensor);
  return leaves.outline == "t" ? text : text + " nested as " + leaves.outline;
}

/// For the comparison of calls; nothing for a lone tensor.
std::optional<Nesting> nesting_of(const detail::Leaves& leaves) {
  return leaves.outline == "t" ? std::nullopt : std::optional(Nesting(leaves.outline, leaves.tensors.size()));
}

/// Which of the tensors of nested data a collective is about.
struct Leaf {
  const Nesting* nesting;
  size_t number;
};

/// Calls a collective for one tensor after the other.
template <class Collective>
void for_each_leaf(const detail::Leaves& leaves, Collective collective) {
  const auto nesting = nesting_of(leaves);
  for (size_t i = 0; i < leaves.tensors.size(); ++i) collective(*leaves.tensors[i], Leaf{nesting ? &*nesting : nullptr, i});
}

/// Before a collective. In debug mode the processes first tell each other what they are about to do, also when it is a
/// mistake, so that one that is made by some of them only is an error on all. `problem` is this process's own mistake.
template <class Describe>
void agree(const ProcessState& state, const char* call, Describe what, const std::string& problem, std::source_location where) {
  if (state.debug() && state.communicator()) state.communicator()->agree(call, problem.empty() ? what() : problem, where);
  if (!problem.empty()) throw UsageError(std::string(call) + " takes dense tensors and was given " + problem + ".");
}

void check_rank(const ProcessState& state, int from_process, const char* call) {
  if (from_process < 0 || from_process >= state.num_processes()) {
    throw UsageError(std::string(call) + ": from_process=" + std::to_string(from_process) + " is out of range: there are " +
                     std::to_string(state.num_processes()) + " processes, numbered from 0.");
  }
}

/// A dtype in which gloo and NCCL both add and compare, that holds every value of `dtype`; nothing when there is none.
std::optional<at::ScalarType> reducible_as(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return dtype;
    case at::kShort:
      return at::kInt;
    case at::kBool:
      return at::kByte;
    default:
      return std::nullopt;
  }
}

/// What the backends are given to move: the tensor itself or, where they may not know its dtype, the same memory as bytes.
/// Not always as bytes: two views more made a small broadcast 15 % slower.
at::Tensor as_sent(const at::Tensor& contiguous) {
  const auto dtype = contiguous.scalar_type();
  return reducible_as(dtype) == dtype ? contiguous : contiguous.view({-1}).view(at::kByte);
}

/// A copy of the elements that nobody else holds.
at::Tensor own(const at::Tensor& tensor) {
  at::Tensor elements = plain(tensor);
  return elements.is_alias_of(tensor) ? elements.clone() : elements;
}

/// A tensor without elements on one rank may have some on another, which must not wait for it, nor it return.
void compare_only(Communicator& peers, const char* call, const Given& given, std::source_location where) {
  if (!NoHostCollectives::refused()) peers.barrier(call, where, given);
}

at::Tensor gather_one(Communicator& peers, const at::Tensor& tensor, const Leaf& leaf, std::source_location where) {
  const at::Tensor input = plain(tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor);
  auto shape = input.sizes().vec();
  shape[0] *= peers.size();
  at::Tensor output = at::empty(shape, input.options());
  const Given given{.tensor = &input, .nesting = leaf.nesting, .leaf = leaf.number};
  if (input.numel() == 0) return compare_only(peers, "gather", given, where), output;
  at::Tensor sent = as_sent(input), received = as_sent(output);
  peers.all_gather(received, sent, "gather", where, &given);
  return output;
}

void broadcast_one(Communicator& peers, at::Tensor& tensor, int from, const Leaf& leaf, std::source_location where) {
  // The sender keeps what it has. A receiver needs room of its own: what it passed may be a view of something that must not
  // change.
  tensor = peers.rank() == from ? plain(tensor) : at::empty(tensor.sizes(), tensor.options().requires_grad(false));
  const Given given{.tensor = &tensor, .how = "from " + std::to_string(from), .nesting = leaf.nesting, .leaf = leaf.number};
  if (tensor.numel() == 0) return compare_only(peers, "broadcast", given, where);
  at::Tensor sent = as_sent(tensor);
  peers.broadcast(sent, from, "broadcast", where, &given);
}

/// Why these tensors cannot be reduced so, or nothing.
std::string problem_of(const ProcessState& state, const detail::Leaves& leaves, Reduction reduction) {
  if (auto problem = problem_of(leaves); !problem.empty()) return problem;
  for (const at::Tensor* tensor : leaves.tensors) {
    const auto dtype = tensor->scalar_type();
    const bool complex = at::isComplexType(dtype);
    if (reduction == Reduction::mean && !at::isFloatingType(dtype) && !complex) {
      return dtype_name(dtype) + " tensors, whose mean is not of that dtype (convert them to a floating-point dtype first)";
    }
    if (complex && reduction == Reduction::max) return dtype_name(dtype) + " tensors, which have no maximum";
    if (!complex && !reducible_as(dtype)) {
      const auto& peers = state.communicator();
      return dtype_name(dtype) + " tensors, which " +
             (peers ? "the backend " + peers->transport().backend_name(tensor->device().type()) : "backends") +
             " cannot add (convert them first)";
    }
  }
  return "";
}

at::Tensor reduce_one(const ProcessState& state, const at::Tensor& tensor, Reduction reduction, const Leaf& leaf,
                      std::source_location where) {
  Communicator& peers = *state.communicator();
  at::Tensor result = own(tensor);
  const Given given{
      .tensor = &tensor, .how = std::string("by ") + to_string(reduction), .nesting = leaf.nesting, .leaf = leaf.number};
  if (result.numel() == 0) return compare_only(peers, "reduce", given, where), result;
  const auto dtype = result.scalar_type();
  at::Tensor data = at::isComplexType(dtype) ? at::view_as_real(result) : result.to(*reducible_as(dtype));
  // Truth values are joined by "or": adding their bytes would leave bytes that are neither 0 nor 1.
  const bool maximum = reduction == Reduction::max || dtype == at::kBool;
  peers.all_reduce(data, maximum ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM, "reduce", where, &given);
  if (data.scalar_type() != dtype && !at::isComplexType(dtype)) result = data.to(dtype);
  if (reduction == Reduction::mean) result.div_(peers.size());
  return result;
}

/// Why the first dimension of these tensors cannot be divided among the processes, or nothing.
std::string indivisible(const ProcessState& state, const Leaves& leaves) {
  const std::string processes = " the " + std::to_string(state.num_processes()) + " processes";
  for (const at::Tensor* tensor : leaves.tensors) {
    if (tensor->dim() == 0) return describe(*tensor) + ", which has no first dimension to divide among" + processes;
    if (tensor->size(0) % state.num_processes() != 0)
      return describe(*tensor) + ", whose first dimension is not a multiple of" + processes + " (pad it first)";
  }
  return "";
}

at::Tensor reduce_scatter_one(const ProcessState& state, const at::Tensor& tensor, Reduction reduction, const Leaf& leaf,
                              std::source_location where) {
  Communicator& peers = *state.communicator();
  auto shape = tensor.sizes().vec();
  shape[0] /= peers.size();
  const auto dtype = tensor.scalar_type();
  const bool complex = at::isComplexType(dtype);
  const Given given{
      .tensor = &tensor, .how = std::string("by ") + to_string(reduction), .nesting = leaf.nesting, .leaf = leaf.number};
  at::Tensor result = at::empty(shape, tensor.options().requires_grad(false));
  if (tensor.numel() == 0) return compare_only(peers, "reduce_scatter", given, where), result;
  at::Tensor input = complex ? at::view_as_real(plain(tensor)) : plain(tensor).to(*reducible_as(dtype));
  at::Tensor output = complex ? at::view_as_real(result) : result.to(input.scalar_type());
  const bool maximum = reduction == Reduction::max || dtype == at::kBool;  // see reduce_one
  peers.reduce_scatter(output, input, maximum ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM, "reduce_scatter", where, &given);
  if (!complex) result = output.to(dtype);
  if (reduction == Reduction::mean) result.div_(peers.size());
  return result;
}

at::Tensor all_to_all_one(Communicator& peers, const at::Tensor& tensor, const Leaf& leaf, std::source_location where) {
  const at::Tensor input = plain(tensor);
  at::Tensor output = at::empty_like(input);
  const Given given{.tensor = &input, .nesting = leaf.nesting, .leaf = leaf.number};
  if (input.numel() == 0) return compare_only(peers, "all_to_all", given, where), output;
  at::Tensor sent = as_sent(input).view({peers.size(), -1}), received = as_sent(output).view({peers.size(), -1});
  peers.all_to_all(received, sent, "all_to_all", where, &given);
  return output;
}

/// The dimension to pad counted from the front, or nothing when the tensor has no such dimension.
std::optional<int64_t> dim_of(const at::Tensor& tensor, const PadOptions& options) {
  if (options.dim >= tensor.dim() || options.dim < -tensor.dim()) return std::nullopt;
  return options.dim < 0 ? options.dim + tensor.dim() : options.dim;
}

at::Tensor pad_one(const at::Tensor& tensor, int64_t length, const PadOptions& options) {
  const auto dim = dim_of(tensor, options);
  if (!dim || length == tensor.size(*dim)) return tensor;
  auto shape = tensor.sizes().vec();
  shape[static_cast<size_t>(*dim)] = length;
  at::Tensor padded = at::full(shape, options.pad_index, tensor.options().requires_grad(false));
  padded.narrow(*dim, options.pad_first ? length - tensor.size(*dim) : 0, tensor.size(*dim)).copy_(tensor);
  return padded;
}

/// A list, or the items of a tuple.
const Value::List& list_items(const Value& value, const char* call) {
  if (value.kind() == Value::Kind::list) return value.as<Value::List>();
  if (value.kind() == Value::Kind::tuple) return value.as<Value::Tuple>().items;
  throw UsageError(std::string(call) + " takes a list of objects and was given " + to_string(value.kind()) + " " +
                   to_string(value) + ". Put it into a list.");
}

StateDict split_dict(const ProcessState& state, const StateDict& inputs, const SplitOptions& options) {
  std::optional<int64_t> length;
  for (const auto& [name, item] : inputs) {
    const auto here = detail::length_of(item);
    if (here && length && *here != *length) detail::unequal_lengths(*length, *here);
    if (here) length = here;
  }
  StateDict mine;
  for (const auto& [name, item] : inputs) mine[name] = split_between_processes(state, item, options);
  return mine;
}

}  // namespace

const char* to_string(Reduction reduction) {
  static constexpr std::array kNames = {"sum", "mean", "max", "none"};
  return kNames[static_cast<size_t>(reduction)];
}

namespace detail {

void object_mismatch(const char* expected, const Value& found) {
  throw UsageError(std::string("Expected ") + expected + " and found " + to_string(found) + ".");
}

const Value::List& items_of(const Value& value, size_t expected) {
  const auto& items = value.as<Value::Tuple>().items;
  if (items.size() != expected) object_mismatch(("a tuple of " + std::to_string(expected)).c_str(), value);
  return items;
}

void gather(const ProcessState& state, const Leaves& leaves, std::source_location where) {
  if (!state.communicator()) return;
  agree(
      state, "gather", [&] { return describe_leaves(leaves); }, problem_of(leaves), where);
  for_each_leaf(leaves,
                [&](at::Tensor& tensor, const Leaf& leaf) { tensor = gather_one(*state.communicator(), tensor, leaf, where); });
}

void reduce(const ProcessState& state, const Leaves& leaves, Reduction reduction, std::source_location where) {
  if (!state.communicator()) {
    for (at::Tensor* tensor : leaves.tensors) {
      if (!tensor->defined()) throw UsageError("reduce takes dense tensors and was given an undefined tensor.");
      *tensor = tensor->clone();
    }
    return;
  }
  agree(
      state, "reduce", [&] { return describe_leaves(leaves) + " by " + to_string(reduction); },
      problem_of(state, leaves, reduction), where);
  for_each_leaf(leaves,
                [&](at::Tensor& tensor, const Leaf& leaf) { tensor = reduce_one(state, tensor, reduction, leaf, where); });
}

void broadcast(const ProcessState& state, const Leaves& leaves, int from_process, std::source_location where) {
  check_rank(state, from_process, "broadcast");
  if (!state.communicator()) return;
  agree(
      state, "broadcast", [&] { return describe_leaves(leaves) + " from " + std::to_string(from_process); }, problem_of(leaves),
      where);
  for_each_leaf(leaves, [&](at::Tensor& tensor, const Leaf& leaf) {
    broadcast_one(*state.communicator(), tensor, from_process, leaf, where);
  });
}

void reduce_scatter(const ProcessState& state, const Leaves& leaves, Reduction reduction, std::source_location where) {
  std::string problem = problem_of(state, leaves, reduction);
  if (problem.empty()) problem = indivisible(state, leaves);
  agree(
      state, "reduce_scatter", [&] { return describe_leaves(leaves) + " by " + to_string(reduction); }, problem, where);
  if (!state.communicator()) return reduce(state, leaves, reduction, where);
  for_each_leaf(
      leaves, [&](at::Tensor& tensor, const Leaf& leaf) { tensor = reduce_scatter_one(state, tensor, reduction, leaf, where); });
}

void all_to_all(const ProcessState& state, const Leaves& leaves, std::source_location where) {
  std::string problem = problem_of(leaves);
  if (problem.empty()) problem = indivisible(state, leaves);
  agree(
      state, "all_to_all", [&] { return describe_leaves(leaves); }, problem, where);
  if (!state.communicator()) return;
  for_each_leaf(
      leaves, [&](at::Tensor& tensor, const Leaf& leaf) { tensor = all_to_all_one(*state.communicator(), tensor, leaf, where); });
}

void pad_across_processes(const ProcessState& state, const Leaves& leaves, const PadOptions& options,
                          std::source_location where) {
  if (!state.communicator()) return;
  const auto kinds = [&] {
    std::string text = "dimension " + std::to_string(options.dim) + " nested as " + leaves.outline;
    for (const at::Tensor* tensor : leaves.tensors)
      text += ", " + dtype_name(tensor->scalar_type()) + " of " + std::to_string(tensor->dim()) + " dimensions";
    return text;
  };
  agree(state, "pad_across_processes", kinds, problem_of(leaves), where);
  if (leaves.tensors.empty()) return;
  // The lengths of all tensors in one collective, on the CPU, where they are needed. A tensor without that dimension takes part
  // too: whether there is a collective must not depend on what one process holds.
  at::Tensor lengths = at::empty({static_cast<int64_t>(leaves.tensors.size())}, at::TensorOptions().dtype(at::kLong));
  auto* length = lengths.data_ptr<int64_t>();
  for (size_t i = 0; i < leaves.tensors.size(); ++i) {
    const auto dim = dim_of(*leaves.tensors[i], options);
    length[i] = dim ? leaves.tensors[i]->size(*dim) : -1;
  }
  const auto nesting = nesting_of(leaves);
  const Given given{
      .tensor = &lengths, .how = "along dimension " + std::to_string(options.dim), .nesting = nesting ? &*nesting : nullptr};
  state.communicator()->all_reduce(lengths, c10d::ReduceOp::MAX, "pad_across_processes", where, &given);
  for (size_t i = 0; i < leaves.tensors.size(); ++i) *leaves.tensors[i] = pad_one(*leaves.tensors[i], length[i], options);
}

std::vector<Value::List> gather_lists(const ProcessState& state, const Value::List& mine, std::source_location where) {
  if (!state.communicator()) return {mine};
  if (state.debug()) state.communicator()->agree("gather_object", "a list", where);
  std::vector<Value::List> lists;
  for (const auto& bytes : state.communicator()->all_gather_bytes(encode(mine), "gather_object", where)) {
    lists.push_back(std::move(decode(bytes).as<Value::List>()));
  }
  return lists;
}

Value::List broadcast_list(const ProcessState& state, const Value::List& mine, int from_process, std::source_location where) {
  check_rank(state, from_process, "broadcast_object_list");
  if (!state.communicator()) return mine;
  if (state.debug()) state.communicator()->agree("broadcast_object_list", "a list from " + std::to_string(from_process), where);
  // Every process encodes, also what it then drops: a list that cannot be sent is an error on all of them.
  const auto bytes = state.communicator()->broadcast_bytes(encode(mine), from_process, "broadcast_object_list", where);
  return state.process_index() == from_process ? mine : decode(bytes).as<Value::List>();
}

Share share_of(const ProcessState& state, int64_t length, const SplitOptions& options) {
  const int64_t processes = state.num_processes(), rank = state.process_index();
  if (processes == 1) return {0, length, 0};
  const int64_t each = length / processes, more = length % processes;
  const int64_t start = rank * each + std::min(rank, more), stop = start + each + (rank < more ? 1 : 0);
  const int64_t longest = each + (more > 0 ? 1 : 0);
  if (options.apply_padding && length == 0) {
    throw UsageError("split_between_processes: apply_padding repeats the last element, but the input is empty.");
  }
  return {start, stop, options.apply_padding ? longest - (stop - start) : 0};
}

at::Tensor split_tensor(const ProcessState& state, const at::Tensor& tensor, const SplitOptions& options) {
  if (tensor.dim() == 0) return tensor;
  const auto share = share_of(state, tensor.size(0), options);
  const at::Tensor mine = tensor.slice(0, share.start, share.stop);
  if (share.padding == 0) return mine;
  auto shape = tensor.sizes().vec();
  shape[0] = share.padding;
  return at::cat({mine, tensor.slice(0, tensor.size(0) - 1).expand(shape)});
}

std::optional<int64_t> length_of(const at::Tensor& tensor) {
  return tensor.dim() > 0 ? std::optional(tensor.size(0)) : std::nullopt;
}

std::optional<int64_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::list:
      return static_cast<int64_t>(value.as<Value::List>().size());
    case Value::Kind::tuple:
      return static_cast<int64_t>(value.as<Value::Tuple>().items.size());
    case Value::Kind::tensor:
      return length_of(value.as<at::Tensor>());
    default:
      return std::nullopt;
  }
}

void unequal_lengths(int64_t first, int64_t other) {
  throw UsageError("split_between_processes: the entries of a dictionary must have the same length; one has " +
                   std::to_string(first) + " elements, another " + std::to_string(other) + ".");
}

}  // namespace detail

Value gather_object(const ProcessState& state, const Value& objects, std::source_location where) {
  if (!state.communicator()) return objects;
  Value::List all;
  for (auto& list : detail::gather_lists(state, list_items(objects, "gather_object"), where)) {
    for (auto& item : list) all.push_back(std::move(item));
  }
  return all;
}

void broadcast_object_list(const ProcessState& state, Value& objects, int from_process, std::source_location where) {
  objects = detail::broadcast_list(state, list_items(objects, "broadcast_object_list"), from_process, where);
}

Value split_between_processes(const ProcessState& state, const Value& inputs, const SplitOptions& options) {
  if (!state.use_distributed()) return inputs;
  switch (inputs.kind()) {
    case Value::Kind::list:
      return split_between_processes(state, inputs.as<Value::List>(), options);
    case Value::Kind::tuple:
      return Value::Tuple(split_between_processes(state, inputs.as<Value::Tuple>().items, options));
    case Value::Kind::tensor:
      return detail::split_tensor(state, inputs.as<at::Tensor>(), options);
    case Value::Kind::dict:
      return split_dict(state, inputs.as<StateDict>(), options);
    default:
      return inputs;
  }
}

}  // namespace accelerate
