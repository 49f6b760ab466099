#include <torch/torch.h>

#include <thread>

#include "support/error_text.h"
#include "support/together.h"

namespace {

using accelerate::DistributedError;
using accelerate::ProcessState;
using accelerate::Reduction;
using accelerate::UsageError;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

/// The ranks of the run that are in a group, as all of them tell.
std::vector<int> members(const ProcessState& group, int rank_in_run) {
  return accelerate::gather_object(group, std::vector{rank_in_run});
}

class Groups : public Together {
 protected:
  /// The ranks of the run with the color that `color_of` gives to this one.
  template <class ColorOf>
  static std::vector<int> expected(ColorOf color_of) {
    std::vector<int> ranks;
    for (int r = 0; r < world(); ++r) {
      if (color_of(r) == color_of(rank())) ranks.push_back(r);
    }
    return ranks;
  }
};

using TogetherGroups = Groups;

TEST_F(TogetherGroups, RanksOfOneColorFormAGroupInTheirOrder) {
  const auto halves = [](int r) { return r < world() / 2 ? 3 : -1; };
  const auto parity = [](int r) { return r % 2; };
  const auto one_alone = [](int r) { return r == world() - 1 ? 7 : 8; };
  const auto all = [](int) { return 0; };
  const auto each = [](int r) { return r; };
  for (const std::function<int(int)>& color_of : {std::function<int(int)>(halves), {parity}, {one_alone}, {all}, {each}}) {
    const auto group = state().split_group(color_of(rank()));
    const auto ranks = expected(color_of);
    EXPECT_EQ(members(group, rank()), ranks);
    EXPECT_EQ(group.num_processes(), static_cast<int>(ranks.size()));
    EXPECT_EQ(ranks[static_cast<size_t>(group.process_index())], rank());
    EXPECT_EQ(group.local_process_index(), group.process_index()) << "all are on this host";
    EXPECT_EQ(group.backend(), state().backend());
    EXPECT_EQ(group.device(), state().device());
    EXPECT_EQ(group.distributed_type(), state().distributed_type());
  }
  EXPECT_EQ(accelerator().reduce(torch::ones({1})).item<int>(), world()) << "the whole group is as good as before";
}

TEST_F(TogetherGroups, EveryCollectiveWorksInAGroup) {
  const auto group = state().split_group(rank() % 2);
  const int size = group.num_processes(), mine = group.process_index(), run_sum = [&] {
    int sum = 0;
    for (const int r : expected([](int r) { return r % 2; })) sum += r;
    return sum;
  }();
  EXPECT_EQ(accelerate::gather(group, torch::tensor({mine})).sum().item<int>(), size * (size - 1) / 2);
  EXPECT_EQ(accelerate::reduce(group, torch::tensor({rank()}), Reduction::sum).item<int>(), run_sum);
  EXPECT_EQ(accelerate::broadcast(group, torch::tensor({rank()}), size - 1).item<int>(), rank() % 2 + 2 * (size - 1));
  const auto rows = torch::arange(size, torch::kFloat);
  EXPECT_EQ(accelerate::reduce_scatter(group, rows).item<int>(), size * mine);
  EXPECT_TRUE(torch::equal(accelerate::all_to_all(group, torch::full({size}, rank())), torch::arange(size) * 2 + rank() % 2));
  EXPECT_EQ(accelerate::pad_across_processes(group, torch::ones({mine + 1})).size(0), size);
  std::vector<std::string> words = {mine == 0 ? "first" : "other"};
  accelerate::broadcast_object_list(group, words);
  EXPECT_EQ(words.front(), "first");
  EXPECT_EQ(accelerate::split_between_processes(group, std::vector<int>(8)).size(), 8 / static_cast<size_t>(size));
  { auto first = group.main_process_first(); }
  { auto first = group.local_main_process_first(); }
  accelerate::synchronize_rng_states(group, {accelerate::RngType::torch});
  group.wait_for_everyone();
}

TEST_F(TogetherGroups, AGroupIsSplitAgain) {
  const auto most = state().split_group(rank() == 0 ? 0 : 1);          // 0 | 1 2 3
  const auto last = most.split_group(most.is_last_process() ? 1 : 0);  // 0 | 1 2 | 3
  const auto turned = [](int r) { return r == 0 ? 0 : r == world() - 1 ? 1 : 2; };
  EXPECT_EQ(members(last, rank()), expected(turned));
  const auto again = last.split_group(0);
  EXPECT_EQ(members(again, rank()), expected(turned));
}

TEST_F(TogetherGroups, SeveralGroupsAreUsedAtOnceAlsoByThreads) {
  // As hybrid sharding does: a rank shards within its row and replicates along its column.
  const auto row = state().split_group(rank() / 2), column = state().split_group(rank() % 2);
  const auto calls = [](const ProcessState& group) {
    for (int i = 0; i < 20; ++i) {
      const auto sum = accelerate::reduce(group, torch::full({100}, i), Reduction::sum);
      EXPECT_EQ(sum[99].item<int>(), i * group.num_processes());
    }
  };
  std::thread other([&] { calls(row); });
  calls(column);
  other.join();
  EXPECT_EQ(accelerator().reduce(torch::ones({1})).item<int>(), world());
}

TEST_F(TogetherGroups, AGroupKeepsTheOneItWasSplitFromAlive) {
  auto whole = std::make_unique<ProcessState>(accelerate::ProcessStateOptions{.timeout = std::chrono::seconds(60)});
  auto group = std::make_unique<ProcessState>(whole->split_group(0));
  whole.reset();
  if (rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(members(*group, rank()).size(), static_cast<size_t>(world()));
  { auto first = group->main_process_first(); }
  const auto part = group->split_group(rank() % 2);
  group.reset();
  EXPECT_EQ(members(part, rank()), expected([](int r) { return r % 2; }));
}

TEST_F(TogetherGroups, AMistakeInOneGroupNamesItsRanksInTheRunAndLosesOnlyThatGroup) {
  const auto group = state().split_group(rank() == 0 ? 0 : 1);
  if (rank() > 0 && world() > 2) {
    const std::string error = message_of<DistributedError>(
        [&] { group.is_main_process() ? group.wait_for_everyone() : void(accelerate::gather(group, torch::ones({2}))); });
    const std::string mine = std::to_string(group.process_index());
    expect_parts(error, {"failed on rank " + mine + " of " + std::to_string(world() - 1) + " (rank " + std::to_string(rank()) +
                             " of the run): Call 1 is not the same on all ranks: wait_for_everyone",
                         "on rank 0 (rank 1 of the run), gather of float32[2]", "\n  - Rank 1 (rank 2 of the run): "});
    expect_parts(message_of<DistributedError>([&] { group.wait_for_everyone(); }), {"the process group is unusable since"});
  }
  EXPECT_EQ(accelerator().reduce(torch::ones({1})).item<int>(), world());
}

/// A tensor from each rank to the next one: rank 0 sends first, the others pass on what they have got.
torch::Tensor around_the_ring(const ProcessState& state, const torch::Tensor& mine) {
  const int size = state.num_processes(), rank = state.process_index();
  torch::Tensor got;
  if (rank == 0) accelerate::send(state, mine, 1);
  got = accelerate::recv(state, (rank + size - 1) % size);
  if (rank > 0) accelerate::send(state, mine, (rank + 1) % size);
  return got;
}

TEST_F(TogetherGroups, ATensorArrivesWithItsDtypeAndShape) {
  if (world() == 1) return;
  const int before = (rank() + world() - 1) % world();
  for (const auto dtype :
       {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kBool, torch::kByte, torch::kChar, torch::kShort,
        torch::kInt, torch::kLong, torch::kComplexFloat, torch::kComplexDouble, torch::kFloat8_e4m3fn, torch::kUInt16}) {
    const auto make = [&](int r) { return torch::full({r + 1, 2}, r % 2, torch::kFloat).to(dtype); };
    const auto got = around_the_ring(state(), make(rank()));
    EXPECT_EQ(got.scalar_type(), dtype);
    EXPECT_EQ(got.sizes(), make(before).sizes());
    EXPECT_TRUE(torch::equal(got.to(torch::kComplexDouble), make(before).to(torch::kComplexDouble))) << c10::toString(dtype);
  }
  EXPECT_EQ(around_the_ring(state(), torch::tensor(rank() + 0.5)).item<double>(), before + 0.5);
  EXPECT_EQ(around_the_ring(state(), torch::empty({rank(), 0, 3})).sizes(), (std::vector<int64_t>{before, 0, 3}));
  const auto turned = [](int r) { return (torch::arange(6) + r).reshape({2, 3}).t(); };
  EXPECT_TRUE(torch::equal(around_the_ring(state(), turned(rank())), turned(before)));
  const auto z = torch::complex(torch::ones({2}), torch::full({2}, 1.0f));
  EXPECT_TRUE(torch::equal(around_the_ring(state(), z.conj()), z.conj().clone()));
  const auto weight = around_the_ring(state(), torch::ones({1 << 20}, torch::requires_grad()));
  EXPECT_FALSE(weight.requires_grad());
  EXPECT_EQ(weight.sum().item<int>(), 1 << 20);
}

TEST_F(TogetherGroups, MessagesOfTwoRanksArriveInOrderBesideCollectivesAndThoseOfOthers) {
  if (world() == 1) return;
  const int last = world() - 1;
  std::thread beside([] {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(accelerator().reduce(torch::ones({1})).item<int>(), world());
  });
  for (int i = 0; i < 50; ++i) {
    if (rank() == 0) accelerator().send(torch::full({i % 3}, i), last);
    if (rank() != last) continue;
    const auto got = accelerator().recv(0);
    EXPECT_TRUE(torch::equal(got, torch::full({i % 3}, i)));
  }
  beside.join();
}

TEST_F(TogetherGroups, SeveralThreadsReceiveAtOnce) {
  const auto senders = state().split_group(rank() == 0 ? 0 : 1);
  if (rank() == 0) {
    std::vector<std::thread> receivers;
    for (int from = 1; from < world(); ++from)
      receivers.emplace_back([from] { EXPECT_EQ(accelerator().recv(from).item<int>(), from); });
    for (auto& receiver : receivers) receiver.join();
    return;
  }
  // The last rank first, whose receiver was the last to begin: none waits for another.
  for (int r = world() - 1; r > 0; --r) {
    if (r == rank()) accelerator().send(torch::tensor(rank()), 0);
    senders.wait_for_everyone();
  }
}

TEST_F(TogetherGroups, AGroupHasMessagesOfItsOwn) {
  const auto group = state().split_group(rank() % 2);
  if (group.num_processes() == 1) return;
  EXPECT_EQ(around_the_ring(group, torch::tensor(rank())).item<int>(), (rank() + 2) % (2 * group.num_processes()));
}

TEST_F(TogetherGroups, WhatCannotBeSentIsAnErrorBeforeAnythingIs) {
  const auto tensor = torch::ones({1});
  const std::string there = ": there are " + std::to_string(world()) + " processes";
  expect_parts(message_of<UsageError>([&] { accelerator().send(tensor, world()); }),
               {"send: to_process=" + std::to_string(world()) + " is out of range" + there});
  expect_parts(message_of<UsageError>([&] { accelerator().recv(-1); }), {"recv: from_process=-1 is out of range" + there});
  expect_parts(message_of<UsageError>([&] { accelerator().send(tensor, rank()); }), {"is this process itself"});
  expect_parts(message_of<UsageError>([&] { accelerator().recv(rank()); }), {"is this process itself"});
  if (world() == 1) return;
  const int other = (rank() + 1) % world();
  expect_parts(message_of<UsageError>([&] { accelerator().send(torch::Tensor(), other); }), {"an undefined tensor"});
  expect_parts(message_of<UsageError>([&] { accelerator().send(torch::eye(2).to_sparse(), other); }), {"sparse"});
  expect_parts(message_of<UsageError>([&] { accelerator().send(torch::empty({1}, torch::kMeta), other); }), {"meta"});
  expect_parts(message_of<UsageError>([&] { accelerator().send(torch::ones(std::vector<int64_t>(65, 1)), other); }),
               {"up to 64 dimensions and was given one of 65"});
  EXPECT_EQ(accelerator().reduce(torch::ones({1})).item<int>(), world());
}

ProcessState lone_process() {
  return ProcessState({.cpu = true, .environment = [](const std::string&) { return std::nullopt; }});
}

TEST(LoneProcess, IsAGroupOfItself) {
  const auto group = lone_process().split_group(5).split_group(-1);
  EXPECT_EQ(group.num_processes(), 1);
  EXPECT_EQ(accelerate::reduce(group, torch::ones({1}), Reduction::sum).item<int>(), 1);
  expect_parts(message_of<UsageError>([&] { accelerate::send(group, torch::ones({1}), 0); }), {"is this process itself"});
  expect_parts(message_of<UsageError>([&] { accelerate::recv(group, 1); }), {"recv: from_process=1 is out of range"});
}

TEST(LoneProcess, RefusesToDivideWhatSeveralProcessesCannot) {
  for (const char* debug : {"false", "true"}) {
    const ProcessState state({.cpu = true, .environment = [debug](const std::string& name) {
                                return name == "ACCELERATE_DEBUG_MODE" ? std::optional<std::string>(debug) : std::nullopt;
                              }});
    const auto scalar = torch::tensor(1.0);
    const std::string why = " takes dense tensors and was given float32[], which has no first dimension to divide among the 1 ";
    expect_parts(message_of<UsageError>([&] { accelerate::reduce_scatter(state, scalar); }), {"reduce_scatter" + why});
    expect_parts(message_of<UsageError>([&] { accelerate::all_to_all(state, scalar); }), {"all_to_all" + why});
    expect_parts(message_of<UsageError>([&] { accelerate::all_to_all(state, torch::Tensor()); }), {"an undefined tensor"});
    EXPECT_EQ(accelerate::reduce_scatter(state, torch::ones({3})).size(0), 3);
    EXPECT_EQ(accelerate::all_to_all(state, torch::ones({3})).size(0), 3);
  }
}

}  // namespace
