#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <accelerate/accelerator/accelerator.h>

#include "sections.h"

namespace accelerate::self_test {
namespace {

// Rank r's part: 1 + r * P to (r + 1) * P.
at::Tensor part_of(const Accelerator& accelerator, int64_t rank) {
  const int64_t world = accelerator.num_processes();
  return at::arange(1 + rank * world, 1 + (rank + 1) * world, at::TensorOptions(at::kLong).device(accelerator.device()));
}

at::Tensor all_parts(const Accelerator& accelerator) {
  const int64_t world = accelerator.num_processes();
  return at::arange(1, 1 + world * world, at::TensorOptions(at::kLong).device(accelerator.device()));
}

}  // namespace

void check_gather(Accelerator& accelerator, Findings& findings) {
  const auto mine = part_of(accelerator, accelerator.process_index()), all = all_parts(accelerator);
  const int64_t world = accelerator.num_processes();
  findings.equal(accelerator.gather(mine), all, "gather concatenates the tensors in rank order");
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kInt, at::kByte}) {
    findings.equal(accelerator.gather(mine.to(dtype)), all.to(dtype),
                   std::string("gather works on tensors of dtype ") + c10::toString(dtype));
  }
  const auto turned = at::cat({mine.unsqueeze(0), mine.unsqueeze(0)}).t();
  findings.equal(accelerator.gather(turned), at::cat({all.unsqueeze(0), all.unsqueeze(0)}).t(),
                 "gather works on tensors that are not contiguous");
  findings.equal(accelerator.gather(mine.sum()).reshape({-1}), all.reshape({world, world}).sum(1),
                 "numbers are gathered as elements");
  const auto nested = accelerator.gather(std::map<std::string, std::vector<at::Tensor>>{{"a", {mine, mine + 1}}});
  findings.equal(nested.at("a").at(1), all + 1, "gather keeps the structure of nested data");
}

void check_reduce(Accelerator& accelerator, Findings& findings) {
  const auto mine = part_of(accelerator, accelerator.process_index()).to(at::kFloat);
  const int64_t world = accelerator.num_processes();
  const auto rows = all_parts(accelerator).to(at::kFloat).reshape({world, world});
  findings.equal(accelerator.reduce(mine), rows.sum(0), "reduce adds the tensors of all processes");
  findings.equal(accelerator.reduce(mine, Reduction::mean), rows.sum(0) / world, "reduce with mean averages them");
  findings.equal(accelerator.reduce(mine, Reduction::max), rows.amax(0), "reduce with max takes the maximum");
  findings.equal(mine, part_of(accelerator, accelerator.process_index()).to(at::kFloat), "reduce does not change its input");
}

void check_broadcast(Accelerator& accelerator, Findings& findings) {
  const auto mine = part_of(accelerator, accelerator.process_index());
  for (int from = 0; from < accelerator.num_processes(); ++from) {
    findings.equal(accelerator.broadcast(mine.clone(), from), part_of(accelerator, from),
                   "broadcast gives all processes the tensor of rank " + std::to_string(from));
  }
}

void check_padding(Accelerator& accelerator, Findings& findings) {
  const int64_t rank = accelerator.process_index(), world = accelerator.num_processes();
  const auto options = at::TensorOptions(at::kLong).device(accelerator.device());
  const auto row = at::full({rank + 1}, rank + 1, options), rest = at::zeros({world - rank - 1}, options);
  findings.equal(accelerator.pad_across_processes(row), at::cat({row, rest}), "padding appends zeros");
  findings.equal(accelerator.pad_across_processes(row, {.pad_first = true}), at::cat({rest, row}), "pad_first prepends zeros");
  const auto wide = accelerator.pad_across_processes(row.unsqueeze(0), {.dim = 1, .pad_index = -1});
  findings.equal(wide, at::cat({row, rest - 1}).unsqueeze(0), "padding works along another dimension, with another value");
  findings.equal(accelerator.gather(accelerator.pad_across_processes(row)).size(0), world * world,
                 "padded tensors can be gathered");
}

void check_objects(Accelerator& accelerator, Findings& findings) {
  const int rank = accelerator.process_index(), world = accelerator.num_processes();
  std::vector<std::string> expected;
  for (int i = 0; i < world; ++i)
    expected.push_back("rank " + std::string(static_cast<size_t>(i) * 1000, '.') + std::to_string(i));
  const auto& mine = expected.at(static_cast<size_t>(rank));
  findings.equal(accelerator.gather_object(std::vector<std::string>{mine}), expected,
                 "gather_object keeps strings in rank order");
  const auto nested = accelerator.gather_object(std::vector<std::map<std::string, Numbers>>{{{"numbers", range(0, rank)}}});
  for (int i = 0; i < world; ++i) {
    findings.equal(nested.at(static_cast<size_t>(i)).at("numbers"), range(0, i), "gather_object keeps nested objects");
  }
  for (int from = 0; from < world; ++from) {
    std::vector<std::string> objects = {mine, std::to_string(rank)};
    accelerator.broadcast_object_list(objects, from);
    findings.equal(objects, {expected.at(static_cast<size_t>(from)), std::to_string(from)},
                   "broadcast_object_list gives all processes the objects of rank " + std::to_string(from));
  }
}

}  // namespace accelerate::self_test
