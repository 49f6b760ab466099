// Dispatched models on a CUDA device. Run by one process on one GPU, where there is one.
#include <torch/torch.h>

#include "big_model/towers.h"
#include "support/error_text.h"
#include "support/together.h"

namespace {

using accelerate::DeviceMap;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;
using towers::Saved;
using towers::Tower;

class TogetherCudaBigModel : public Together {
 protected:
  static bool near(const torch::Tensor& left, const torch::Tensor& right) {
    return torch::allclose(left.detach().cpu(), right.detach().cpu(), 1e-4, 1e-5);
  }
  /// Borders in both directions, and a residual connection over each.
  static DeviceMap mixed() {
    return {{"embedding", "cpu"}, {"blocks.0", 0}, {"blocks.1", "cpu"}, {"blocks.2", 0},
            {"blocks.3", "cpu"},  {"head", 0},     {"scale", "cpu"},    {"temperature", "cpu"}};
  }
};

TEST_F(TogetherCudaBigModel, TheGpuAndTheCpuComputeTogether) {
  const Saved saved;
  const auto model = accelerate::dispatch_model(saved.tower, mixed(), {.main_device = torch::kCPU});
  EXPECT_TRUE(saved.tower->head->weight.is_cuda());
  EXPECT_TRUE(saved.tower->embedding->weight.is_cpu());
  const torch::NoGradGuard no_grad;
  for (int pass = 0; pass < 3; ++pass) {
    const auto answer = model(saved.tokens);
    EXPECT_TRUE(answer.is_cpu()) << "back to where the tokens were";
    EXPECT_TRUE(near(answer, saved.answer));
  }
  EXPECT_TRUE(model(saved.tokens.cuda()).is_cuda());
}

TEST_F(TogetherCudaBigModel, GradientsAreThoseOfTheResidentModel) {
  const Saved saved;
  Tower spread = towers::empty_tower();
  DeviceMap map = mixed();
  map["blocks.1"] = accelerate::Place::disk();
  const auto model =
      accelerate::load_checkpoint_and_dispatch(spread, saved.checkpoint(), {.device_map = map, .main_device = torch::kCPU});
  model(saved.tokens).pow(2).mean().backward();
  saved.tower->forward(saved.tokens).pow(2).mean().backward();
  const auto expected = saved.tower->named_parameters();
  for (const auto& parameter : spread->named_parameters()) {
    EXPECT_EQ(parameter.value().grad().device(), parameter.value().device()) << parameter.key();
    EXPECT_TRUE(near(parameter.value().grad(), expected[parameter.key()].grad())) << parameter.key();
  }
}

TEST_F(TogetherCudaBigModel, TheCpuOffersItsWeightsToTheGpu) {
  const Saved saved;
  const auto model = accelerate::cpu_offload(saved.tower, {.main_device = torch::kCUDA});
  const torch::NoGradGuard no_grad;
  for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(near(model(saved.tokens), saved.answer));
  EXPECT_TRUE(accelerate::has_offloaded_params(*saved.tower));
  EXPECT_GT(model.offload_counts().loads, 0);
}

TEST_F(TogetherCudaBigModel, AGpuThatIsTooSmallForALayerIsAnError) {
  const Saved saved;
  expect_parts(message_of<accelerate::UsageError>(
                   [&] { accelerate::cpu_offload(saved.tower, {.main_device = torch::kCUDA, .offload_budget = 1000}); }),
               {"cuda:0", "1000 bytes", "offload_budget"});
  for (const auto& parameter : saved.tower->parameters()) EXPECT_TRUE(parameter.is_cpu());
}

TEST_F(TogetherCudaBigModel, ModelsThatTakeTurnsKeepTheirValues) {
  const Saved first(/*tied=*/true), second, third;
  auto [one, hook_of_one] = accelerate::cpu_offload_with_hook(first.tower, torch::kCUDA);
  auto [two, hook_of_two] = accelerate::cpu_offload_with_hook(second.tower, torch::kCUDA, hook_of_one);
  auto [three, hook_of_three] = accelerate::cpu_offload_with_hook(third.tower, {}, hook_of_two);
  const auto away = [](const auto& model) { return model->head->weight.is_cuda(); };
  const torch::NoGradGuard no_grad;
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(near(one(first.tokens), first.answer));
    EXPECT_TRUE(away(one));
    for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(near(two(second.tokens), second.answer));
    EXPECT_TRUE(away(two) && !away(one));
    EXPECT_TRUE(near(three(third.tokens), third.answer));
    EXPECT_TRUE(away(three) && !away(two));
    hook_of_three.offload();
    EXPECT_FALSE(away(three));
  }
  EXPECT_EQ(accelerate::find_tied_parameters(*one).size(), 1u) << "still tied";
}

TEST_F(TogetherCudaBigModel, ArgumentsAndResultsCrossToAModelOnTheGpu) {
  const Saved saved;
  const auto model = accelerate::dispatch_model(saved.tower, {{"", 0}});
  const torch::NoGradGuard no_grad;
  const auto answer = model(saved.tokens);
  EXPECT_TRUE(answer.is_cpu());
  EXPECT_TRUE(near(answer, saved.answer));
}

}  // namespace
