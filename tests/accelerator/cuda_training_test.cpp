// The training loop on a CUDA device. Run by one process on one GPU, where there is one.
#include <torch/torch.h>

#include "support/together.h"

namespace {

using accelerate::Accelerator;
using accelerate::Precision;

class TogetherCudaTraining : public Together {
 protected:
  struct Run {
    std::vector<double> losses;
    torch::Dtype inside;
    int64_t skipped = 0;
  };
  /// 60 steps on a sum that a small net can learn.
  static Run train(Precision precision, accelerate::GradScalerOptions scaler = {}, int workers = 0) {
    torch::manual_seed(0);
    Accelerator accelerator({.mixed_precision = precision, .dataloader = {.non_blocking = true}, .grad_scaler = scaler});
    torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1));
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
    accelerate::CosineWithWarmup cosine(adamw, {.warmup_steps = 5, .total_steps = 60});
    const auto inputs = torch::randn({128, 8});
    accelerate::DataLoader data(accelerate::TensorDataset(inputs, inputs.sum(1, true)),
                                {.batch_size = 32, .num_workers = workers, .pin_memory = true});
    auto [model, optimizer, loader, scheduler] = accelerator.prepare(net, adamw, data, cosine);
    Run run;
    for (int epoch = 0; epoch < 15; ++epoch) {
      for (auto& [x, y] : loader) {
        EXPECT_TRUE(x.is_cuda());
        const auto output = model(x);
        EXPECT_EQ(output.scalar_type(), torch::kFloat);
        const auto loss = torch::mse_loss(output, y);
        accelerator.backward(loss);
        accelerator.clip_grad_norm_(model.parameters(), 1.0);
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
        run.skipped += accelerator.optimizer_step_was_skipped();
        run.losses.push_back(loss.item<double>());
      }
    }
    auto scope = accelerator.autocast();
    run.inside = net->forward(inputs.to(accelerator.device())).scalar_type();
    return run;
  }
};

TEST_F(TogetherCudaTraining, WithoutPlacementNothingIsSentToTheGpu) {
  for (const bool places : {true, false}) {
    Accelerator accelerator({.device_placement = places});
    torch::nn::Linear net(8, 1);
    torch::optim::Adagrad adagrad(net->parameters());
    accelerate::DataLoader data(accelerate::TensorDataset(torch::randn({4, 8}), torch::randn({4, 1})), {.batch_size = 2});
    auto [model, optimizer, loader] = accelerator.prepare(net, adagrad, data);
    auto& state = *adagrad.state().at(net->weight.unsafeGetTensorImpl());
    EXPECT_EQ(net->weight.is_cuda(), places);
    EXPECT_EQ(static_cast<torch::optim::AdagradParamState&>(state).sum().is_cuda(), places);
    for (auto& [x, y] : loader) EXPECT_EQ(x.is_cuda() && y.is_cuda(), places);
  }
}

TEST_F(TogetherCudaTraining, LearnsInEveryPrecision) {
  for (const auto& [precision, dtype] : {std::pair(Precision::no, torch::kFloat), std::pair(Precision::bf16, torch::kBFloat16),
                                         std::pair(Precision::fp16, torch::kHalf)}) {
    const auto run = train(precision);
    EXPECT_EQ(run.losses.size(), 60u);
    EXPECT_LT(run.losses.back(), 0.2 * run.losses.front()) << to_string(precision);
    EXPECT_EQ(run.inside, dtype) << to_string(precision);
  }
}

TEST_F(TogetherCudaTraining, AScaleThatIsTooLargeIsBroughtDownAndItsStepsAreSkipped) {
  const auto run = train(Precision::fp16, {.init_scale = 1e12});
  EXPECT_GT(run.skipped, 0);
  EXPECT_LT(run.losses.back(), 0.5 * run.losses.front());
  EXPECT_EQ(run.losses[0], run.losses[4]) << "weights do not move while steps are skipped";
}

TEST_F(TogetherCudaTraining, ModelsThatTakeTurnsAreUnscaledAndClippedEachInItsOwn) {
  // The default factor would be too large for a gradient of 1 in float16.
  Accelerator a({.mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = 1024}});
  torch::nn::Linear first(torch::nn::LinearOptions(1, 1).bias(false)), second(torch::nn::LinearOptions(1, 1).bias(false));
  for (const auto& net : {first, second}) torch::nn::init::ones_(net->weight);
  torch::optim::SGD sgd_first(first->parameters(), 0.25), sgd_second(second->parameters(), 0.25);
  auto [one, step_one, two, step_two] = a.prepare(first, sgd_first, second, sgd_second);
  const auto x = torch::ones({1, 1}, a.device());
  const auto turn = [&](auto& model, auto& optimizer) {
    optimizer.zero_grad();
    a.backward(model(x).sum());
    EXPECT_NEAR(a.clip_grad_norm_(model.parameters(), 100.0).template item<double>(), 1, 1e-3);
    optimizer.step();
  };
  for (int round = 0; round < 2; ++round) {
    turn(one, step_one);
    turn(two, step_two);
  }
  for (const auto& net : {first, second}) EXPECT_NEAR(net->weight.item<double>(), 0.5, 1e-3);
}

TEST_F(TogetherCudaTraining, WorkersAndPinnedMemoryGiveTheSameBatches) {
  EXPECT_EQ(train(Precision::no).losses, train(Precision::no, {}, 2).losses);
}

/// Fused kernels on the device against torch::optim on the device, fed the same gradients.
template <class Optimizer, class Options>
double cuda_difference_after_100_steps(const Options& options) {
  Accelerator accelerator;
  torch::manual_seed(1);
  torch::nn::Linear mine(16, 16);
  mine->to(accelerator.device());
  auto theirs = std::dynamic_pointer_cast<torch::nn::LinearImpl>(mine->clone());
  Optimizer ours_inner(mine->parameters(), options), reference(theirs->parameters(), options);
  auto [model, ours] = accelerator.prepare(mine, ours_inner);
  for (int step = 0; step < 100; ++step) {
    const auto parameters = mine->parameters(), references = theirs->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto gradient = torch::randn_like(parameters[i]);
      const_cast<torch::Tensor&>(parameters[i]).mutable_grad() = gradient;
      const_cast<torch::Tensor&>(references[i]).mutable_grad() = gradient.clone();
    }
    ours.step();
    reference.step();
  }
  return (mine->weight - theirs->weight).abs().max().template item<double>();
}

TEST_F(TogetherCudaTraining, FusedStepsEqualUnfusedOnes) {
  EXPECT_LT(cuda_difference_after_100_steps<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).weight_decay(0.1)), 1e-6);
  EXPECT_LT(cuda_difference_after_100_steps<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true)), 1e-6);
  EXPECT_LT(cuda_difference_after_100_steps<torch::optim::SGD>(torch::optim::SGDOptions(1e-2).momentum(0.9).nesterov(true)),
            1e-6);
}

}  // namespace
