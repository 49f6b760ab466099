#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <thread>

#include "distributed/communicator.h"
#include "distributed/peer_process.h"
#include "launch/failure_notes.h"
#include "support/error_text.h"
#include "support/together.h"
#include "transport/c10d_transport.h"

namespace {

using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

constexpr int kThreads = 3;

/// Of an application that has written a backend with what it needed.
struct WithoutAllToAll : c10d::ProcessGroupGloo {
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                                               std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    return c10d::Backend::alltoall_base(output, input, output_sizes, input_sizes, options);
  }
};

/// Runs `body(rank, group)` on threads that share a store, as an application with groups of its own would.
template <class Gloo = c10d::ProcessGroupGloo>
void with_groups(const std::function<void(int, c10::intrusive_ptr<c10d::ProcessGroup>)>& body, bool with_store = true) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kThreads; ++rank) {
    ranks.emplace_back([&, rank] {
      auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
      auto gloo = c10::make_intrusive<Gloo>(store, rank, kThreads, options);
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

TEST(HandedInGroup, IsSplitThroughItsStore) {
  with_groups([](int rank, c10::intrusive_ptr<c10d::ProcessGroup> group) {
    const accelerate::ProcessState state({.cpu = true, .process_group = group, .timeout = std::chrono::seconds(60)});
    for (int round = 0; round < 2; ++round) {
      const auto part = state.split_group(rank == 1 ? 1 : 0);
      EXPECT_EQ(accelerate::gather_object(part, std::vector{rank}), rank == 1 ? std::vector{1} : (std::vector{0, 2}));
    }
  });
}

TEST(HandedInGroup, WithoutAStoreItCannotBeSplitAndSaysWhy) {
  with_groups(
      [](int, c10::intrusive_ptr<c10d::ProcessGroup> group) {
        const accelerate::ProcessState state({.cpu = true, .process_group = group});
        expect_parts(message_of<accelerate::UsageError>([&] { state.split_group(0); }),
                     {"split_group connects the ranks of a new group through a store, but the given process group has none"});
        state.wait_for_everyone();
      },
      false);
}

accelerate::detail::GroupParts borrowed(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  accelerate::detail::GroupParts parts;
  parts.transport = std::make_unique<accelerate::detail::C10dTransport>(group);
  parts.owned = false;
  parts.timeout = std::chrono::seconds(60);
  return parts;
}

TEST(HandedInGroup, ABackendThatCannotCompareBetweenHostsIsUsedWithoutThat) {
  with_groups<WithoutAllToAll>([](int rank, c10::intrusive_ptr<c10d::ProcessGroup> group) {
    const auto here = std::source_location::current();
    accelerate::detail::Communicator peers(borrowed(group));
    peers.watch("host " + std::to_string(rank), {}, here);
    at::Tensor mine = torch::full({1}, rank), all = torch::empty({kThreads}, mine.options());
    const accelerate::detail::Given given{.tensor = &mine};
    peers.all_gather(all, mine, "gather", here, &given);
    EXPECT_TRUE(all.equal(torch::arange(kThreads)));
  });
}

TEST(HandedInGroup, AProgramWhoseNotesCannotBeReadIsRefusedWhenItJoins) {
  with_groups([](int rank, c10::intrusive_ptr<c10d::ProcessGroup> group) {
    const auto here = std::source_location::current();
    accelerate::detail::Communicator peers(borrowed(group));
    if (rank == 1) {
      auto card = accelerate::detail::ProcessCard::of_this_process("host", -1);
      ++card.layout;
      peers.all_gather_bytes({reinterpret_cast<const char*>(&card), sizeof(card)}, "joining", here);
      return;
    }
    expect_parts(message_of<accelerate::DistributedError>([&] { peers.watch("host", {}, here); }),
                 {"a peer uses another version of this library"});
  });
}

TEST(HandedInGroup, WhatFailedBeforeAGroupWasMadeIsNotHeldAgainstItsRank) {
  const accelerate::detail::FailureNotes notes;
  ::setenv(accelerate::detail::kFailureNotesVariable, notes.place_of(0).c_str(), 1);
  accelerate::detail::leave_failure_note(accelerate::detail::FailureNote::own);
  EXPECT_EQ(notes.of(0), accelerate::detail::FailureNote::own);
  with_groups([](int, c10::intrusive_ptr<c10d::ProcessGroup> group) {
    const accelerate::Accelerator accelerator({.cpu = true, .process_group = group});
  });
  EXPECT_EQ(notes.of(0), accelerate::detail::FailureNote::none);
  ::unsetenv(accelerate::detail::kFailureNotesVariable);
}

}  // namespace
