#include <accelerate/core/error.h>
#include <accelerate/data/batch_sampler.h>
#include <accelerate/data/random_sampler.h>
#include <accelerate/data/sharding.h>
#include <gtest/gtest.h>

#include <numeric>
#include <sstream>

#include "data/collect.h"
#include "data/random_cases.h"
#include "data/reference_sharding.h"
#include "support/error_text.h"

namespace {

using accelerate::BatchSamplerShard;
using accelerate::BatchShardOptions;
using accelerate::Indices;
using accelerate::IterableDatasetShard;
using accelerate::IterableShardOptions;
using accelerate::SkipBatchSampler;
using accelerate::UsageError;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;
using collected::GivenBatches;
using collected::pass_of;
using ShardBatches = std::vector<Indices>;

std::shared_ptr<accelerate::BatchSampler> batches_in_order(int64_t n, int64_t batch_size, bool drop_last = false) {
  return std::make_shared<accelerate::SamplerBatches>(std::make_shared<accelerate::SequentialSampler>(n),
                                                      accelerate::BatchOptions{.batch_size = batch_size, .drop_last = drop_last});
}

ShardBatches shard_of(std::shared_ptr<accelerate::BatchSampler> whole, const BatchShardOptions& options) {
  BatchSamplerShard shard(std::move(whole), options);
  return pass_of(shard);
}

/// 0, 1, 2, … below `n`, counting how many were read.
accelerate::Source<int64_t> numbers_below(int64_t n, std::shared_ptr<int64_t> read = std::make_shared<int64_t>(0)) {
  return [n, read]() -> std::optional<int64_t> { return *read < n ? std::optional((*read)++) : std::nullopt; };
}

TEST(BatchSamplerShard, BatchesGoRoundAndTheLastRoundIsFilledUpWithTheBeginning) {
  EXPECT_EQ(shard_of(batches_in_order(10, 4), {.num_processes = 2, .process_index = 0}),
            (ShardBatches{{0, 1, 2, 3}, {8, 9, 0, 1}}));
  EXPECT_EQ(shard_of(batches_in_order(10, 4), {.num_processes = 2, .process_index = 1}),
            (ShardBatches{{4, 5, 6, 7}, {2, 3, 4, 5}}));
  EXPECT_EQ(shard_of(batches_in_order(2, 3), {.num_processes = 2, .process_index = 1}), (ShardBatches{{1, 0, 1}}));
}

TEST(BatchSamplerShard, SplitBatchesAreSlicedAndTheLastIsFilledUpWithTheFirst) {
  const BatchShardOptions options{.num_processes = 2, .process_index = 1, .split_batches = true};
  EXPECT_EQ(shard_of(batches_in_order(9, 4), options), (ShardBatches{{2, 3}, {6, 7}, {1, 2}}));
  EXPECT_EQ(shard_of(batches_in_order(9, 4, true), options), (ShardBatches{{2, 3}, {6, 7}}));
}

TEST(BatchSamplerShard, WithoutEvenBatchesNothingIsRepeated) {
  const BatchShardOptions second{.num_processes = 2, .process_index = 1, .even_batches = false};
  EXPECT_EQ(shard_of(batches_in_order(10, 4), second), (ShardBatches{{4, 5, 6, 7}}));
  EXPECT_EQ(shard_of(batches_in_order(14, 4), second), (ShardBatches{{4, 5, 6, 7}, {12, 13}}));
  const BatchShardOptions slices{.num_processes = 2, .process_index = 1, .split_batches = true, .even_batches = false};
  EXPECT_EQ(shard_of(batches_in_order(9, 4), slices), (ShardBatches{{2, 3}, {6, 7}}));
  EXPECT_EQ(BatchSamplerShard(batches_in_order(9, 4), slices).size(), 3) << "as Python says it";
}

TEST(BatchSamplerShard, BatchesOfAnyLengthAreEvenedOutByWholeOnes) {
  const auto ragged = std::make_shared<GivenBatches>(ShardBatches{{0, 1, 2}, {3, 4}, {5, 6, 7, 8}});
  EXPECT_EQ(shard_of(ragged, {.num_processes = 2, .process_index = 1}), (ShardBatches{{3, 4}, {0, 1, 2}}));
  const auto one = std::make_shared<GivenBatches>(ShardBatches{{7, 8}});
  EXPECT_EQ(shard_of(one, {.num_processes = 3, .process_index = 2}), (ShardBatches{{7, 8}}));
}

TEST(BatchSamplerShard, ABatchThatIsShortBeforeTheEndHoldsItsRoundBackAsInPython) {
  const auto whole = std::make_shared<GivenBatches>(ShardBatches{{0, 1}, {2, 3}, {4}, {5, 6}}, false, 2);
  EXPECT_EQ(shard_of(whole, {.num_processes = 3, .process_index = 0}), (ShardBatches{{5, 6}}));
  EXPECT_EQ(shard_of(whole, {.num_processes = 3, .process_index = 1}), (ShardBatches{{2, 3}, {0, 1}}));
  EXPECT_EQ(shard_of(whole, {.num_processes = 3, .process_index = 2}), (ShardBatches{{2, 3}}));
}

TEST(BatchSamplerShard, ABatchThatIsShortBeforeTheEndIsNotSplitAsInPython) {
  const auto whole = std::make_shared<GivenBatches>(ShardBatches{{0, 1}, {4}, {5, 6}}, false, 2);
  EXPECT_EQ(shard_of(whole, {.num_processes = 2, .process_index = 1, .split_batches = true}), (ShardBatches{{1}, {6}}));
}

TEST(BatchSamplerShard, ABatchLongerThanAnnouncedIsAnErrorNotALoss) {
  const auto whole = std::make_shared<GivenBatches>(ShardBatches{{0, 1}, {2, 3, 4}}, false, 2);
  EXPECT_THROW(shard_of(whole, {.num_processes = 2}), UsageError);
  EXPECT_THROW(shard_of(whole, {.num_processes = 2, .split_batches = true}), UsageError);
}

/// Batches of two without an end.
class EndlessBatches : public accelerate::BatchSampler {
 public:
  accelerate::Source<Indices> batches() override {
    return [i = int64_t{0}]() mutable -> std::optional<Indices> {
      i += 2;
      return Indices{i - 2, i - 1};
    };
  }
  std::optional<int64_t> batch_size() const override { return 2; }
};

TEST(BatchSamplerShard, IsLazySoThatBatchesNeedNoEnd) {
  for (const bool split : {false, true}) {
    BatchSamplerShard shard(std::make_shared<EndlessBatches>(), {.num_processes = 2, .process_index = 1, .split_batches = split});
    auto pass = shard.batches();
    EXPECT_EQ(pass(), split ? (Indices{1}) : (Indices{2, 3}));
    EXPECT_EQ(pass(), split ? (Indices{3}) : (Indices{6, 7}));
    EXPECT_EQ(shard.size(), std::nullopt);
  }
}

TEST(BatchSamplerShard, KnowsHowManySamplesAStepOfAllProcessesTakes) {
  EXPECT_EQ(BatchSamplerShard(batches_in_order(9, 4), {.num_processes = 2}).total_batch_size(), 8);
  EXPECT_EQ(BatchSamplerShard(batches_in_order(9, 4), {.num_processes = 2, .split_batches = true}).total_batch_size(), 4);
  EXPECT_EQ(BatchSamplerShard(std::make_shared<GivenBatches>(ShardBatches{}), {}).total_batch_size(), std::nullopt);
}

TEST(BatchSamplerShard, PassesOnWhatTheSamplerIsToKnow) {
  auto seedable = std::make_shared<accelerate::SeedableRandomSampler>(8, accelerate::SeedableSamplerOptions{.data_seed = 1});
  auto whole = std::make_shared<accelerate::SamplerBatches>(seedable, accelerate::BatchOptions{.batch_size = 2});
  auto shard = std::make_shared<BatchSamplerShard>(whole, BatchShardOptions{.num_processes = 2});
  SkipBatchSampler(shard, 1).set_epoch(3);
  EXPECT_EQ(seedable->epoch(), 3);
}

TEST(BatchSamplerShard, WhatCannotBeSharedIsRefused) {
  EXPECT_THROW(BatchSamplerShard(nullptr, {}), UsageError);
  EXPECT_THROW(BatchSamplerShard(batches_in_order(9, 4), {.num_processes = 0}), UsageError);
  EXPECT_THROW(BatchSamplerShard(batches_in_order(9, 4), {.num_processes = 2, .process_index = 2}), UsageError);
  EXPECT_THROW(BatchSamplerShard(batches_in_order(9, 4), {.num_processes = 2, .process_index = -1}), UsageError);
  EXPECT_THROW(BatchSamplerShard(batches_in_order(9, 4), {.num_processes = 3, .split_batches = true}), UsageError);
  const auto ragged = std::make_shared<GivenBatches>(ShardBatches{{0}});
  EXPECT_THROW(BatchSamplerShard(ragged, {.num_processes = 2, .split_batches = true}), UsageError);
  expect_parts(
      message_of<UsageError>([&] { BatchSamplerShard(batches_in_order(9, 4), {.num_processes = 3, .split_batches = true}); }),
      {"3 processes, but the batch size is 4"});
}

TEST(SkipBatchSampler, LeavesOutTheFirstAndHidesTheBatchSize) {
  SkipBatchSampler skip(batches_in_order(16, 4), 2);
  EXPECT_EQ(pass_of(skip), (ShardBatches{{8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(skip.size(), 2);
  EXPECT_EQ(skip.batch_size(), std::nullopt);
  EXPECT_EQ(skip.total_batch_size(), std::nullopt);
  SkipBatchSampler all(batches_in_order(16, 4), 9);
  EXPECT_EQ(pass_of(all), ShardBatches());
  EXPECT_EQ(all.size(), 0);
  EXPECT_THROW(SkipBatchSampler(batches_in_order(16, 4), -1), UsageError);
  EXPECT_THROW(SkipBatchSampler(nullptr, 1), UsageError);
}

TEST(IterableDatasetShard, TakesItsSliceOfEachRoundAndFillsTheLastOneUp) {
  const auto elements = [](int64_t n, const IterableShardOptions& options) {
    return collected::all<int64_t>(IterableDatasetShard<int64_t>(numbers_below(n), options));
  };
  EXPECT_EQ(elements(9, {.batch_size = 2, .num_processes = 2, .process_index = 1}), (Indices{2, 3, 6, 7, 1, 2}));
  EXPECT_EQ(elements(9, {.batch_size = 2, .num_processes = 2, .process_index = 1, .split_batches = true}),
            (Indices{1, 3, 5, 7, 0}));
  EXPECT_EQ(elements(9, {.batch_size = 2, .drop_last = true, .num_processes = 2, .process_index = 1}), (Indices{2, 3, 6, 7}));
  EXPECT_EQ(elements(3, {.batch_size = 4, .num_processes = 2, .process_index = 1}), (Indices{1, 2, 0, 1}));
  EXPECT_EQ(elements(0, {.batch_size = 4, .num_processes = 2, .process_index = 1}), Indices());
}

TEST(IterableDatasetShard, ReadsARoundAtATime) {
  const auto read = std::make_shared<int64_t>(0);
  accelerate::Source<int64_t> shard = IterableDatasetShard<int64_t>(numbers_below(std::numeric_limits<int64_t>::max(), read),
                                                                    {.batch_size = 2, .num_processes = 3, .process_index = 1});
  EXPECT_EQ(*read, 0);
  EXPECT_EQ(shard(), 2);
  EXPECT_EQ(*read, 6);
  EXPECT_EQ(shard(), 3);
  EXPECT_EQ(*read, 6);
  EXPECT_EQ(shard(), 8);
  EXPECT_EQ(*read, 12);
}

TEST(IterableDatasetShard, WhatCannotBeSharedIsRefused) {
  const auto make = [](const IterableShardOptions& options) { IterableDatasetShard<int64_t>(numbers_below(3), options); };
  EXPECT_THROW(make({.batch_size = 0}), UsageError);
  EXPECT_THROW(make({.num_processes = 2, .process_index = 2}), UsageError);
  EXPECT_THROW(make({.batch_size = 4, .num_processes = 3, .split_batches = true}), UsageError);
  EXPECT_NO_THROW(make({.batch_size = 1, .num_processes = 3, .split_batches = true})) << "as in Python";
}

/// A way of sharding, drawn at random.
struct ShardingCase {
  explicit ShardingCase(random_cases::Dice& dice) {
    sharding = {.batch_size = 1 + dice.below(7),
                .processes = 1 + dice.below(6),
                .process = 0,
                .split = dice.coin(),
                .drop_last = dice.coin(),
                .even = dice.coin()};
    if (sharding.split) sharding.batch_size *= sharding.processes;
    samples.resize(dice.below(3) == 0 ? dice.below(4) : dice.below(70));
    std::iota(samples.begin(), samples.end(), 0);
    for (size_t i = samples.size(); i > 1; --i) std::swap(samples[i - 1], samples[dice.below(i)]);
    skip = static_cast<int64_t>(dice.below(5));
    for (size_t i = 0; i < samples.size();) {
      const size_t length = std::min(1 + dice.below(5), samples.size() - i);
      ragged.emplace_back(samples.begin() + static_cast<ptrdiff_t>(i), samples.begin() + static_cast<ptrdiff_t>(i + length));
      i += length;
    }
  }

  BatchShardOptions options() const {
    return {.num_processes = static_cast<int>(sharding.processes),
            .process_index = static_cast<int>(sharding.process),
            .split_batches = sharding.split,
            .even_batches = sharding.even};
  }

  std::string text() const {
    std::ostringstream out;
    out << samples.size() << " samples, batches of " << sharding.batch_size << ", process " << sharding.process << " of "
        << sharding.processes << (sharding.split ? ", split" : "") << (sharding.drop_last ? ", drop_last" : "")
        << (sharding.even ? ", even" : "") << ", skip " << skip;
    return out.str();
  }

  reference::ShardingConfig sharding;
  Indices samples;
  ShardBatches ragged;
  int64_t skip;
};

/// Batches of one length in the case's own order.
std::shared_ptr<accelerate::BatchSampler> batches_of(const ShardingCase& c) {
  ShardBatches batches = reference::pieces(c.samples, c.sharding.batch_size);
  if (c.sharding.drop_last && !batches.empty() && batches.back().size() < c.sharding.batch_size) batches.pop_back();
  return std::make_shared<GivenBatches>(batches, c.sharding.drop_last, c.sharding.batch_size);
}

void expect_batches_as_the_reference(const ShardingCase& c) {
  const auto whole = batches_of(c);
  const auto shard = std::make_shared<BatchSamplerShard>(whole, c.options());
  ShardBatches expected = reference::shard(c.samples, c.sharding);
  EXPECT_EQ(pass_of(*shard), expected) << c.text();
  EXPECT_EQ(shard->size(), reference::shard_length(static_cast<size_t>(*whole->size()), c.sharding)) << c.text();
  expected.erase(expected.begin(), expected.begin() + std::min<ptrdiff_t>(c.skip, std::ssize(expected)));
  SkipBatchSampler skip(shard, c.skip);
  EXPECT_EQ(pass_of(skip), expected) << c.text();
}

void expect_ragged_as_the_reference(const ShardingCase& c) {
  BatchShardOptions options = c.options();
  options.split_batches = false;
  BatchSamplerShard shard(std::make_shared<GivenBatches>(c.ragged, c.sharding.drop_last), options);
  EXPECT_EQ(pass_of(shard), reference::shard_ragged(c.ragged, c.sharding)) << c.text();
}

void expect_stream_as_the_reference(const ShardingCase& c) {
  const IterableShardOptions options{.batch_size = static_cast<int64_t>(c.sharding.batch_size),
                                     .drop_last = c.sharding.drop_last,
                                     .num_processes = static_cast<int>(c.sharding.processes),
                                     .process_index = static_cast<int>(c.sharding.process),
                                     .split_batches = c.sharding.split};
  accelerate::Source<int64_t> stream = [&c, i = size_t{0}]() mutable -> std::optional<int64_t> {
    return i < c.samples.size() ? std::optional(c.samples[i++]) : std::nullopt;
  };
  EXPECT_EQ(collected::all<int64_t>(IterableDatasetShard<int64_t>(stream, options)),
            reference::shard_stream(c.samples, c.sharding))
      << c.text();
  EXPECT_EQ(accelerate::iterable_shard_size(std::ssize(c.samples), options),
            static_cast<int64_t>(reference::stream_length(c.samples.size(), c.sharding)))
      << c.text();
}

TEST(Sharding, RandomCasesAreThoseOfTheReference) {
  random_cases::Dice dice(1);
  for (int i = 0; i < random_cases::count() && !::testing::Test::HasFailure(); ++i) {
    ShardingCase c(dice);
    for (; c.sharding.process < c.sharding.processes; ++c.sharding.process) {
      expect_batches_as_the_reference(c);
      expect_ragged_as_the_reference(c);
      expect_stream_as_the_reference(c);
    }
  }
}

/// What all processes hold together, step by step, as a gather would join it.
Indices gathered_by_steps(const ShardingCase& c, const std::shared_ptr<accelerate::BatchSampler>& whole) {
  std::vector<ShardBatches> ranks;
  for (int rank = 0; rank < static_cast<int>(c.sharding.processes); ++rank) {
    BatchShardOptions options = c.options();
    options.process_index = rank;
    ranks.push_back(shard_of(whole, options));
  }
  Indices joined;
  for (size_t step = 0; step < ranks.front().size(); ++step) {
    for (const ShardBatches& rank : ranks) joined.insert(joined.end(), rank.at(step).begin(), rank.at(step).end());
  }
  return joined;
}

TEST(Sharding, WhatIsLeftOfTheLastStepAfterTheRemainderIsEverySampleOnceAndInOrder) {
  random_cases::Dice dice(2);
  for (int i = 0; i < random_cases::count() && !::testing::Test::HasFailure(); ++i) {
    ShardingCase c(dice);
    c.sharding.even = true;
    c.sharding.drop_last = false;
    const auto whole = batches_of(c);
    Indices joined = gathered_by_steps(c, whole);
    const int64_t step = BatchSamplerShard(whole, c.options()).total_batch_size().value();
    const int64_t remainder = std::ssize(c.samples) % step;
    if (remainder != 0) joined.resize(joined.size() - static_cast<size_t>(step - remainder));
    EXPECT_EQ(joined, c.samples) << c.text();
  }
}

}  // namespace
