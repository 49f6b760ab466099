#include <torch/torch.h>

#include "support/together.h"

namespace {

using accelerate::DdpOptions;
using accelerate::Model;

struct ParallelNetImpl : torch::nn::Module {
  ParallelNetImpl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    second = register_module("second", torch::nn::Linear(8, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(ParallelNet);

class TogetherDataParallel : public Together {
 protected:
  template <class Holder>
  auto prepared(const Holder& holder, const DdpOptions& options = {}) {
    using M = typename std::decay_t<decltype(holder.ptr())>::element_type;
    return Model<M>(holder.ptr(), state(), {.ddp = options}, std::source_location::current());
  }
  static torch::Tensor rows(int rank) { return torch::arange(12, torch::kFloat).view({3, 4}).sin() * (rank + 1); }
  /// What the mean over ranks should be: the gradient of the mean loss over the rows of all.
  template <class Module>
  std::vector<torch::Tensor> expected_gradients(Module& net) {
    std::vector<torch::Tensor> inputs;
    for (int r = 0; r < world(); ++r) inputs.push_back(rows(r));
    net->zero_grad();
    net->forward(torch::cat(inputs)).square().mean().backward();
    return gradients(net);
  }
  template <class Module>
  static std::vector<torch::Tensor> gradients(Module& net) {
    std::vector<torch::Tensor> found;
    for (const auto& parameter : net->parameters()) found.push_back(parameter.grad().clone());
    return found;
  }
  static void expect_close(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b, double tolerance = 1e-6) {
    EXPECT_EQ(a.size(), b.size());
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) EXPECT_TRUE(torch::allclose(a[i], b[i], tolerance, tolerance)) << i;
  }
  void backward(const torch::Tensor& loss, std::source_location where = std::source_location::current()) {
    accelerate::detail::run_backward(state(), where, [&] { loss.backward(); });
  }
};

TEST_F(TogetherDataParallel, GradientsAreTheMeanOverRanks) {
  torch::manual_seed(rank());  // prepare gives all the weights of the first
  ParallelNet net;
  auto model = prepared(net);
  ParallelNet twin;
  accelerate::load_state_dict(*twin, accelerate::state_dict(*net));
  const auto expected = expected_gradients(twin);
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    backward(model(rows(rank())).square().mean());
    expect_close(gradients(net), expected);
  }
}

}  // namespace
