// Models that live on the CPU as a whole. With values on a GPU: cuda_dispatch_test.cpp.
#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "big_model/ladder.h"
#include "big_model/towers.h"

using ladders::Ladder;
using towers::Saved;

namespace {

TEST(CpuOffload, OnTheCpuIsTheModelItself) {
  const Saved saved;
  const auto model = accelerate::cpu_offload(saved.tower);
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(model(saved.tokens), saved.answer));
  EXPECT_FALSE(accelerate::has_offloaded_params(*saved.tower));
}

TEST(CpuOffloadWithHook, AModelMovesWhenItIsCalledAndNotBefore) {
  Ladder ladder;
  const auto& first = ladder->rungs->ptr<ladders::RungImpl>(0)->up;
  ladder->rungs->ptr<ladders::RungImpl>(1)->up->weight.set_data(first->weight);
  auto [model, hook] = accelerate::cpu_offload_with_hook(ladder, torch::kMeta);
  EXPECT_TRUE(model->head->weight.is_cpu());
  const auto x = torch::ones({2, 4});
  EXPECT_TRUE(model(x).is_meta()) << "results stay there";
  for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.is_meta());
  EXPECT_TRUE(model(x).is_meta()) << "arguments come along again";
  EXPECT_EQ(accelerate::find_tied_parameters(*model).size(), 1u);
}

TEST(CpuOffloadWithHook, TheModelBeforeIsSentHomeFirst) {
  const Ladder one, two;
  auto [first, hook_of_first] = accelerate::cpu_offload_with_hook(one, torch::kMeta);
  auto [second, hook_of_second] = accelerate::cpu_offload_with_hook(two, torch::kMeta, hook_of_first);
  const auto x = torch::ones({2, 4});
  EXPECT_TRUE(second(x).is_meta()) << "the first one is at home";
  EXPECT_TRUE(first->head->weight.is_cpu());
  first(x);
  // It has lost its elements there, so that it can be seen to be asked for them.
  EXPECT_THROW(second(x), accelerate::CheckpointError);
}

TEST(CpuOffloadWithHook, ARemovedHookMovesNothing) {
  const Saved saved;
  auto [model, hook] = accelerate::cpu_offload_with_hook(saved.tower, torch::kMeta);
  hook.remove();
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(model(saved.tokens), saved.answer));
  EXPECT_TRUE(model->head->weight.is_cpu());
  hook.offload();
  EXPECT_THROW(accelerate::UserCpuOffloadHook().offload(), accelerate::UsageError);
}

TEST(CpuOffloadWithHook, AChainOfThreeOnTheCpuGivesWhatTheModelsGive) {
  std::vector<torch::nn::Linear> nets = {torch::nn::Linear(3, 3), torch::nn::Linear(3, 3), torch::nn::Linear(3, 3)};
  auto [first, hook_of_first] = accelerate::cpu_offload_with_hook(nets[0], torch::kCPU);
  auto [second, hook_of_second] = accelerate::cpu_offload_with_hook(nets[1], torch::kCPU, hook_of_first);
  auto [third, hook_of_third] = accelerate::cpu_offload_with_hook(nets[2], torch::kCPU, hook_of_second);
  const auto x = torch::randn({2, 3});
  EXPECT_TRUE(torch::equal(third(second(first(x))), nets[2](nets[1](nets[0](x)))));
  hook_of_third.offload();
}

}  // namespace
