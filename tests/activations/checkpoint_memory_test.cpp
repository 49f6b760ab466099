// What a checkpointed run keeps, and how much of it is run again.
#include "activations/checkpoint_nets.h"
#include "big_model/towers.h"
#include "support/error_text.h"

namespace {

using namespace checkpoint_nets;
using accelerate::checkpoint;

constexpr int kLayers = 4, kRegions = 3;

/// A region of layers whose activations are watched: tanh saves its result.
struct WatchedLayers {
  explicit WatchedLayers(WatchedStorages& its_activations) : watched(its_activations) {
    for (int i = 0; i < kLayers; ++i) layers->push_back(torch::nn::Linear(8, 8));
  }
  torch::Tensor operator()(torch::Tensor x) const {
    for (const auto& layer : *layers) {
      x = watched(torch::tanh(layer->as<torch::nn::Linear>()->forward(x)));
      if (on_gradient && x.requires_grad()) x.register_hook([this](const torch::Tensor&) { on_gradient(); });
    }
    return x;
  }
  WatchedStorages& watched;
  torch::nn::ModuleList layers;
  std::function<void()> on_gradient;
};

TEST(CheckpointMemory, ActivationsAreReleasedAfterTheForwardPassAndComeBackOneRegionAtATime) {
  WatchedStorages watched;
  WatchedLayers region(watched);
  int64_t most = 0;
  region.on_gradient = [&] { most = std::max(most, watched.alive()); };
  const auto run = [&](bool is_checkpointed) {
    auto x = sequences();
    for (int i = 0; i < kRegions; ++i) x = is_checkpointed ? checkpoint(std::cref(region), x) : region(x);
    const auto loss = x.sum();
    x.reset();
    const int64_t after_forward = watched.alive();
    most = 0;
    loss.backward();
    return std::pair(after_forward, most);
  };
  EXPECT_EQ(run(false), (std::pair<int64_t, int64_t>(kRegions * kLayers, kRegions * kLayers)));
  EXPECT_EQ(watched.alive(), 0);
  const auto [after_forward, in_backward] = run(true);
  EXPECT_EQ(after_forward, kRegions - 1);  // the inputs of regions, of which the first is not watched
  EXPECT_LE(in_backward, kRegions - 1 + kLayers);
  EXPECT_EQ(watched.alive(), 0);
}

TEST(CheckpointMemory, ActivationsAreReleasedAsTheBackwardPassUsesThem) {
  WatchedStorages watched;
  WatchedLayers region(watched);
  std::vector<int64_t> alive;
  region.on_gradient = [&] { alive.push_back(watched.alive()); };
  const auto loss = checkpoint(std::cref(region), sequences()).sum();
  for (const bool retain_graph : {true, false}) {
    alive.clear();
    loss.backward({}, retain_graph);
    // Before each layer's own backward pass; the first one makes the region's rerun.
    EXPECT_EQ(alive, (std::vector<int64_t>{0, 3, 2, 1}));
  }
}

TEST(CheckpointMemory, WhatAPassThroughAPartOfTheGraphLeavesIsReleasedWithIt) {
  WatchedStorages watched;
  WatchedLayers region(watched);
  const auto loss = checkpoint(std::cref(region), sequences()).sum();
  const auto last = region.layers->ptr(kLayers - 1)->as<torch::nn::Linear>()->weight;
  torch::autograd::grad({loss}, {last}, {}, /*retain_graph=*/true);
  EXPECT_EQ(watched.alive(), 0);
}

TEST(CheckpointMemory, ARegionInARegionKeepsNothingOfItsOwn) {
  WatchedStorages watched;
  WatchedLayers region(watched);
  int64_t most = 0;
  region.on_gradient = [&] { most = std::max(most, watched.alive()); };
  const auto all = [&](torch::Tensor x) {
    for (int i = 0; i < kRegions; ++i) x = checkpoint(std::cref(region), x);
    return x;
  };
  const auto loss = checkpoint(all, sequences()).sum();
  EXPECT_EQ(watched.alive(), 0);
  loss.backward();
  EXPECT_LE(most, kRegions - 1 + kLayers);
}

TEST(CheckpointMemory, ARegionOfARetainedGraphIsFreedWithTheGraph) {
  WatchedStorages watched;
  WatchedLayers region(watched);
  auto x = watched(sequences().clone());
  auto loss = checkpoint(std::cref(region), x).sum();
  x.reset();
  EXPECT_EQ(watched.alive(), 1);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(watched.alive(), 1);
  loss.reset();
  EXPECT_EQ(watched.alive(), 0);
}

TEST(CheckpointMemory, TheRerunEndsWithTheLastTensorThatIsNeeded) {
  torch::nn::Linear up(8, 16), down(16, 8);
  int began = 0, ended = 0;
  const auto region = [&](const torch::Tensor& x) {
    ++began;
    auto y = down(torch::gelu(up(x)));
    ++ended;
    return y;
  };
  checkpoint(region, sequences()).sum().backward();
  EXPECT_EQ(began, 2);
  EXPECT_EQ(ended, 1);
}

TEST(CheckpointMemory, WhatBelongsToNoOutputIsNotRecomputed) {
  torch::nn::Linear net(8, 8);
  int late = 0;
  const auto region = [&](const torch::Tensor& x) {
    const auto y = net(x).tanh();
    ++late;
    static_cast<void>(y.exp().sin());
    return y;
  };
  checkpoint(region, sequences()).sum().backward();
  EXPECT_EQ(late, 1);
}

TEST(CheckpointMemory, AFunctionThatCatchesEverythingIsRunToItsEnd) {
  torch::nn::Linear up(8, 16), down(16, 8);
  torch::nn::ModuleList both(up, down);
  int caught = 0;
  const auto careful = [&](const torch::Tensor& x) {
    const auto hidden = torch::gelu(up(x));
    try {
      return down(hidden);
    } catch (const std::exception&) {
      ++caught;
      return hidden;
    }
  };
  const TrainingPass plain(*both, [&] { return careful(sequences()).sum(); });
  expect_same_pass(TrainingPass(*both, [&] { return checkpoint(careful, sequences()).sum(); }), plain);
  EXPECT_EQ(caught, 1);
}

TEST(CheckpointMemory, WeightsAndInputsAreNotRecomputed) {
  torch::nn::Linear net(8, 8);
  int calls = 0;
  const auto region = [&](const torch::Tensor& x) {
    ++calls;
    return net(x);
  };
  const auto x = sequences();
  const TrainingPass plain(*net, [&] { return net(x).sum(); });
  expect_same_pass(TrainingPass(*net, [&] { return checkpoint(region, x).sum(); }), plain);
  EXPECT_EQ(calls, 1);
}

TEST(CheckpointMemory, OffloadedWeightsComeAndGoInReruns) {
  const towers::Saved saved;
  auto tower = towers::empty_tower();
  const auto model =
      accelerate::load_checkpoint_and_dispatch(tower, saved.checkpoint(), {.device_map = "disk", .offload_budget = 1});
  const auto loss_of = [&](towers::TowerImpl& net, bool is_checkpointed) {
    auto x = net.embedding(saved.tokens);
    for (auto& each : *net.blocks) {
      const auto block = std::dynamic_pointer_cast<towers::BlockImpl>(each->shared_from_this());
      x = is_checkpointed ? checkpoint(block, x) : block->forward(x);
    }
    return (net.head(x) * net.scale * net.temperature).pow(2).sum();
  };
  const TrainingPass plain(*saved.tower, [&] { return loss_of(*saved.tower, false); });
  expect_same_pass(TrainingPass(*tower, [&] { return loss_of(*tower, true); }), plain);
  EXPECT_LT(model.offload_counts().peak_bytes, 17000U);  // the largest layer's
  // A frozen one needs no rerun either: it is there, whether its bytes are or not.
  for (auto& parameter : tower->parameters()) parameter.requires_grad_(false);
  int calls = 0;
  const auto head = [&](const torch::Tensor& x) {
    ++calls;
    return tower->head(x);
  };
  checkpoint(head, torch::ones({2, 32}).requires_grad_()).sum().backward();
  EXPECT_EQ(calls, 1);
}

}  // namespace
