// Checkpointed regions in prepared models, on several ranks.
#include "activations/checkpoint_layers.h"
#include "activations/checkpoint_nets.h"
#include "support/together.h"

namespace {

using namespace checkpoint_nets;

class TogetherCheckpoint : public Together {
 protected:
  /// The weights after some steps of training, on data of each rank's own.
  template <class Net, class Prepare>
  static std::vector<torch::Tensor> trained(Net& net, accelerate::Accelerator& run, const Prepare& before) {
    torch::manual_seed(21);
    before();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05));
    auto [model, optimizer] = run.prepare(net, sgd);
    torch::manual_seed(rank());
    for (int step = 0; step < 4; ++step) {
      const auto scope = run.accumulate(model);
      run.backward(model(sequences() + rank()).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    std::vector<torch::Tensor> weights;
    for (const auto& parameter : net->parameters()) weights.push_back(parameter.detach().clone());
    return weights;
  }
};

TEST_F(TogetherCheckpoint, TrainingEndsWithTheWeightsOfThePlainRun) {
  for (const auto precision : {accelerate::Precision::no, accelerate::Precision::bf16}) {
    std::vector<std::vector<torch::Tensor>> weights;
    for (const bool is_checkpointed : {false, true}) {
      accelerate::Accelerator run({.cpu = true, .mixed_precision = precision, .gradient_accumulation_steps = 2});
      torch::manual_seed(4);
      BlockStack net(8, 2);
      net->is_checkpointed = is_checkpointed;
      weights.push_back(trained(net, run, [] {}));
    }
    for (size_t i = 0; i < weights[0].size(); ++i) EXPECT_TRUE(torch::equal(weights[0][i], weights[1][i])) << i;
  }
}

}  // namespace
