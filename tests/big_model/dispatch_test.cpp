#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "big_model/towers.h"

namespace fs = std::filesystem;
using accelerate::DeviceMap;
using towers::empty_tower;
using towers::Saved;
using towers::Tower;

namespace {

TEST(EmptyWeights, ParametersTakeNoMemoryAndBuffersAreReal) {
  const Tower tower = empty_tower();
  for (const auto& parameter : tower->named_parameters()) EXPECT_TRUE(parameter.value().is_meta()) << parameter.key();
  EXPECT_FALSE(tower->scale.is_meta());
  EXPECT_TRUE(torch::equal(tower->scale, torch::arange(1, 101).to(torch::kFloat) / 100));
}

/// A module whose constructor does what constructors do.
struct CuriousImpl : torch::nn::Module {
  CuriousImpl() {
    weight = register_parameter("weight", torch::randn({4, 4}));
    torch::nn::init::orthogonal_(weight);
    list = register_buffer("list", torch::tensor({1.0, 2.0, 3.0}));
    vector = register_buffer("vector", torch::tensor(std::vector<float>{4, 5}));
    steps = register_buffer("steps", torch::linspace(0, 1, 5).pow(2) * list.sum());
    sum = steps.sum().item<double>();
    lstm = register_module("lstm", torch::nn::LSTM(3, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
  }
  torch::Tensor weight, list, vector, steps;
  double sum = 0;
  torch::nn::LSTM lstm{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(EmptyWeights, AConstructorMayReadWhatItMade) {
  const CuriousImpl real;
  std::unique_ptr<CuriousImpl> made;
  {
    const accelerate::InitEmptyWeights empty;
    made = std::make_unique<CuriousImpl>();
    EXPECT_TRUE(made->weight.is_meta());
  }
  EXPECT_DOUBLE_EQ(made->sum, real.sum);
  for (const auto& buffer : real.named_buffers()) {
    EXPECT_TRUE(torch::equal(made->named_buffers()[buffer.key()], buffer.value())) << buffer.key();
  }
  for (const auto& parameter : made->named_parameters()) EXPECT_TRUE(parameter.value().is_meta()) << parameter.key();
}

TEST(EmptyWeights, IncludeBuffersWhenAsked) {
  std::unique_ptr<CuriousImpl> made;
  {
    const accelerate::InitEmptyWeights empty({.include_buffers = true});
    made = std::make_unique<CuriousImpl>();
  }
  EXPECT_TRUE(made->steps.is_meta());
  EXPECT_TRUE(made->norm->running_mean.is_meta());
  const torch::nn::Linear after(2, 2);
  EXPECT_FALSE(after->weight.is_meta());
}

/// Every way to place a model gives what the resident one gives, to the bit.
void expect_same_answers(bool tied) {
  const Saved saved(tied);
  const std::vector<accelerate::LoadCheckpointOptions> placements = {
      {},
      {.device_map = "cpu"},
      {.device_map = "disk"},
      {.device_map = "disk", .offload_buffers = true},
      {.device_map = "disk", .mmap = true},
      {.device_map = "cpu", .mmap = true},
      {.device_map = "disk", .offload_budget = 1},
      {.device_map = "disk", .preload_module_classes = {"Block"}},
      {.device_map = {{"embedding", "disk"}, {"blocks", "cpu"}, {"head", "disk"}, {"scale", "cpu"}, {"temperature", "disk"}}},
      {.device_map = "auto", .max_memory = {{torch::kCPU, "64KiB"}}, .no_split_module_classes = {"Block"}},
      {.device_map = "auto", .max_memory = {{torch::kCPU, 1}}},
  };
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < placements.size(); ++i) {
    const Tower tower = empty_tower(tied);
    const auto model = accelerate::load_checkpoint_and_dispatch(tower, saved.checkpoint(), placements[i]);
    for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(torch::equal(model(saved.tokens), saved.answer)) << "placement " << i;
    EXPECT_FALSE(fs::exists(saved.offload())) << "something was copied, placement " << i;
  }
}

TEST(DispatchedModel, AnswersAsTheResidentOneWhereverItsWeightsAre) { expect_same_answers(false); }
TEST(DispatchedModel, AnswersAsTheResidentOneWhenItsHeadIsTied) { expect_same_answers(true); }

}  // namespace
