#include "parallel/joined_batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "distributed/communicator.h"

namespace accelerate::detail {
namespace {

constexpr const char* kNormCall = "SyncBatchNorm";

/// How the processes of a batch norm are reached, for its backward pass.
struct NormPeers : torch::CustomClassHolder {
  std::shared_ptr<Communicator> communicator;
  std::source_location where;
};

/// Numbers of each channel, in the shape in which they spread over `input`.
at::Tensor spread(const at::Tensor& numbers, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = -1;
  return numbers.view(shape);
}

std::vector<int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < input.dim(); ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  return dims;
}

/// The dtype to calculate in.
at::ScalarType wide(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype; }

/// Of all processes: the mean of each channel, the sum of squared distances to it, and how many numbers a channel has.
struct JoinedMoments {
  at::Tensor mean, squares, count;
};

/// In double: counts must be exact, and they are few.
JoinedMoments joined_moments(const at::Tensor& input, const NormPeers& peers) {
  const int64_t channels = input.size(1);
  const auto dims = all_but_channels(input);
  const auto options = input.options().dtype(at::kDouble);
  at::Tensor mine = at::zeros({2 * channels + 1}, options);
  if (input.numel() > 0) {
    const at::Tensor mean = input.mean(dims);
    mine.narrow(0, 0, channels).copy_(mean);
    mine.narrow(0, channels, channels).copy_((input - spread(mean, input)).square().sum(dims));
    mine.narrow(0, 2 * channels, 1).fill_(input.numel() / channels);
  }
  at::Tensor gathered = at::empty({peers.communicator->size() * (2 * channels + 1)}, options);
  peers.communicator->all_gather(gathered, mine, kNormCall, peers.where);
  const at::Tensor all = gathered.view({-1, 2 * channels + 1});
  const at::Tensor means = all.narrow(1, 0, channels), counts = all.narrow(1, 2 * channels, 1);
  const at::Tensor count = counts.sum();
  const at::Tensor mean = (means * counts).sum(0) / count;
  // Distances to a process's own mean, and of that to the common one: nothing is lost where numbers are large and close.
  const at::Tensor squares = all.narrow(1, channels, channels).sum(0) + ((means - mean).square() * counts).sum(0);
  return {mean, squares, count};
}

void update_statistics(const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var,
                       const JoinedMoments& moments, double momentum) {
  if (running_mean) running_mean->mul_(1 - momentum).add_(moments.mean.to(running_mean->scalar_type()), momentum);
  if (running_var) {
    const at::Tensor unbiased = moments.squares / (moments.count - 1);
    running_var->mul_(1 - momentum).add_(unbiased.to(running_var->scalar_type()), momentum);
  }
}

using Maybe = std::optional<at::Tensor>;

Maybe when_defined(const at::Tensor& tensor) { return tensor.defined() ? Maybe(tensor) : Maybe(); }

struct JoinedNorm : torch::autograd::Function<JoinedNorm> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& given, const Maybe& weight,
                            const Maybe& bias, const Maybe& running_mean, const Maybe& running_var, double momentum, double eps,
                            const c10::intrusive_ptr<NormPeers>& peers) {
    const at::Tensor input = given.to(wide(given.scalar_type()));
    const JoinedMoments moments = joined_moments(input, *peers);
    update_statistics(running_mean, running_var, moments, momentum);
    const at::Tensor mean = moments.mean.to(input.scalar_type());
    const at::Tensor scale = (moments.squares / moments.count + eps).rsqrt().to(input.scalar_type());
    context->save_for_backward({given, weight.value_or(at::Tensor()), mean, scale, moments.count});
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["peers"] = c10::IValue::make_capsule(peers);
    at::Tensor output = (input - spread(mean, input)) * spread(weight ? scale * *weight : scale, input);
    if (bias) output += spread(*bias, input);
    return output.to(given.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &given = saved[0], &weight = saved[1], &mean = saved[2], &scale = saved[3], &count = saved[4];
    const auto capsule = context->saved_data.at("peers").toCapsule();
    const auto& peers = static_cast<const NormPeers&>(*capsule);
    const at::Tensor output_gradient = gradients[0].to(scale.scalar_type());
    const at::Tensor distance = given.to(scale.scalar_type()) - spread(mean, given);
    const auto dims = all_but_channels(given);
    const at::Tensor sum = output_gradient.sum(dims), sum_with_distance = (output_gradient * distance).sum(dims);
    torch::autograd::variable_list result(8);
    if (context->needs_input_grad(0)) {
      at::Tensor sums = at::cat({sum, sum_with_distance}).to(at::kDouble);
      peers.communicator->all_reduce(sums, c10d::ReduceOp::SUM, kNormCall, peers.where);
      const auto means = (sums / count).to(scale.scalar_type()).chunk(2);
      const at::Tensor through_statistics = spread(means[0], given) + distance * spread(scale * scale * means[1], given);
      result[0] = ((output_gradient - through_statistics) * spread(weight.defined() ? scale * weight : scale, given))
                      .to(given.scalar_type());
    }
    // Of this process alone, as those of all other parameters: they are all-reduced with them.
    if (weight.defined()) result[1] = sum_with_distance * scale;
    if (context->saved_data.at("has_bias").toBool()) result[2] = sum;
    return result;
  }
};

}  // namespace

at::Tensor joined_batch_norm(const BatchNormCall& call, const std::shared_ptr<Communicator>& communicator,
                             std::source_location where) {
  const auto peers = c10::make_intrusive<NormPeers>();
  peers->communicator = communicator;
  peers->where = where;
  return JoinedNorm::apply(call.input, when_defined(call.weight), when_defined(call.bias), when_defined(call.running_mean),
                           when_defined(call.running_var), call.momentum, call.eps, peers);
}

}  // namespace accelerate::detail
