#include <accelerate/core/error.h>
#include <accelerate/data/batch_sampler.h>
#include <accelerate/data/prepared_loader.h>
#include <accelerate/data/random_sampler.h>
#include <accelerate/data/tensor_dataset.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <list>
#include <set>

#include "data/collect.h"

namespace {

using accelerate::ActiveLoaders;
using accelerate::DataLoader;
using accelerate::DataLoaderConfiguration;
using accelerate::DataLoaderOptions;
using accelerate::LoaderPreparation;
using accelerate::UsageError;
using collected::batches_of;
using collected::Lists;
using collected::stream_up_to;
using collected::up_to;

struct EpochStream {
  int64_t epoch = -1;
  std::vector<int64_t> numbers = {0, 1, 2, 3, 4, 5};
  void set_epoch(int64_t n) {
    for (auto& number : numbers) number += (n - std::max<int64_t>(epoch, 0)) * 100;
    epoch = n;
  }
  size_t size() const { return numbers.size(); }
  auto begin() const { return numbers.begin(); }
  auto end() const { return numbers.end(); }
};

/// Each batch back to front.
struct TurnedBatches : accelerate::SamplerBatches {
  using SamplerBatches::SamplerBatches;
  accelerate::Source<accelerate::Indices> batches() override {
    return [next = SamplerBatches::batches()]() mutable {
      auto batch = next();
      if (batch) std::reverse(batch->begin(), batch->end());
      return batch;
    };
  }
};
}  // namespace

class PreparedLoader : public ::testing::Test {
 protected:
  /// Process `index` of `processes`, without the others.
  LoaderPreparation one_of(int processes, int index, DataLoaderConfiguration configuration = {}) {
    return {.state = state,
            .active_loaders = active,
            .configuration = configuration,
            .put_on_device = false,
            .num_processes = processes,
            .process_index = index};
  }
  LoaderPreparation alone(DataLoaderConfiguration configuration = {}) {
    return {.state = state, .active_loaders = active, .configuration = configuration};
  }
  accelerate::ProcessState state{{.cpu = true, .environment = [](const std::string&) { return std::nullopt; }}};
  std::shared_ptr<ActiveLoaders> active = std::make_shared<ActiveLoaders>();
};

TEST_F(PreparedLoader, EveryProcessGetsItsBatches) {
  const DataLoader loader(up_to(22), {.batch_size = 3});
  EXPECT_EQ(batches_of(prepare_data_loader(loader, one_of(2, 0))), (Lists{{0, 1, 2}, {6, 7, 8}, {12, 13, 14}, {18, 19, 20}}));
  EXPECT_EQ(batches_of(prepare_data_loader(loader, one_of(2, 1))), (Lists{{3, 4, 5}, {9, 10, 11}, {15, 16, 17}, {21, 0, 1}}));
  EXPECT_EQ(batches_of(prepare_data_loader(loader, one_of(2, 1, {.even_batches = false}))).back(), (std::vector<int64_t>{21}));
  const DataLoader four(up_to(10), {.batch_size = 4});
  EXPECT_EQ(batches_of(prepare_data_loader(four, one_of(2, 1, {.split_batches = true}))), (Lists{{2, 3}, {6, 7}, {0, 1}}));
  EXPECT_EQ(batches_of(prepare_data_loader(loader, alone())), batches_of(loader));
}

TEST_F(PreparedLoader, EveryProcessReadsItsPartOfAStream) {
  const DataLoader loader(stream_up_to(9), {.batch_size = 2});
  EXPECT_EQ(batches_of(prepare_data_loader(loader, one_of(2, 0))), (Lists{{0, 1}, {4, 5}, {8, 0}}));
  EXPECT_EQ(batches_of(prepare_data_loader(loader, one_of(2, 1))), (Lists{{2, 3}, {6, 7}, {1, 2}}));
  EXPECT_EQ(batches_of(prepare_data_loader(loader, one_of(2, 1, {.split_batches = true}))), (Lists{{1}, {3}, {5}, {7}, {0}}));
  const DataLoader workers(stream_up_to(9), {.batch_size = 2, .num_workers = 2});
  EXPECT_EQ(batches_of(prepare_data_loader(workers, one_of(2, 1))), (Lists{{2, 3}, {6, 7}, {1, 2}}));
}

TEST_F(PreparedLoader, TheLastBatchIsKnownWhileItIsInHand) {
  for (const int workers : {0, 2}) {
    auto loader = prepare_data_loader(DataLoader(up_to(10), {.batch_size = 4, .num_workers = workers}), alone());
    std::vector<bool> ends;
    EXPECT_FALSE(active->in_dataloader());
    for (auto& batch : loader) {
      static_cast<void>(batch);
      EXPECT_TRUE(active->in_dataloader());
      EXPECT_EQ(active->remainder(), 2);
      EXPECT_EQ(active->end_of_dataloader(), loader.end_of_dataloader());
      ends.push_back(loader.end_of_dataloader());
    }
    EXPECT_EQ(ends, (std::vector<bool>{false, false, true}));
    EXPECT_FALSE(active->in_dataloader());
    EXPECT_EQ(loader.iteration(), 1);
    EXPECT_EQ(loader.remainder(), 2);
  }
}

TEST_F(PreparedLoader, LeavingEarlyLeavesNothingBehindAndIsNoEpoch) {
  auto loader = prepare_data_loader(DataLoader(up_to(10), {.batch_size = 4}), alone());
  for (auto& batch : loader) {
    if (batch[0].item<int64_t>() == 4) break;
  }
  EXPECT_FALSE(active->in_dataloader());
  EXPECT_EQ(loader.iteration(), 0);
  try {
    for (auto& batch : loader) {
      static_cast<void>(batch);
      throw std::runtime_error("out");
    }
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(active->in_dataloader());
  EXPECT_EQ(batches_of(loader).size(), 3u);
}

TEST_F(PreparedLoader, AFailureEndsThePassAndIsNoEpoch) {
  const auto unreadable = [](std::vector<int64_t> samples) {
    if (samples.front() == 4) throw std::runtime_error("it is broken");
    return torch::tensor(samples);
  };
  for (const int workers : {0, 2}) {
    const auto loader =
        prepare_data_loader(DataLoader(up_to(10), unreadable, {.batch_size = 2, .num_workers = workers}), alone());
    auto pass = loader.begin();
    EXPECT_THROW(
        {
          while (pass != loader.end()) ++pass;
        },
        accelerate::Error);
    ++pass;
    EXPECT_TRUE(pass == loader.end());
    EXPECT_EQ(loader.iteration(), 0);
    EXPECT_FALSE(active->in_dataloader());
  }
}

TEST_F(PreparedLoader, TheInnermostLoopIsTheOneThatCounts) {
  auto outer = prepare_data_loader(DataLoader(up_to(2)), alone());
  auto inner = prepare_data_loader(DataLoader(up_to(3), {.batch_size = 2}), alone());
  for (auto& one : outer) {
    EXPECT_EQ(active->end_of_dataloader(), one.item<int64_t>() == 1);
    for (auto& two : inner) EXPECT_EQ(active->end_of_dataloader(), two.size(0) == 1);
    EXPECT_EQ(active->end_of_dataloader(), one.item<int64_t>() == 1);
    for (auto& again : outer) {
      static_cast<void>(again);
      break;
    }
    EXPECT_EQ(active->end_of_dataloader(), one.item<int64_t>() == 1);
  }
  EXPECT_FALSE(active->in_dataloader());
}

TEST_F(PreparedLoader, ALoaderWithoutBatchesGivesNoneAndCountsNoEpoch) {
  auto loader = prepare_data_loader(DataLoader(up_to(2), {.batch_size = 4, .drop_last = true}), alone());
  EXPECT_EQ(batches_of(loader), Lists{});
  EXPECT_EQ(loader.iteration(), 0);
  EXPECT_FALSE(active->in_dataloader());
}

TEST_F(PreparedLoader, RemaindersAreThoseOfPython) {
  const auto remainder = [&](const auto& loader, const LoaderPreparation& preparation) {
    auto ours = prepare_data_loader(loader, preparation);
    batches_of(ours);
    return ours.remainder();
  };
  EXPECT_EQ(remainder(DataLoader(up_to(10), {.batch_size = 4}), one_of(2, 0)), 2);
  EXPECT_EQ(remainder(DataLoader(up_to(10), {.batch_size = 4}), one_of(2, 0, {.split_batches = true})), 2);
  EXPECT_EQ(remainder(DataLoader(up_to(16), {.batch_size = 4}), one_of(2, 0)), 0);
  EXPECT_EQ(remainder(DataLoader(up_to(10), {.batch_size = 4, .drop_last = true}), one_of(2, 0)), -1);
  EXPECT_EQ(remainder(DataLoader(stream_up_to(10), {.batch_size = 4}), one_of(2, 0)), 0) << "the repetitions stay, as in Python";
  EXPECT_EQ(remainder(accelerate::skip_first_batches(DataLoader(up_to(10), {.batch_size = 4}), 1), alone()), -1);
  // One process that dispatches to itself: the rows of the last batch.
  EXPECT_EQ(remainder(DataLoader(stream_up_to(10), {.batch_size = 4}), alone()), 2);
}

TEST_F(PreparedLoader, TheRemainderIsThatOfTheSamplesThatAreVisited) {
  const auto remainder = [&](const DataLoaderOptions& options) {
    auto ours = prepare_data_loader(DataLoader(up_to(10), options), one_of(2, 0));
    batches_of(ours);
    return ours.remainder();
  };
  const auto in_order = std::make_shared<accelerate::SequentialSampler>(10);
  const accelerate::Indices some = {0, 2, 4, 5, 6, 8, 9};
  EXPECT_EQ(remainder({.batch_size = 2, .sampler = std::make_shared<accelerate::SubsetRandomSampler>(some)}), 3);
  EXPECT_EQ(remainder({.batch_size = 2,
                       .sampler = std::make_shared<accelerate::WeightedRandomSampler>(std::vector<double>(10, 1), 13)}),
            1);
  const auto batches = [&](bool drop_last) {
    return std::make_shared<accelerate::SamplerBatches>(in_order,
                                                        accelerate::BatchOptions{.batch_size = 4, .drop_last = drop_last});
  };
  EXPECT_EQ(remainder({.batch_sampler = batches(false)}), 2);
  EXPECT_EQ(remainder({.batch_sampler = batches(true)}), -1) << "nothing was filled up";
  // Batches of the user's own: all samples where they can be, else nobody knows.
  using collected::GivenBatches;
  EXPECT_EQ(remainder({.batch_sampler = std::make_shared<GivenBatches>(Lists{{9, 8, 7, 6}, {5, 4, 3, 2}, {1, 0}}, false, 4)}), 2);
  EXPECT_EQ(remainder({.batch_sampler = std::make_shared<GivenBatches>(Lists{{9, 8, 7, 6}, {5, 4, 3, 2}}, false, 4)}), -1);
}

TEST_F(PreparedLoader, SizesAreThoseOfPython) {
  const auto shard = prepare_data_loader(DataLoader(up_to(22), {.batch_size = 3}), one_of(2, 0));
  EXPECT_EQ(shard.size(), 4);
  EXPECT_EQ(shard.batch_size(), 3);
  EXPECT_EQ(shard.total_batch_size(), 6);
  EXPECT_EQ(shard.total_dataset_length(), 22);
  const auto skipped = accelerate::skip_first_batches(shard, 1);
  EXPECT_EQ(skipped.size(), 3);
  EXPECT_THROW(skipped.total_batch_size(), UsageError);
  const auto stream = prepare_data_loader(DataLoader(stream_up_to(24), {.batch_size = 9}), one_of(3, 0, {.split_batches = true}));
  EXPECT_EQ(stream.size(), 3);
  EXPECT_EQ(stream.total_batch_size(), 3);
  EXPECT_EQ(stream.total_dataset_length(), 9);
}

TEST_F(PreparedLoader, WhatCannotBeSharedOutIsAnError) {
  const DataLoader three(up_to(10), {.batch_size = 3});
  EXPECT_THROW(prepare_data_loader(three, one_of(2, 0, {.split_batches = true})), UsageError);
  EXPECT_THROW(prepare_data_loader(DataLoader(stream_up_to(10), {.batch_size = 3}), one_of(2, 0, {.split_batches = true})),
               UsageError);
  EXPECT_THROW(prepare_data_loader(DataLoader(stream_up_to(10)), one_of(2, 0, {.split_batches = true})), UsageError);
  EXPECT_THROW(prepare_data_loader(DataLoader(up_to(10), {.batch_size = {}}), one_of(2, 0)), UsageError);
  EXPECT_THROW(prepare_data_loader(three, one_of(1, 0, {.dispatch_batches = true})), UsageError) << "without device placement";
}

TEST_F(PreparedLoader, EvenBatchesCanBeTurnedOffForAWhile) {
  auto loader = prepare_data_loader(DataLoader(up_to(5), {.batch_size = 2}), one_of(2, 1));
  EXPECT_EQ(batches_of(loader), (Lists{{2, 3}, {1, 2}}));
  EXPECT_EQ(loader.set_even_batches(false), true);
  EXPECT_EQ(batches_of(loader), (Lists{{2, 3}}));
  EXPECT_EQ(accelerate::skip_first_batches(loader, 1).set_even_batches(true), false);
  EXPECT_EQ(batches_of(loader), (Lists{{2, 3}, {1, 2}}));
  EXPECT_EQ(prepare_data_loader(DataLoader(stream_up_to(5)), one_of(2, 1)).set_even_batches(false), std::nullopt);
}

TEST_F(PreparedLoader, PreparingTwiceIsPreparingOnce) {
  const auto once = prepare_data_loader(DataLoader(up_to(8), {.batch_size = 2}), one_of(2, 1));
  const auto twice = prepare_data_loader(once, one_of(2, 1));
  EXPECT_TRUE(twice.prepared());
  EXPECT_EQ(batches_of(twice), (Lists{{2, 3}, {6, 7}}));
}

TEST_F(PreparedLoader, SkippedBatchesAreOfTheSameEpoch) {
  auto loader = prepare_data_loader(DataLoader(up_to(12), {.batch_size = 2, .shuffle = true}),
                                    one_of(2, 1, {.use_seedable_sampler = true, .data_seed = 5}));
  const auto first = batches_of(loader);
  loader.set_epoch(0);
  batches_of(loader);
  const auto rest = batches_of(accelerate::skip_first_batches(loader, 1));
  loader.set_epoch(1);
  const auto second = batches_of(loader);
  EXPECT_NE(first, second);
  EXPECT_EQ(rest, (Lists{second[1], second[2]}));
  const auto stream = prepare_data_loader(DataLoader(stream_up_to(10), {.batch_size = 2}), one_of(2, 0));
  EXPECT_EQ(batches_of(accelerate::skip_first_batches(stream, 1)), (Lists{{4, 5}, {8, 9}}));
}

TEST_F(PreparedLoader, ALoaderThatSkipsCanBePreparedToo) {
  const DataLoader loader(up_to(10), {.batch_size = 2, .shuffle = true});
  const DataLoaderConfiguration seeded{.use_seedable_sampler = true, .data_seed = 3};
  const auto all = batches_of(prepare_data_loader(loader, alone(seeded)));
  const auto rest = batches_of(prepare_data_loader(accelerate::skip_first_batches(loader, 2), alone(seeded)));
  EXPECT_EQ(rest, Lists(all.begin() + 2, all.end()));
  const DataLoader stream(stream_up_to(10), {.batch_size = 2});
  EXPECT_EQ(batches_of(prepare_data_loader(accelerate::skip_first_batches(stream, 1), one_of(2, 1))), (Lists{{6, 7}, {0, 1}}));
}

TEST_F(PreparedLoader, AStreamIsToldItsEpoch) {
  auto loader = prepare_data_loader(DataLoader(EpochStream{}, {.batch_size = 6}), alone());
  EXPECT_EQ(batches_of(loader), (Lists{{0, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(batches_of(loader), (Lists{{100, 101, 102, 103, 104, 105}}));
  loader.set_epoch(7);
  EXPECT_EQ(batches_of(loader), (Lists{{700, 701, 702, 703, 704, 705}}));
}

TEST_F(PreparedLoader, ASeedableOrderIsTheSameInEveryProcessAndAnotherInEveryEpoch) {
  const DataLoader loader(up_to(8), {.batch_size = 4, .shuffle = true});
  std::set<int64_t> seen;
  std::vector<Lists> orders;
  for (const int index : {0, 1}) {
    torch::manual_seed(static_cast<uint64_t>(index));  // the seed of the data decides alone
    const auto mine = prepare_data_loader(loader, one_of(2, index, {.use_seedable_sampler = true, .data_seed = 9}));
    for (const auto& batch : batches_of(mine)) seen.insert(batch.begin(), batch.end());
    orders.push_back(batches_of(mine));
    EXPECT_NE(orders.back(), batches_of(mine));
  }
  EXPECT_EQ(seen.size(), 8u);
}

TEST_F(PreparedLoader, BatchesMadeInAWayOfTheirOwnStaySoOverASeedableOrder) {
  const auto made = [] {
    return std::make_shared<TurnedBatches>(std::make_shared<accelerate::RandomSampler>(8),
                                           accelerate::BatchOptions{.batch_size = 4});
  };
  const accelerate::SeedableSamplerOptions seed{.data_seed = 5};
  TurnedBatches expected(std::make_shared<accelerate::SeedableRandomSampler>(8, seed), {.batch_size = 4});
  const auto loader =
      prepare_data_loader(DataLoader(up_to(8), {.batch_sampler = made()}), alone({.use_seedable_sampler = true, .data_seed = 5}));
  EXPECT_EQ(batches_of(loader), collected::pass_of(expected));
}
