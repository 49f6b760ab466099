#include "parallel/replica_check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "core/crc32.h"
#include "distributed/communicator.h"
#include "parallel/data_parallel.h"
#include "residency/interception.h"

namespace accelerate::detail {
namespace {

/// As whole numbers of the same size, so that what is summed are bits.
at::ScalarType bits_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

// A device sums whole numbers as int64, in a copy of what it sums.
constexpr int64_t kSummedAtOnce = int64_t{1} << 22;

/// A number that differs when a bit differs: where it is computed on a device, one that misses changes which cancel out.
at::Tensor checksum_of(const at::Tensor& parameter) {
  const auto dense = parameter.detach().contiguous();
  if (dense.is_cpu()) return at::scalar_tensor(static_cast<int64_t>(crc32(0, dense.const_data_ptr(), dense.nbytes())), at::kLong);
  auto flat = dense.view({-1});
  if (flat.is_complex()) flat = at::view_as_real(flat).view({-1});
  auto sum = at::zeros({}, flat.options().dtype(at::kLong));
  for (const auto& piece : flat.view(bits_of(flat)).split(kSummedAtOnce)) sum.add_(piece.sum(at::kLong));
  return sum;
}

struct Compared {
  std::string name;
  at::Tensor parameter;
};

std::vector<Compared> compared_parameters(const std::vector<std::shared_ptr<ModelCore>>& models) {
  std::vector<Compared> compared;
  for (const auto& model : models) {
    if (!model->data_parallel() || model->data_parallel()->stepped_alone()) continue;
    for (const auto& item : model->module().named_parameters()) {
      if (!item.value().defined() || item.value().is_meta() || item.value().layout() != at::kStrided || has_key(item.value()))
        continue;
      compared.push_back({item.key() + " of " + model->module().name(), item.value()});
    }
  }
  return compared;
}

/// On the host, in one copy for all that lie on a device.
at::Tensor checksums_of(const std::vector<Compared>& compared) {
  std::vector<at::Tensor> sums;
  for (const auto& each : compared) sums.push_back(checksum_of(each.parameter));
  for (auto& sum : sums) sum = sum.to(sums.front().device());
  return at::stack(sums).cpu();
}

}  // namespace

std::string replicas_that_differ(const ProcessState& state, const std::vector<std::shared_ptr<ModelCore>>& models,
                                 const char* call, std::source_location where) {
  // In join_uneven_inputs ranks that are out of data follow those that train, and could not take part.
  const auto is_joined = [](const auto& model) { return model->data_parallel() && model->data_parallel()->joined(); };
  if (!state.use_distributed() || std::any_of(models.begin(), models.end(), is_joined)) return "";
  const c10::NoGradGuard no_grad;
  const auto compared = compared_parameters(models);
  if (compared.empty()) return "";
  const auto count = static_cast<int64_t>(compared.size());
  // A rank without memory to sum in takes part all the same, and says so in the last number.
  at::Tensor mine = at::zeros({count + 1}, at::kLong);
  std::string failure;
  try {
    mine.narrow(0, 0, count).copy_(checksums_of(compared));
  } catch (const std::exception& error) {
    failure = error.what();
    mine[count].fill_(1);
  }
  at::Tensor all = at::empty({state.num_processes() * (count + 1)}, mine.options());
  state.communicator()->all_gather(all, mine, call, where);
  const auto sums = all.view({state.num_processes(), count + 1});
  for (int64_t rank = 0; rank < state.num_processes(); ++rank) {
    if (sums[rank][count].item<int64_t>() == 0) continue;
    return "the weights of rank " + std::to_string(rank) + " could not be compared with those of the others" +
           (failure.empty() ? "." : ": " + failure);
  }
  for (int64_t rank = 1; rank < state.num_processes(); ++rank) {
    const auto* here = sums[rank].const_data_ptr<int64_t>();
    const auto* main = sums.const_data_ptr<int64_t>();
    const auto first = std::mismatch(here, here + count, main).first - here;
    if (first == count) continue;
    return "replicas have diverged: rank " + std::to_string(rank) + " has different weights than rank 0, first in " +
           compared[static_cast<size_t>(first)].name +
           ". They were changed on some ranks only: a step with gradients that were not averaged, weights loaded or reset on "
           "some ranks, or random numbers that differ between ranks. Different hardware may also round differently: "
           "save_state(folder, {.check_replicas = false}) saves the weights of rank 0.";
  }
  return "";
}

}  // namespace accelerate::detail
