#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <thread>

#include "support/together.h"

namespace {

constexpr int kThreads = 3;

/// Runs `body(rank, group)` on threads that share a store, as an application with groups of its own would.
void with_groups(const std::function<void(int, c10::intrusive_ptr<c10d::ProcessGroup>)>& body, bool with_store = true) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kThreads; ++rank) {
    ranks.emplace_back([&, rank] {
      auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
      auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, kThreads, options);
      auto group = with_store ? c10::make_intrusive<c10d::ProcessGroup>(store, rank, kThreads)
                              : c10::make_intrusive<c10d::ProcessGroup>(rank, kThreads);
      group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
      group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
      body(rank, group);
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST(HandedInGroup, IsUsedAndNeverDestroyed) {
  with_groups([](int rank, c10::intrusive_ptr<c10d::ProcessGroup> group) {
    for (int round = 0; round < 2; ++round) {
      accelerate::Accelerator accelerator({.cpu = true, .process_group = group});
      EXPECT_EQ(accelerator.process_index(), rank);
      EXPECT_EQ(accelerator.num_processes(), kThreads);
      EXPECT_EQ(accelerator.distributed_type(), accelerate::DistributedType::multi_cpu);
      EXPECT_EQ(accelerator.reduce(torch::tensor({rank})).item<int>(), 3);
      EXPECT_EQ(accelerator.gather_object(std::vector{rank}), (std::vector{0, 1, 2}));
      accelerator.wait_for_everyone();
    }
    std::vector<at::Tensor> tensors = {torch::ones({1})};
    group->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0].item<int>(), kThreads) << "the application's group works after the accelerator is gone";
  });
}

TEST(HandedInGroup, ScopesWorkThroughItsStoreAlsoForTheNextAccelerator) {
  std::atomic<int> left = 0;
  with_groups([&](int rank, c10::intrusive_ptr<c10d::ProcessGroup> group) {
    for (int round = 0; round < 3; ++round) {
      accelerate::Accelerator accelerator({.cpu = true, .process_group = group, .timeout = std::chrono::seconds(60)});
      {
        auto first = accelerator.main_process_first();
        if (rank == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          EXPECT_EQ(left, kThreads * round) << "somebody did not wait";
        }
        ++left;
      }
      accelerator.wait_for_everyone();
    }
  });
}

TEST(HandedInGroup, ProcessesOfOneMachineAreCountedByItsName) {
  with_groups([](int rank, c10::intrusive_ptr<c10d::ProcessGroup> group) {
    accelerate::Accelerator accelerator({.cpu = true, .process_group = group});
    EXPECT_EQ(accelerator.local_process_index(), rank);
    EXPECT_EQ(accelerator.is_local_main_process(), rank == 0);
  });
}

TEST(HandedInGroup, WithoutAStoreAScopeSaysWhatItNeeds) {
  with_groups(
      [](int rank, c10::intrusive_ptr<c10d::ProcessGroup> group) {
        accelerate::Accelerator accelerator({.cpu = true, .process_group = group});
        EXPECT_THROW(accelerator.main_process_first(), accelerate::UsageError) << rank;
        accelerator.wait_for_everyone();
      },
      false);
}

}  // namespace
