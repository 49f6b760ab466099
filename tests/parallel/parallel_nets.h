#pragma once

#include <accelerate/parallel/model.h>
#include <torch/torch.h>

#include <optional>

#include "support/together.h"

/// Small models and what their gradients should be.
namespace parallel_nets {

using accelerate::DdpOptions;
using accelerate::Model;

struct PlainImpl : torch::nn::Module {
  PlainImpl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    second = register_module("second", torch::nn::Linear(8, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Plain);

/// Two heads of which a call may use one.
struct HeadsImpl : torch::nn::Module {
  HeadsImpl() {
    body = register_module("body", torch::nn::Linear(4, 8));
    left = register_module("left", torch::nn::Linear(8, 2));
    right = register_module("right", torch::nn::Linear(8, 2));
  }
  torch::Tensor forward(const torch::Tensor& x, bool uses_right) {
    auto hidden = torch::tanh(body(x));
    return uses_right ? right(hidden) : left(hidden);
  }
  torch::nn::Linear body{nullptr}, left{nullptr}, right{nullptr};
};
TORCH_MODULE(Heads);

struct BothHeads {
  torch::Tensor left;
  std::optional<torch::Tensor> right;
  std::vector<torch::Tensor> more;
};

/// The same, with all that it calculates as its result.
struct StructHeadsImpl : HeadsImpl {
  BothHeads forward(const torch::Tensor& x) {
    auto hidden = torch::tanh(body(x));
    return {left(hidden), right(hidden), {x.detach()}};
  }
};
TORCH_MODULE(StructHeads);

struct NormalisedImpl : torch::nn::Module {
  NormalisedImpl() {
    linear = register_module("linear", torch::nn::Linear(4, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Normalised);

class TogetherParallel : public Together {
 protected:
  void SetUp() override { torch::manual_seed(7); }

  template <class Holder>
  static auto prepared(const Holder& holder, const DdpOptions& options = {}) {
    using M = typename std::decay_t<decltype(holder.ptr())>::element_type;
    return Model<M>(holder.ptr(), state(), {.ddp = options}, std::source_location::current());
  }

  /// The data of a process.
  static torch::Tensor rows(int of_rank = rank()) { return (torch::arange(12, torch::kFloat).view({3, 4}) + of_rank).sin(); }
  static torch::Tensor rows_of_all() {
    std::vector<torch::Tensor> all;
    for (int r = 0; r < world(); ++r) all.push_back(rows(r));
    return torch::cat(all);
  }
  static torch::Tensor loss_of(const torch::Tensor& output) { return output.square().mean(); }

  static void backward(const torch::Tensor& loss, std::source_location where = std::source_location::current()) {
    accelerate::detail::run_backward(state(), where, [&] { loss.backward(); });
  }

  using Tensors = std::vector<torch::Tensor>;
  static Tensors gradients(const torch::nn::Module& net) {
    Tensors found;
    for (const auto& parameter : net.parameters()) {
      const auto& gradient = parameter.grad();
      found.push_back(gradient.defined() ? gradient.clone() : gradient);
    }
    return found;
  }
  template <class Holder>
  static auto twin_of(const Holder& net) {
    auto twin = std::make_shared<typename Holder::ContainedType>();
    accelerate::load_state_dict(*twin, accelerate::state_dict(*net));
    return twin;
  }
  /// The gradients of a loss, calculated by one process alone on a copy of the module.
  template <class Holder, class Loss>
  static Tensors gradients_alone(const Holder& net, Loss loss) {
    auto twin = twin_of(net);
    loss(*twin).backward();
    return gradients(*twin);
  }

  static void expect_close(const Tensors& a, const Tensors& b, double tolerance = 1e-6) {
    EXPECT_EQ(a.size(), b.size());
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      EXPECT_EQ(a[i].defined(), b[i].defined()) << i;
      if (a[i].defined() && b[i].defined()) {
        EXPECT_TRUE(torch::allclose(a[i], b[i], tolerance, tolerance)) << i << "\n" << a[i] << "\n" << b[i];
      }
    }
  }
  /// Every process has the same.
  static void expect_same_everywhere(const Tensors& mine) {
    for (const auto& tensor : mine) {
      if (!tensor.defined()) continue;
      EXPECT_TRUE(torch::equal(accelerate::broadcast(state(), tensor.detach()), tensor));
    }
  }
  static void take_step(const torch::nn::Module& net) {
    torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) parameter.sub_(parameter.grad(), 0.1);
  }
};

}  // namespace parallel_nets
