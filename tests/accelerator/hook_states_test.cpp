#include <torch/torch.h>

#include "accelerator/small_run.h"

namespace {

namespace fs = std::filesystem;
using accelerate::CommHook;

/// A run whose gradients travel by PowerSGD.
struct CompressedRun {
  explicit CompressedRun(const accelerate::DdpOptions& ddp, bool freezes_first_layer = false)
      : accelerator(accelerate::AcceleratorOptions{.ddp = ddp}) {
    torch::manual_seed(5);
    net = torch::nn::Sequential(torch::nn::Linear(4, 12), torch::nn::Tanh(), torch::nn::Linear(12, 12), torch::nn::Linear(12, 2));
    if (freezes_first_layer) {
      for (auto& parameter : net[0]->parameters()) parameter.requires_grad_(false);
    }
    sgd = std::make_unique<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, *sgd);
    step = [this, model = model, optimizer = optimizer](int number) mutable {
      const auto x = torch::sin(torch::arange(20, torch::kFloat).view({5, 4}) * 0.7 + number + accelerator.process_index());
      optimizer.zero_grad();
      accelerator.backward(model(x).square().mean());
      optimizer.step();
    };
  }

  accelerate::Accelerator accelerator;
  torch::nn::Sequential net{nullptr};
  std::unique_ptr<torch::optim::SGD> sgd;
  std::function<void(int)> step;
};

class TogetherHookStates : public Together {
 protected:
  static void expect_equal(const torch::nn::Module& a, const torch::nn::Module& b, const std::string& what) {
    const auto ours = a.parameters(), theirs = b.parameters();
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << what << ", parameter " << i;
  }
};

TEST_F(TogetherHookStates, ARunThatGoesOnEndsWithTheSameBits) {
  const CommonFolder folder(accelerator());
  int number = 0;
  for (const auto hook : {CommHook::power_sgd, CommHook::batched_power_sgd}) {
    for (const bool warm : {true, false}) {
      for (const int saved_after : {1, 2, 4}) {
        const accelerate::DdpOptions ddp{.comm_hook = hook, .comm_state_option = {.start_powerSGD_iter = 2, .warm_start = warm}};
        const std::string path = (folder / ("run_" + std::to_string(number++))).string();
        const std::string what = path + ", saved after " + std::to_string(saved_after);
        CompressedRun whole(ddp);
        for (int step = 0; step < saved_after; ++step) whole.step(step);
        whole.accelerator.save_state(path, {.async = warm});
        for (int step = saved_after; step < 7; ++step) whole.step(step);
        whole.accelerator.end_training();
        EXPECT_EQ(fs::exists(fs::path(path) / ("accelerate_comm_hooks_" + std::to_string(rank()) + ".bin")), world() > 1);

        CompressedRun resumed(ddp);
        resumed.accelerator.load_state(path);
        for (int step = saved_after; step < 7; ++step) resumed.step(step);
        expect_equal(*resumed.net, *whole.net, what);
        // Also in the run that saved it.
        whole.accelerator.load_state(path);
        for (int step = saved_after; step < 7; ++step) whole.step(step);
        expect_equal(*whole.net, *resumed.net, what + ", loaded again");
      }
    }
  }
}

TEST_F(TogetherHookStates, WhatDoesNotFitTheModelIsAnErrorThatNamesTheFileAndChangesNothing) {
  if (world() == 1) return;  // there is nothing to remember
  const CommonFolder folder(accelerator());
  const accelerate::DdpOptions ddp{.comm_hook = CommHook::power_sgd, .comm_state_option = {.start_powerSGD_iter = 2}};
  const std::string path = (folder / "run").string();
  CompressedRun other(ddp, /*freezes_first_layer=*/true), run(ddp);
  for (int step = 0; step < 4; ++step) {
    other.step(step);
    run.step(step);
  }
  other.accelerator.save_state(path);
  const auto before = accelerate::state_dict(*run.net);
  std::string message;
  try {
    run.accelerator.load_state(path);
  } catch (const accelerate::CheckpointError& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("accelerate_comm_hooks_"), std::string::npos) << message;
  EXPECT_NE(message.find("4 parameters, but 6 are trained here"), std::string::npos) << message;
  for (const auto& [name, tensor] : accelerate::state_dict(*run.net)) EXPECT_TRUE(torch::equal(tensor, before.at(name))) << name;
  run.step(4);
}

TEST_F(TogetherHookStates, AnotherNumberOfProcessesGoesOnFromTheMeanOfWhatWasYetToBeSent) {
  if (world() == 1) return;  // there is nothing to remember
  const CommonFolder folder(accelerator());
  const accelerate::DdpOptions ddp{.comm_hook = CommHook::power_sgd, .comm_state_option = {.start_powerSGD_iter = 2}};
  const std::string path = (folder / "run").string();
  CompressedRun run(ddp);
  for (int step = 0; step < 4; ++step) run.step(step);
  run.accelerator.save_state(path);
  // One process more has saved: with the memory of the first.
  const auto file = [&](int process) { return fs::path(path) / ("accelerate_comm_hooks_" + std::to_string(process) + ".bin"); };
  if (rank() == 0) fs::copy_file(file(0), file(world()));
  accelerator().wait_for_everyone();
  run.accelerator.load_state(path);
  run.step(4);
  for (const auto& parameter : run.net->parameters()) {
    EXPECT_TRUE(parameter.isfinite().all().item<bool>());
    EXPECT_TRUE(torch::equal(accelerate::broadcast(state(), parameter.detach()), parameter));
  }
}

}  // namespace
