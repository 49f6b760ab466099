#include <accelerate/core/error.h>
#include <accelerate/data/prepared_loader.h>
#include <accelerate/data/random_sampler.h>
#include <accelerate/data/tensor_dataset.h>
#include <accelerate/distributed/collectives.h>
#include <torch/torch.h>

#include <list>
#include <set>

#include "support/together.h"

namespace {

using accelerate::DataLoader;
using accelerate::DataLoaderConfiguration;
using accelerate::DataLoaderOptions;
using accelerate::GradientState;
using accelerate::LoaderPreparation;
using accelerate::UsageError;
using PreparedBatches = std::vector<std::vector<int64_t>>;

std::vector<int64_t> counted(int64_t n) {
  std::vector<int64_t> numbers(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) numbers[static_cast<size_t>(i)] = i;
  return numbers;
}
std::list<int64_t> counted_stream(int64_t n) {
  const auto numbers = counted(n);
  return {numbers.begin(), numbers.end()};
}
std::vector<int64_t> prepared_numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.cpu().contiguous().view(-1);
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}
PreparedBatches prepared_batches(const DataLoader<at::Tensor>& loader) {
  PreparedBatches batches;
  for (auto& batch : loader) batches.push_back(prepared_numbers(batch));
  return batches;
}

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

struct SentBatch {
  at::Tensor data;
  std::map<std::string, std::vector<at::Tensor>> nested;
  std::optional<at::Tensor> nothing;
};
struct SentRow {
  size_t size() const { return 10; }
  SentBatch get(size_t i) const {
    const auto number = static_cast<int64_t>(i);
    return {torch::full({2}, number), {{"k", {torch::full({}, number * 2)}}}, std::nullopt};
  }
};
struct FailsOnTheMain {
  std::list<int64_t> numbers;
  struct Iterator {
    using value_type = int64_t;
    using difference_type = std::ptrdiff_t;
    int64_t at = 0;
    int64_t operator*() const { return at; }
    Iterator& operator++() {
      if (++at == 9) throw std::runtime_error("no more tape");
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return false; }
  };
  Iterator begin() const { return {}; }
  std::default_sentinel_t end() const { return {}; }
};

}  // namespace

class PreparedLoader : public ::testing::Test {
 protected:
  /// Process `index` of `processes`, without the others.
  LoaderPreparation one_of(int processes, int index, DataLoaderConfiguration configuration = {}) {
    return {.state = state,
            .gradient_state = gradients,
            .configuration = configuration,
            .put_on_device = false,
            .num_processes = processes,
            .process_index = index};
  }
  LoaderPreparation alone(DataLoaderConfiguration configuration = {}) {
    return {.state = state, .gradient_state = gradients, .configuration = configuration};
  }
  accelerate::ProcessState state{{.cpu = true, .environment = [](const std::string&) { return std::nullopt; }}};
  std::shared_ptr<GradientState> gradients = std::make_shared<GradientState>();
};

class TogetherLoader : public Together {
 protected:
  static LoaderPreparation preparation(DataLoaderConfiguration configuration = {},
                                       std::shared_ptr<GradientState> gradients = {}) {
    return {.state = state(), .gradient_state = std::move(gradients), .configuration = configuration};
  }
  /// What all processes got, step by step.
  static std::vector<int64_t> gathered(const at::Tensor& mine) { return prepared_numbers(accelerate::gather(state(), mine)); }
};

TEST_F(PreparedLoader, EveryProcessGetsItsBatches) {
  const DataLoader loader(counted(22), {.batch_size = 3});
  EXPECT_EQ(prepared_batches(prepare_data_loader(loader, one_of(2, 0))),
            (PreparedBatches{{0, 1, 2}, {6, 7, 8}, {12, 13, 14}, {18, 19, 20}}));
  EXPECT_EQ(prepared_batches(prepare_data_loader(loader, one_of(2, 1))),
            (PreparedBatches{{3, 4, 5}, {9, 10, 11}, {15, 16, 17}, {21, 0, 1}}));
  EXPECT_EQ(prepared_batches(prepare_data_loader(loader, one_of(2, 1, {.even_batches = false}))).back(),
            (std::vector<int64_t>{21}));
  const DataLoader four(counted(10), {.batch_size = 4});
  EXPECT_EQ(prepared_batches(prepare_data_loader(four, one_of(2, 1, {.split_batches = true}))),
            (PreparedBatches{{2, 3}, {6, 7}, {0, 1}}));
  EXPECT_EQ(prepared_batches(prepare_data_loader(loader, alone())), prepared_batches(loader));
}

TEST_F(PreparedLoader, EveryProcessReadsItsPartOfAStream) {
  const DataLoader loader(counted_stream(9), {.batch_size = 2});
  EXPECT_EQ(prepared_batches(prepare_data_loader(loader, one_of(2, 0))), (PreparedBatches{{0, 1}, {4, 5}, {8, 0}}));
  EXPECT_EQ(prepared_batches(prepare_data_loader(loader, one_of(2, 1))), (PreparedBatches{{2, 3}, {6, 7}, {1, 2}}));
  EXPECT_EQ(prepared_batches(prepare_data_loader(loader, one_of(2, 1, {.split_batches = true}))),
            (PreparedBatches{{1}, {3}, {5}, {7}, {0}}));
  const DataLoader workers(counted_stream(9), {.batch_size = 2, .num_workers = 2});
  EXPECT_EQ(prepared_batches(prepare_data_loader(workers, one_of(2, 1))), (PreparedBatches{{2, 3}, {6, 7}, {1, 2}}));
}

TEST_F(PreparedLoader, TheLastBatchIsKnownWhileItIsInHand) {
  for (const int workers : {0, 2}) {
    auto loader = prepare_data_loader(DataLoader(counted(10), {.batch_size = 4, .num_workers = workers}), alone());
    std::vector<bool> ends;
    EXPECT_FALSE(gradients->in_dataloader());
    for (auto& batch : loader) {
      static_cast<void>(batch);
      EXPECT_TRUE(gradients->in_dataloader());
      EXPECT_EQ(gradients->remainder(), 2);
      EXPECT_EQ(gradients->end_of_dataloader(), loader.end_of_dataloader());
      ends.push_back(loader.end_of_dataloader());
    }
    EXPECT_EQ(ends, (std::vector<bool>{false, false, true}));
    EXPECT_FALSE(gradients->in_dataloader());
    EXPECT_EQ(loader.iteration(), 1);
    EXPECT_EQ(loader.remainder(), 2);
  }
}

TEST_F(PreparedLoader, LeavingEarlyLeavesNothingBehindAndIsNoEpoch) {
  auto loader = prepare_data_loader(DataLoader(counted(10), {.batch_size = 4}), alone());
  for (auto& batch : loader) {
    if (batch[0].item<int64_t>() == 4) break;
  }
  EXPECT_FALSE(gradients->in_dataloader());
  EXPECT_EQ(loader.iteration(), 0);
  try {
    for (auto& batch : loader) {
      static_cast<void>(batch);
      throw std::runtime_error("out");
    }
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(gradients->in_dataloader());
  EXPECT_EQ(prepared_batches(loader).size(), 3u);
}

TEST_F(PreparedLoader, TheInnermostLoopIsTheOneThatCounts) {
  auto outer = prepare_data_loader(DataLoader(counted(2)), alone());
  auto inner = prepare_data_loader(DataLoader(counted(3), {.batch_size = 2}), alone());
  for (auto& one : outer) {
    EXPECT_EQ(gradients->end_of_dataloader(), one.item<int64_t>() == 1);
    for (auto& two : inner) EXPECT_EQ(gradients->end_of_dataloader(), two.size(0) == 1);
    EXPECT_EQ(gradients->end_of_dataloader(), one.item<int64_t>() == 1);
    for (auto& again : outer) {
      static_cast<void>(again);
      break;
    }
    EXPECT_EQ(gradients->end_of_dataloader(), one.item<int64_t>() == 1);
  }
  EXPECT_FALSE(gradients->in_dataloader());
}

TEST_F(PreparedLoader, ALoaderWithoutBatchesGivesNoneAndCountsNoEpoch) {
  auto loader = prepare_data_loader(DataLoader(counted(2), {.batch_size = 4, .drop_last = true}), alone());
  EXPECT_EQ(prepared_batches(loader), PreparedBatches{});
  EXPECT_EQ(loader.iteration(), 0);
  EXPECT_FALSE(gradients->in_dataloader());
}

TEST_F(PreparedLoader, RemaindersAreThoseOfPython) {
  const auto remainder = [&](const auto& loader, const LoaderPreparation& preparation) {
    auto ours = prepare_data_loader(loader, preparation);
    prepared_batches(ours);
    return ours.remainder();
  };
  EXPECT_EQ(remainder(DataLoader(counted(10), {.batch_size = 4}), one_of(2, 0)), 2);
  EXPECT_EQ(remainder(DataLoader(counted(10), {.batch_size = 4}), one_of(2, 0, {.split_batches = true})), 2);
  EXPECT_EQ(remainder(DataLoader(counted(16), {.batch_size = 4}), one_of(2, 0)), 0);
  EXPECT_EQ(remainder(DataLoader(counted(10), {.batch_size = 4, .drop_last = true}), one_of(2, 0)), -1);
  EXPECT_EQ(remainder(DataLoader(counted_stream(10), {.batch_size = 4}), one_of(2, 0)), 0)
      << "the repetitions stay, as in Python";
  EXPECT_EQ(remainder(accelerate::skip_first_batches(DataLoader(counted(10), {.batch_size = 4}), 1), alone()), -1);
  // One process that dispatches to itself: the rows of the last batch.
  EXPECT_EQ(remainder(DataLoader(counted_stream(10), {.batch_size = 4}), alone()), 2);
}

TEST_F(PreparedLoader, SizesAreThoseOfPython) {
  const auto shard = prepare_data_loader(DataLoader(counted(22), {.batch_size = 3}), one_of(2, 0));
  EXPECT_EQ(shard.size(), 4);
  EXPECT_EQ(shard.batch_size(), 3);
  EXPECT_EQ(shard.total_batch_size(), 6);
  EXPECT_EQ(shard.total_dataset_length(), 22);
  const auto skipped = accelerate::skip_first_batches(shard, 1);
  EXPECT_EQ(skipped.size(), 3);
  EXPECT_THROW(skipped.total_batch_size(), UsageError);
  const auto stream =
      prepare_data_loader(DataLoader(counted_stream(24), {.batch_size = 9}), one_of(3, 0, {.split_batches = true}));
  EXPECT_EQ(stream.size(), 3);
  EXPECT_EQ(stream.total_batch_size(), 3);
  EXPECT_EQ(stream.total_dataset_length(), 9);
}

TEST_F(PreparedLoader, WhatCannotBeSharedOutIsAnError) {
  const DataLoader three(counted(10), {.batch_size = 3});
  EXPECT_THROW(prepare_data_loader(three, one_of(2, 0, {.split_batches = true})), UsageError);
  EXPECT_THROW(prepare_data_loader(DataLoader(counted_stream(10), {.batch_size = 3}), one_of(2, 0, {.split_batches = true})),
               UsageError);
  EXPECT_THROW(prepare_data_loader(DataLoader(counted_stream(10)), one_of(2, 0, {.split_batches = true})), UsageError);
  EXPECT_THROW(prepare_data_loader(DataLoader(counted(10), {.batch_size = {}}), one_of(2, 0)), UsageError);
  EXPECT_THROW(prepare_data_loader(three, one_of(1, 0, {.dispatch_batches = true})), UsageError) << "without device placement";
}

TEST_F(PreparedLoader, EvenBatchesCanBeTurnedOffForAWhile) {
  auto loader = prepare_data_loader(DataLoader(counted(5), {.batch_size = 2}), one_of(2, 1));
  EXPECT_EQ(prepared_batches(loader), (PreparedBatches{{2, 3}, {1, 2}}));
  EXPECT_EQ(loader.set_even_batches(false), true);
  EXPECT_EQ(prepared_batches(loader), (PreparedBatches{{2, 3}}));
  EXPECT_EQ(accelerate::skip_first_batches(loader, 1).set_even_batches(true), false);
  EXPECT_EQ(prepared_batches(loader), (PreparedBatches{{2, 3}, {1, 2}}));
  EXPECT_EQ(prepare_data_loader(DataLoader(counted_stream(5)), one_of(2, 1)).set_even_batches(false), std::nullopt);
}

TEST_F(PreparedLoader, PreparingTwiceIsPreparingOnce) {
  const auto once = prepare_data_loader(DataLoader(counted(8), {.batch_size = 2}), one_of(2, 1));
  const auto twice = prepare_data_loader(once, one_of(2, 1));
  EXPECT_TRUE(twice.prepared());
  EXPECT_EQ(prepared_batches(twice), (PreparedBatches{{2, 3}, {6, 7}}));
}

TEST_F(PreparedLoader, SkippedBatchesAreOfTheSameEpoch) {
  auto loader = prepare_data_loader(DataLoader(counted(12), {.batch_size = 2, .shuffle = true}),
                                    one_of(2, 1, {.use_seedable_sampler = true, .data_seed = 5}));
  const auto first = prepared_batches(loader);
  loader.set_epoch(0);
  prepared_batches(loader);
  const auto rest = prepared_batches(accelerate::skip_first_batches(loader, 1));
  loader.set_epoch(1);
  const auto second = prepared_batches(loader);
  EXPECT_NE(first, second);
  EXPECT_EQ(rest, (PreparedBatches{second[1], second[2]}));
  const auto stream = prepare_data_loader(DataLoader(counted_stream(10), {.batch_size = 2}), one_of(2, 0));
  EXPECT_EQ(prepared_batches(accelerate::skip_first_batches(stream, 1)), (PreparedBatches{{4, 5}, {8, 9}}));
}

TEST_F(PreparedLoader, ALoaderThatSkipsCanBePreparedToo) {
  const DataLoader loader(counted(10), {.batch_size = 2, .shuffle = true});
  const DataLoaderConfiguration seeded{.use_seedable_sampler = true, .data_seed = 3};
  const auto all = prepared_batches(prepare_data_loader(loader, alone(seeded)));
  const auto rest = prepared_batches(prepare_data_loader(accelerate::skip_first_batches(loader, 2), alone(seeded)));
  EXPECT_EQ(rest, PreparedBatches(all.begin() + 2, all.end()));
  const DataLoader stream(counted_stream(10), {.batch_size = 2});
  EXPECT_EQ(prepared_batches(prepare_data_loader(accelerate::skip_first_batches(stream, 1), one_of(2, 1))),
            (PreparedBatches{{6, 7}, {0, 1}}));
}

TEST_F(PreparedLoader, AStreamIsToldItsEpoch) {
  auto loader = prepare_data_loader(DataLoader(EpochStream{}, {.batch_size = 6}), alone());
  EXPECT_EQ(prepared_batches(loader)[0][1], 1);
  EXPECT_EQ(prepared_batches(loader)[0][1], 101);
  loader.set_epoch(7);
  EXPECT_EQ(prepared_batches(loader)[0][1], 701);
}

TEST_F(PreparedLoader, ASeedableOrderIsTheSameInEveryProcessAndAnotherInEveryEpoch) {
  const DataLoader loader(counted(8), {.batch_size = 4, .shuffle = true});
  std::set<int64_t> seen;
  std::vector<PreparedBatches> orders;
  for (const int index : {0, 1}) {
    torch::manual_seed(static_cast<uint64_t>(index));  // the seed of the data decides alone
    const auto mine = prepare_data_loader(loader, one_of(2, index, {.use_seedable_sampler = true, .data_seed = 9}));
    for (const auto& batch : prepared_batches(mine)) seen.insert(batch.begin(), batch.end());
    orders.push_back(prepared_batches(mine));
    EXPECT_NE(orders.back(), prepared_batches(mine));
  }
  EXPECT_EQ(seen.size(), 8u);
}

TEST_F(TogetherLoader, EverySampleComesOnceAndTheLastRoundIsFilledUp) {
  for (const int workers : {0, 2}) {
    const auto gradients = std::make_shared<GradientState>();
    const auto loader = prepare_data_loader(DataLoader(counted(41), {.batch_size = 4, .shuffle = true, .num_workers = workers}),
                                            preparation({}, gradients));
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::multiset<int64_t> seen;
      int64_t steps = 0;
      for (auto& batch : loader) {
        auto all = gathered(batch);
        if (gradients->end_of_dataloader() && gradients->remainder() > 0) all.resize(static_cast<size_t>(gradients->remainder()));
        seen.insert(all.begin(), all.end());
        ++steps;
      }
      EXPECT_EQ(seen.size(), 41u);
      EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 41u);
      EXPECT_EQ(steps, loader.size());
    }
  }
}

TEST_F(TogetherLoader, ShufflingDrawsFromTheMainProcess) {
  torch::manual_seed(static_cast<uint64_t>(100 + rank()));  // every process another
  const auto loader = prepare_data_loader(DataLoader(counted(world() * 6), {.batch_size = 3, .shuffle = true}), preparation());
  std::set<int64_t> seen;
  for (auto& batch : loader) {
    for (const auto number : gathered(batch)) seen.insert(number);
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(world() * 6));
}

TEST_F(TogetherLoader, TheMainProcessReadsForAllAndEveryoneGetsItsRows) {
  for (const bool split : {false, true}) {
    for (const int workers : {0, 2}) {
      const int64_t batch_size = split ? 2 * world() : 2, step = 2 * world();
      const auto gradients = std::make_shared<GradientState>();
      const auto loader =
          prepare_data_loader(DataLoader(counted_stream(3 * step + 1), {.batch_size = batch_size, .num_workers = workers}),
                              preparation({.split_batches = split}, gradients));
      std::vector<int64_t> all;
      int64_t steps = 0;
      for (auto& batch : loader) {
        auto rows = gathered(batch);
        EXPECT_EQ(gradients->end_of_dataloader(), steps == 3);
        if (steps == 3) {
          EXPECT_EQ(gradients->remainder(), 1);
          EXPECT_EQ(rows[0], 3 * step);
          rows.resize(1);
        }
        all.insert(all.end(), rows.begin(), rows.end());
        ++steps;
      }
      EXPECT_EQ(steps, 4);
      EXPECT_EQ(loader.size(), 4);
      EXPECT_EQ(loader.total_batch_size(), step);
      EXPECT_EQ(all, counted(3 * step + 1));
      EXPECT_FALSE(gradients->in_dataloader());
    }
  }
}

TEST_F(TogetherLoader, DispatchedBatchesKeepTheirType) {
  const auto loader = prepare_data_loader(DataLoader(SentRow{}, {.batch_size = 5}), preparation({.dispatch_batches = true}));
  for (int pass = 0; pass < 2; ++pass) {
    for (auto& batch : loader) {
      EXPECT_EQ(batch.data.dim(), 2);
      EXPECT_TRUE(batch.nested.at("k")[0].equal(batch.data.select(1, 0) * 2));
      EXPECT_FALSE(batch.nothing.has_value());
    }
  }
}

TEST_F(TogetherLoader, AFailureOfTheReaderReachesEveryProcess) {
  const auto loader = prepare_data_loader(DataLoader(FailsOnTheMain{}, {.batch_size = 1}), preparation());
  std::string text;
  try {
    for (auto& batch : loader) static_cast<void>(batch);
  } catch (const accelerate::Error& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("no more tape"), std::string::npos) << text;
  state().wait_for_everyone();
}

TEST_F(TogetherLoader, NothingToDispatchIsAnError) {
  EXPECT_THROW(prepared_batches(prepare_data_loader(DataLoader(counted_stream(0), {.batch_size = 2}), preparation())),
               UsageError);
  state().wait_for_everyone();
}

TEST_F(TogetherLoader, AnEarlyEndOfADispatchedLoopLetsTheNextOneBegin) {
  const auto loader = prepare_data_loader(DataLoader(counted_stream(20 * world()), {.batch_size = 2}), preparation());
  for (int pass = 0; pass < 3; ++pass) {
    int64_t steps = 0;
    for (auto& batch : loader) {
      EXPECT_EQ(batch.size(0), 2);
      if (++steps == 3) break;
    }
  }
  state().wait_for_everyone();
}

TEST_F(TogetherLoader, SkippedRoundsOfADispatchedStreamAreReadAndThrownAway) {
  const auto loader = prepare_data_loader(DataLoader(counted_stream(6 * world()), {.batch_size = 2}), preparation());
  std::vector<int64_t> all;
  for (auto& batch : accelerate::skip_first_batches(loader, 1)) {
    for (const auto number : gathered(batch)) all.push_back(number);
  }
  const auto everything = counted(6 * world());
  EXPECT_EQ(all, std::vector<int64_t>(everything.begin() + 2 * world(), everything.end()));
}
