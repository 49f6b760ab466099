// Models that are spread over devices. The meta device stands for a second one: shapes and places tell what ran where.
#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "big_model/ladder.h"
#include "support/together.h"

using accelerate::DeviceMap;
using accelerate::Place;
using ladders::Ladder;

namespace {

/// The lower part on the CPU, the upper without elements.
const DeviceMap kCpuAndMeta = {{"", "cpu"}, {"rungs.2", "meta"}, {"rungs.3", "meta"}, {"head", "meta"}};
const std::vector<c10::Device> kCrossedOnce = {torch::kCPU, torch::kCPU, torch::kMeta, torch::kMeta};

TEST(SeveralDevices, ActivationsCrossABorderOnceAndStayBehindIt) {
  Ladder ladder;
  const auto model = accelerate::dispatch_model(ladder, kCpuAndMeta, {.main_device = torch::kCPU});
  const auto result = model(torch::ones({2, 4}));
  EXPECT_TRUE(result.is_meta());
  EXPECT_EQ(result.sizes(), (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(ladder->seen, kCrossedOnce);
}

TEST(SeveralDevices, OffloadedWeightsTakePart) {
  const TemporaryFolder folder;
  Ladder ladder;
  accelerate::save_file(accelerate::state_dict(*ladder), folder / "ladder.safetensors");
  DeviceMap map = kCpuAndMeta;
  for (const char* name : {"rungs.0", "rungs.1.down", "temperature"}) map[name] = Place::disk();
  const auto model = accelerate::load_checkpoint_and_dispatch(ladder, folder / "ladder.safetensors",
                                                              {.device_map = map, .main_device = torch::kCPU});
  for (int pass = 0; pass < 2; ++pass) {
    const auto x = torch::ones({2, 4}, torch::requires_grad());
    EXPECT_EQ(model(x).sizes(), (std::vector<int64_t>{2, 5}));
    EXPECT_EQ(ladder->seen, kCrossedOnce);
  }
  EXPECT_GT(model.offload_counts().loads, 0);
}

TEST(SeveralDevices, ThreadsCallAtOnceAndAnErrorEndsOneCallAlone) {
  Ladder ladder;
  const auto model = accelerate::dispatch_model(ladder, kCpuAndMeta, {.main_device = torch::kCPU});
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int pass = 0; pass < 10; ++pass) {
        if (i == 0) {
          EXPECT_ANY_THROW(model(torch::ones({2, 3})));  // of another width
        } else {
          right += model(torch::ones({2, 4})).is_meta();
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 30);
  EXPECT_EQ(ladder->seen, kCrossedOnce);
}

TEST(SeveralDevices, ADispatchMayBeRepeatedAndTakenBack) {
  Ladder ladder;
  const auto x = torch::randn({2, 4});
  const torch::NoGradGuard no_grad;
  const auto answer = ladder->forward(x);
  const TemporaryFolder folder;
  accelerate::save_file(accelerate::state_dict(*ladder), folder / "ladder.safetensors");
  const void* bytes = ladder->rungs->ptr<ladders::RungImpl>(0)->up->weight.data_ptr();
  for (int time = 0; time < 2; ++time) {
    const auto model = accelerate::dispatch_model(ladder, kCpuAndMeta, {.main_device = torch::kCPU});
    EXPECT_TRUE(model(x).is_meta());
    EXPECT_EQ(ladder->rungs->ptr<ladders::RungImpl>(0)->up->weight.data_ptr(), bytes) << "nothing is copied";
  }
  accelerate::load_checkpoint_in_model(ladder, folder / "ladder.safetensors", {.device_map = "cpu"});
  EXPECT_TRUE(torch::equal(ladder->forward(x), answer)) << "the module by itself";
}

TEST(SeveralDevices, WithoutAMapWeightsComeToWhereTheModelIs) {
  const TemporaryFolder folder;
  Ladder ladder;
  const auto expected = torch::tensor({4.0F, 3.0F, 2.0F, 1.0F});
  auto weights = accelerate::state_dict(*ladder);
  weights["shift"] = expected;
  accelerate::save_file(weights, folder / "ladder.safetensors");
  accelerate::load_checkpoint_in_model(ladder, folder / "ladder.safetensors");
  EXPECT_TRUE(torch::equal(ladder->shift, expected));
}

}  // namespace
