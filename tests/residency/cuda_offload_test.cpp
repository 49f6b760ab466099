// Weights that are computed with on a GPU and live elsewhere.
#include <accelerate/accelerate.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "big_model/towers.h"
#include "support/together.h"

using accelerate::DeviceMap;
using accelerate::LoadCheckpointOptions;
using towers::empty_tower;
using towers::Saved;
using towers::Tower;

class TogetherCudaOffload : public Together {};

namespace {

const c10::Device kGpu(torch::kCUDA, 0);
/// The room of the largest layer.
constexpr int64_t kOneLayer = 17000;

/// The saved tower on the GPU, and what it answers there.
struct OnGpu {
  explicit OnGpu(const Saved& saved) : tower(100, 32, 4), tokens(saved.tokens.to(kGpu)) {
    accelerate::load_checkpoint_in_model(tower, saved.checkpoint());
    tower->to(kGpu);
  }
  mutable Tower tower;
  torch::Tensor tokens;
};

torch::Tensor answer_of(const Tower& tower, const torch::Tensor& tokens) {
  torch::NoGradGuard no_grad;
  return Tower(tower)->forward(tokens);
}

std::vector<LoadCheckpointOptions> placements(const Saved& saved) {
  const DeviceMap mixed = {{"embedding", "disk"}, {"blocks.0", 0}, {"blocks.1", "cpu"}, {"blocks.2", "disk"},
                           {"blocks.3", "cpu"},   {"head", "cpu"}, {"scale", "cpu"},    {"temperature", "disk"}};
  std::vector<LoadCheckpointOptions> all = {
      {.device_map = 0},
      {.device_map = "cpu"},
      {.device_map = "disk"},
      {.device_map = "cpu", .offload_buffers = true},
      {.device_map = "disk", .offload_buffers = true},
      {.device_map = "cpu", .offload_budget = kOneLayer},
      {.device_map = "disk", .offload_budget = kOneLayer},
      {.device_map = "cpu", .preload_module_classes = {"Block"}},
      {.device_map = mixed},
      {.device_map = mixed, .offload_budget = kOneLayer},
  };
  for (auto& options : all) {
    options.main_device = kGpu;
    options.offload_folder = saved.offload();
  }
  return all;
}

}  // namespace

TEST_F(TogetherCudaOffload, EveryPlacementAnswersAsTheResidentModelToTheBit) {
  for (const bool tied : {false, true}) {
    const Saved saved(tied);
    Tower reference = empty_tower(tied);
    accelerate::load_checkpoint_and_dispatch(reference, saved.checkpoint(), {.device_map = 0});
    const auto tokens = saved.tokens.to(kGpu);
    const auto expected = answer_of(reference, tokens);
    EXPECT_TRUE(torch::allclose(expected.cpu(), saved.answer, 1e-4, 1e-5));
    int number = 0;
    for (const auto& options : placements(saved)) {
      const Tower tower = empty_tower(tied);
      const auto model = accelerate::load_checkpoint_and_dispatch(tower, saved.checkpoint(), options);
      for (int pass = 0; pass < 3; ++pass) {
        EXPECT_TRUE(torch::equal(answer_of(tower, tokens), expected)) << "placement " << number << ", pass " << pass;
        c10::InferenceMode inference;
        EXPECT_TRUE(torch::equal(model->forward(tokens), expected)) << "placement " << number << ", InferenceMode";
      }
      model.release_memory();
      EXPECT_TRUE(torch::equal(answer_of(tower, tokens), expected)) << "placement " << number;
      ++number;
    }
  }
}

TEST_F(TogetherCudaOffload, GradientsAreThoseOfTheResidentModel) {
  const Saved saved;
  OnGpu resident(saved);
  resident.tower->forward(resident.tokens).pow(2).sum().backward();
  const auto expected = resident.tower->named_parameters();
  for (const auto& options : placements(saved)) {
    const Tower tower = empty_tower();
    const auto model = accelerate::load_checkpoint_and_dispatch(tower, saved.checkpoint(), options);
    for (int pass = 0; pass < 3; ++pass) {
      model->zero_grad();
      model->forward(resident.tokens).pow(2).sum().backward();
      for (const auto& parameter : tower->named_parameters()) {
        // The gradient of an embedding is summed in no fixed order.
        EXPECT_TRUE(torch::allclose(parameter.value().grad(), expected[parameter.key()].grad(), 1e-5, 1e-6)) << parameter.key();
        EXPECT_TRUE(parameter.value().is_cuda());
      }
    }
  }
}

TEST_F(TogetherCudaOffload, ChangesOfWeightsOnTheHostStayAndThoseOfACheckpointAreRefused) {
  const Saved saved;
  const Tower tower = empty_tower();
  const auto model = accelerate::load_checkpoint_and_dispatch(
      tower, saved.checkpoint(), {.device_map = "cpu", .main_device = kGpu, .offload_budget = kOneLayer});
  const auto tokens = saved.tokens.to(kGpu);
  const auto before = answer_of(tower, tokens);
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : tower->parameters()) parameter.mul_(2);
  }
  model.release_memory();
  const auto doubled = answer_of(tower, tokens);
  EXPECT_FALSE(torch::equal(before, doubled));
  OnGpu resident(saved);
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : resident.tower->parameters()) parameter.mul_(2);
  }
  EXPECT_TRUE(torch::equal(doubled, answer_of(resident.tower, tokens)));
  const Tower on_disk = empty_tower();
  accelerate::load_checkpoint_and_dispatch(on_disk, saved.checkpoint(), {.device_map = "disk", .main_device = kGpu});
  torch::NoGradGuard no_grad;
  EXPECT_THROW(on_disk->head->weight.mul_(2), accelerate::UsageError);
}

TEST_F(TogetherCudaOffload, AModelInMemoryIsDispatchedWhereItLies) {
  const Saved saved;
  OnGpu resident(saved);
  const auto expected = answer_of(resident.tower, resident.tokens);
  const Tower tower(100, 32, 4);
  accelerate::load_checkpoint_in_model(tower, saved.checkpoint());
  const void* before = tower->head->weight.const_data_ptr();
  const auto model = accelerate::dispatch_model(tower, {{"", "cpu"}}, {.main_device = kGpu, .offload_budget = kOneLayer});
  for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(torch::equal(answer_of(tower, resident.tokens), expected));
  EXPECT_TRUE(tower->head->weight.is_cuda());
  const auto scope = accelerate::materialized(*tower->head);
  EXPECT_NE(tower->head->weight.const_data_ptr(), before);
}

namespace {

/// Layers large enough that a copy takes its time, and more work with each than its copy takes, or less.
struct StackImpl : torch::nn::Module {
  StackImpl(int64_t width, int64_t depth) {
    for (int64_t i = 0; i < depth; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i),
                                       torch::nn::Linear(torch::nn::LinearOptions(width, width - 64 * (i % 3)).bias(false))));
    }
  }
  torch::Tensor forward(torch::Tensor x, int repeats) {
    const int64_t width = x.size(1);
    for (auto& layer : layers) {
      for (int i = 0; i < repeats; ++i) {
        const auto y = layer->forward(x);
        x = torch::tanh(torch::constant_pad_nd(y, {0, width - y.size(1)}) + x);
      }
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Stack);

/// A stack in host memory, or on disk, with room for three layers on the GPU, beside one that is resident.
struct Stacks {
  static constexpr int64_t kWidth = 4096, kDepth = 12;
  explicit Stacks(const std::string& place) : resident(kWidth, kDepth) {
    torch::NoGradGuard no_grad;
    accelerate::save_weights(accelerate::state_dict(*resident), folder / "checkpoint", {.max_shard_size = "300MB"});
    resident->to(kGpu);
    const Stack empty = [] {
      accelerate::InitEmptyWeights scope;
      return Stack(kWidth, kDepth);
    }();
    model.emplace(
        accelerate::load_checkpoint_and_dispatch(empty, folder / "checkpoint", {.device_map = place, .main_device = kGpu}));
  }
  TemporaryFolder folder;
  Stack resident;
  std::optional<accelerate::DispatchedModel<StackImpl>> model;
};

}  // namespace

TEST_F(TogetherCudaOffload, CopiesNeitherOvertakeTheComputingNorAreOvertaken) {
  for (const char* place : {"cpu", "disk"}) {
    Stacks stacks(place);
    torch::NoGradGuard no_grad;
    for (const int64_t rows : {1, 4096}) {  // the copies are slower; the computing is
      const auto input = torch::randn({rows, Stacks::kWidth}, kGpu);
      const int repeats = rows == 1 ? 1 : 4;
      const auto expected = stacks.resident->forward(input, repeats);
      for (int pass = 0; pass < 6; ++pass) {
        EXPECT_TRUE(torch::equal((*stacks.model)->forward(input, repeats), expected)) << place << ' ' << rows << ' ' << pass;
      }
    }
    const auto counts = stacks.model->offload_counts();
    EXPECT_LE(counts.peak_bytes, uint64_t{3} * (Stacks::kWidth * Stacks::kWidth * 4 + 256)) << place;
    EXPECT_LE(counts.prefetch_misses, 3) << place;
  }
}

TEST_F(TogetherCudaOffload, ThreadsWithStreamsOfTheirOwnMeetTheSameWeights) {
  Stacks stacks("cpu");
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      torch::NoGradGuard no_grad;
      const c10::impl::VirtualGuardImpl guard(torch::kCUDA);
      const c10::StreamGuard stream(guard.getStreamFromGlobalPool(kGpu));
      const auto input = torch::full({1 + 512 * i, Stacks::kWidth}, 0.01 * (i + 1), kGpu);
      const auto expected = stacks.resident->forward(input, 2);
      for (int pass = 0; pass < 4; ++pass) wrong += !torch::equal((*stacks.model)->forward(input, 2), expected);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(TogetherCudaOffload, MemoryIsFreeWhenTheModelIsGoneAndWhatWasComputedIsRight) {
  for (int round = 0; round < 3; ++round) {
    torch::Tensor answer, expected;
    const auto input = torch::randn({4096, Stacks::kWidth}, kGpu);
    {
      Stacks stacks("cpu");
      torch::NoGradGuard no_grad;
      expected = stacks.resident->forward(input, 2);
      answer = (*stacks.model)->forward(input, 2);
      stacks.model.reset();  // while the GPU still works
      // Whoever gets its memory overwrites it.
      for (int i = 0; i < 8; ++i) torch::full({Stacks::kWidth * Stacks::kWidth}, 7.0, kGpu);
    }
    EXPECT_TRUE(torch::equal(answer, expected));
  }
}
