// What a CUDA device adds. Run by one process on one GPU, where there is one: NCCL beside gloo in one group.
#include <torch/torch.h>

#include "support/together.h"

namespace {

class TogetherCuda : public Together {
 protected:
  static torch::TensorOptions on_device() { return torch::TensorOptions().device(accelerator().device()); }
};

TEST_F(TogetherCuda, TheProcessIsOnTheGpuWithNccl) {
  EXPECT_EQ(accelerator().device(), torch::Device(torch::kCUDA, 0));
  EXPECT_EQ(accelerator().distributed_type(), accelerate::DistributedType::multi_gpu);
  EXPECT_EQ(state().backend(), "nccl");
  EXPECT_EQ(to_string(state()),
            "Distributed environment: DistributedType.MULTI_GPU  Backend: nccl\nNum processes: 1\nProcess index: 0\nLocal "
            "process index: 0\nDevice: cuda:0\n");
}

TEST_F(TogetherCuda, EveryDtypeIsGatheredAndBroadcastOnTheDevice) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kBool, torch::kByte,
                           torch::kChar, torch::kShort, torch::kInt, torch::kLong, torch::kComplexFloat, torch::kFloat8_e4m3fn}) {
    const auto mine = torch::ones({2, 3}, on_device()).to(dtype).t();
    for (const auto& got : {accelerator().gather(mine), accelerator().broadcast(mine)}) {
      EXPECT_EQ(got.device(), accelerator().device());
      EXPECT_EQ(got.scalar_type(), dtype);
      EXPECT_TRUE(torch::equal(got.to(torch::kComplexDouble), mine.to(torch::kComplexDouble))) << c10::toString(dtype);
    }
  }
  EXPECT_EQ(accelerator().gather(torch::tensor(1.5, on_device())).sizes(), std::vector<int64_t>{1});
  EXPECT_EQ(accelerator().gather(torch::empty({0, 2}, on_device())).sizes(), (std::vector<int64_t>{0, 2}));
}

TEST_F(TogetherCuda, EveryDtypeThatCanBeAddedIsReducedOnTheDevice) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kBool, torch::kByte,
                           torch::kChar, torch::kShort, torch::kInt, torch::kLong, torch::kComplexFloat}) {
    const auto got = accelerator().reduce(torch::ones({3}, on_device()).to(dtype));
    EXPECT_EQ(got.device(), accelerator().device());
    EXPECT_EQ(torch::real(got[0].to(torch::kComplexDouble)).item<double>(), world()) << c10::toString(dtype);
  }
  EXPECT_THROW(accelerator().reduce(torch::ones({3}, on_device()).to(torch::kFloat8_e5m2)), accelerate::UsageError);
}

TEST_F(TogetherCuda, DataOnBothDevicesTravelsInOneCall) {
  const auto got = accelerator().gather(std::pair(torch::ones({2}, on_device()), torch::ones({2})));
  EXPECT_TRUE(got.first.is_cuda());
  EXPECT_TRUE(got.second.is_cpu());
  const auto padded = accelerator().pad_across_processes(torch::ones({2, 3}, on_device()), {.dim = 1});
  EXPECT_TRUE(padded.is_cuda());
}

TEST_F(TogetherCuda, ObjectsCarryTensorsFromTheDevice) {
  const auto all = accelerator().gather_object(std::vector{torch::ones({2}, on_device())});
  EXPECT_EQ(all[0].sum().item<double>(), 2);
}

TEST_F(TogetherCuda, APreparedModuleIsOnTheDevice) {
  torch::nn::Linear net(3, 2);
  auto model = accelerator().prepare(net);
  EXPECT_EQ(net->weight.device(), accelerator().device());
  torch::NoGradGuard no_grad;
  EXPECT_TRUE(model(torch::ones({1, 3}, on_device())).is_cuda());
}

TEST_F(TogetherCuda, WeightsGoToAFileAndBackToTheDevice) {
  TemporaryFolder folder;
  const auto weight = torch::randn({64, 3}, on_device());
  accelerate::save_file({{"w", weight}}, folder / "w.safetensors");
  const auto loaded = accelerate::load_file(folder / "w.safetensors", accelerator().device());
  EXPECT_TRUE(loaded.at("w").is_cuda());
  EXPECT_TRUE(torch::equal(loaded.at("w"), weight));
}

TEST_F(TogetherCuda, SeedsAndRandomStatesReachTheDevice) {
  accelerate::set_seed(7);
  const auto first = torch::rand({4}, on_device());
  accelerate::set_seed(7);
  EXPECT_TRUE(torch::equal(torch::rand({4}, on_device()), first));
  accelerator().synchronize_rng_states({accelerate::RngType::torch, accelerate::RngType::cuda});
}

TEST_F(TogetherCuda, NestedDataIsSentToTheDevice) {
  const auto sent =
      accelerate::send_to_device(std::tuple(torch::ones({2}), std::vector{torch::zeros({1})}), accelerator().device(), true);
  EXPECT_TRUE(std::get<0>(sent).is_cuda());
  EXPECT_TRUE(std::get<1>(sent)[0].is_cuda());
}

TEST_F(TogetherCuda, ExecutionAndTriggersWorkAsOnTheCpu) {
  accelerator().wait_for_everyone();
  accelerator().set_trigger();
  EXPECT_TRUE(accelerator().check_trigger());
  auto first = accelerator().main_process_first();
  EXPECT_EQ(accelerator().on_main_process([] { return 1; })(), std::optional<int>(1));
}

}  // namespace
