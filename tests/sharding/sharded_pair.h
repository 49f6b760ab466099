#pragma once

#include "sharding/sharded_nets.h"

namespace sharded_nets {

inline accelerate::Accelerator sharding_accelerator(const accelerate::FsdpOptions& fsdp = by_block()) {
  return accelerate::Accelerator({.fsdp = fsdp, .timeout = std::chrono::seconds(60)});
}

/// A model that is sharded, its optimizer, and a replica of it that is trained beside it.
struct Pair {
  explicit Pair(const accelerate::FsdpOptions& fsdp = by_block(), double rate = 0.1)
      : accelerator(sharding_accelerator(fsdp)),
        net(seeded()),
        sgd(net->parameters(), torch::optim::SGDOptions(rate)),
        twin(seeded()),
        twin_sgd(twin->parameters(), torch::optim::SGDOptions(rate)),
        model(accelerator.prepare_model(net)),
        optimizer(accelerator.prepare_optimizer(sgd)) {
    twin->to(accelerator.device());
  }
  static TinyGpt seeded() {
    torch::manual_seed(5);
    return TinyGpt();
  }
  static torch::Tensor loss_of(const torch::Tensor& logits) { return logits.square().mean(); }
  torch::Tensor ids(int step) const { return batch(accelerator, step); }
  /// The mean of the twin's gradients over ranks.
  void average_twin() {
    for (auto& parameter : twin->parameters()) {
      if (parameter.grad().defined())
        parameter.mutable_grad() = accelerator.reduce(parameter.grad(), accelerate::Reduction::mean);
    }
  }
  void twin_step(int step) {
    twin->zero_grad();
    loss_of(twin->forward(ids(step))).backward();
    average_twin();
    twin_sgd.step();
  }
  void expect_equal_weights(double tolerance = 2e-6) {
    const auto whole = accelerator.get_state_dict(model);
    for (const auto& [name, tensor] : whole) {
      const auto expected = accelerate::state_dict(*twin).at(name).cpu();
      EXPECT_TRUE(torch::allclose(tensor.cpu(), expected, tolerance, tolerance)) << name;
    }
  }

  accelerate::Accelerator accelerator;
  TinyGpt net;
  torch::optim::SGD sgd;
  TinyGpt twin;
  torch::optim::SGD twin_sgd;
  accelerate::Model<TinyGptImpl> model;
  accelerate::AcceleratedOptimizer optimizer;
};

}  // namespace sharded_nets
