#include <torch/torch.h>

#include <csignal>

#include "scenes.h"

namespace {

using accelerate::Accelerator;
using accelerate::testing::leave_file;
using accelerate::testing::tell;
using accelerate::testing::wait_for_file;
using namespace std::chrono_literals;

/// Calls a function in a forward pass, and when the gradients of the layers behind it are computed.
struct Interrupted : torch::autograd::Function<Interrupted> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, void (*in_backward)()) {
    context->saved_data["call"] = reinterpret_cast<int64_t>(in_backward);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (auto* call = reinterpret_cast<void (*)()>(context->saved_data["call"].toInt())) call();
    return {gradients[0], torch::Tensor()};
  }
};

struct LayersImpl : torch::nn::Module {
  LayersImpl() {
    first = register_module("first", torch::nn::Linear(4, 64));
    second = register_module("second", torch::nn::Linear(64, 64));
    third = register_module("third", torch::nn::Linear(64, 1));
  }
  torch::Tensor forward(torch::Tensor x, void (*in_forward)(), void (*in_backward)()) {
    x = torch::relu(first(x));
    if (in_forward) in_forward();
    return third(torch::relu(Interrupted::apply(second(x), in_backward)));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};
TORCH_MODULE(Layers);

void die() { std::raise(SIGKILL); }

/// A model of a unit for each layer; the last rank dies where it is told to.
void train_until_death(bool in_forward) {
  Accelerator accelerator({.fsdp = accelerate::FsdpOptions{.transformer_layer_classes = {"Linear"}}, .timeout = 40s});
  Layers net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const bool dies = accelerator.is_last_process();
  for (int step = 0; step < 3; ++step) {
    const auto take_step = [&] {
      const bool now = dies && step == 2;
      accelerator.backward(
          model(torch::ones({2, 4}), now && in_forward ? die : nullptr, now && !in_forward ? die : nullptr).sum());
      optimizer.step();
      optimizer.zero_grad();
    };
    step < 2 ? take_step() : tell(accelerator, take_step);
  }
}

void killed_in_a_sharded_forward() { train_until_death(true); }
void killed_in_a_sharded_backward() { train_until_death(false); }

/// Rank 0 alone looks at a weight, which all ranks would have to gather.
void one_rank_reads_a_sharded_weight() {
  Accelerator accelerator({.fsdp = accelerate::FsdpOptions{}, .timeout = 40s});
  Layers net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  tell(accelerator, [&] {
    if (accelerator.is_main_process()) net->second->weight.norm();
    accelerator.wait_for_everyone();
  });
}

}  // namespace

std::map<std::string, void (*)()> accelerate::testing::sharded_scenes() {
  return {{"killed_in_a_sharded_forward", killed_in_a_sharded_forward},
          {"killed_in_a_sharded_backward", killed_in_a_sharded_backward},
          {"one_rank_reads_a_sharded_weight", one_rank_reads_a_sharded_weight}};
}
