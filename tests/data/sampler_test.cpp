#include <accelerate/core/error.h>
#include <accelerate/data/batch_sampler.h>
#include <accelerate/data/random_sampler.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "data/collect.h"

namespace {

using accelerate::Indices;
using accelerate::RandomSampler;
using accelerate::SamplerBatches;
using accelerate::SeedableRandomSampler;
using accelerate::SequentialSampler;
using accelerate::SubsetRandomSampler;
using accelerate::UsageError;
using accelerate::WeightedRandomSampler;
using collected::pass_of;
using Batches = std::vector<Indices>;

at::Generator cpu_generator(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

bool is_permutation_of_range(Indices indices, int64_t n) {
  Indices range(static_cast<size_t>(n));
  std::iota(range.begin(), range.end(), 0);
  std::sort(indices.begin(), indices.end());
  return indices == range;
}

TEST(SequentialSampler, GoesFromTheFirstToTheLast) {
  SequentialSampler sampler(4);
  EXPECT_EQ(pass_of(sampler), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(sampler.size(), 4);
  EXPECT_EQ(sampler.own_generator(), std::nullopt);
  SequentialSampler nothing(0);
  EXPECT_EQ(pass_of(nothing), Indices());
  EXPECT_THROW(SequentialSampler(-1), UsageError);
  SequentialSampler wrong([] { return int64_t{-1}; });
  EXPECT_THROW(wrong.indices(), UsageError) << "it would never end";
  EXPECT_THROW(wrong.runs(2), UsageError);
}

TEST(RandomSampler, DrawsASeedForEachPassFromTheDefaultGenerator) {
  torch::manual_seed(7);
  RandomSampler sampler(6);
  EXPECT_EQ(pass_of(sampler), (Indices{1, 0, 3, 2, 4, 5}));
  EXPECT_EQ(pass_of(sampler), (Indices{5, 1, 3, 0, 4, 2}));
  EXPECT_FLOAT_EQ(torch::rand(1).item<float>(), 0.23276156187057495F) << "the default generator gave two seeds, not more";
}

TEST(RandomSampler, DrawsNothingBeforeTheFirstIndexIsAskedFor) {
  torch::manual_seed(7);
  RandomSampler random(6);
  SubsetRandomSampler subset({1, 2});
  WeightedRandomSampler weighted({1, 2}, 2);
  for (accelerate::Sampler* sampler : {static_cast<accelerate::Sampler*>(&random), static_cast<accelerate::Sampler*>(&subset),
                                       static_cast<accelerate::Sampler*>(&weighted)}) {
    const auto pass = sampler->indices();
  }
  EXPECT_EQ(pass_of(random), (Indices{1, 0, 3, 2, 4, 5}));
}

TEST(RandomSampler, FollowingPassesOfAGeneratorAreThoseOfPython) {
  RandomSampler sampler(6, {.generator = cpu_generator(5)});
  EXPECT_EQ(pass_of(sampler), (Indices{5, 0, 1, 3, 4, 2}));
  EXPECT_EQ(pass_of(sampler), (Indices{1, 0, 5, 2, 4, 3}));
  EXPECT_EQ(pass_of(sampler), (Indices{3, 0, 2, 1, 4, 5}));
}

TEST(RandomSampler, WithReplacementOneOfItsOwnGivesTheSameAsASharedOne) {
  RandomSampler shared(1000, {.replacement = true, .num_samples = 10001, .generator = cpu_generator(9)});
  SeedableRandomSampler own(1000, {.data_seed = 9}, {.replacement = true, .num_samples = 10001});
  EXPECT_EQ(pass_of(shared), pass_of(own));
  RandomSampler huge(int64_t{1} << 40, {.replacement = true, .num_samples = 5, .generator = cpu_generator(5)});
  EXPECT_EQ(pass_of(huge), (Indices{425438759118, 1030067709629, 989404716150, 622681974857, 34745516772}));
}

TEST(RandomSampler, TakesFromASharedGeneratorNoMoreAtATimeThanPython) {
  const at::Generator shared = cpu_generator(5);
  RandomSampler sampler(6, {.replacement = true, .num_samples = 70, .generator = shared});
  const auto pass = sampler.indices();
  EXPECT_EQ(pass(), 5);
  EXPECT_FLOAT_EQ(torch::rand({1}, shared).item<float>(), 0.044166386127471924F);
}

TEST(RandomSampler, MoreSamplesThanThereAreAreOneShuffleAfterAnother) {
  RandomSampler sampler(5, {.num_samples = 12});
  const Indices order = pass_of(sampler);
  ASSERT_EQ(order.size(), 12U);
  EXPECT_EQ(sampler.size(), 12);
  EXPECT_TRUE(is_permutation_of_range({order.begin(), order.begin() + 5}, 5));
  EXPECT_TRUE(is_permutation_of_range({order.begin() + 5, order.begin() + 10}, 5));
}

TEST(RandomSampler, NothingToDrawIsRefused) {
  EXPECT_THROW(RandomSampler(0), UsageError);
  EXPECT_THROW(RandomSampler(4, {.num_samples = 0}), UsageError);
  EXPECT_THROW(RandomSampler(0, {.num_samples = 3}), UsageError);
}

TEST(RandomSampler, ItsOwnGeneratorIsMadeOnceAndDecidesTheOrder) {
  RandomSampler mine(20), theirs(20);
  const at::Generator made = *mine.own_generator();
  EXPECT_EQ(mine.own_generator(), made);
  at::Generator other = *theirs.own_generator();
  other.set_state(made.get_state());
  EXPECT_EQ(pass_of(mine), pass_of(theirs));
  EXPECT_EQ(pass_of(mine), pass_of(theirs)) << "and goes on deciding it";
}

TEST(SeedableRandomSampler, AFullPassCountsOnAndABrokenOneDoesNot) {
  SeedableRandomSampler sampler(8, {.data_seed = 3});
  const Indices first = pass_of(sampler), second = pass_of(sampler);
  EXPECT_EQ(sampler.epoch(), 2);
  EXPECT_NE(first, second);
  sampler.set_epoch(0);
  auto broken = sampler.indices();
  EXPECT_EQ(broken(), first[0]);
  EXPECT_EQ(sampler.epoch(), 0);
  EXPECT_EQ(pass_of(sampler), first);
  EXPECT_EQ(broken(), first[1]) << "passes under way do not disturb each other";
  sampler.set_epoch(1);
  EXPECT_EQ(pass_of(sampler), second);
}

TEST(SeedableRandomSampler, AnEndThatIsAskedForTwiceCountsOnce) {
  SeedableRandomSampler sampler(3, {.data_seed = 3});
  auto pass = sampler.indices();
  for (int i = 0; i < 6; ++i) pass();
  EXPECT_EQ(sampler.epoch(), 1);
}

TEST(SeedableRandomSampler, TheEpochIsReadWhenTheFirstIndexIsAskedFor) {
  SeedableRandomSampler sampler(8, {.data_seed = 3, .epoch = 4}), other(8, {.data_seed = 3});
  const auto pass = other.indices();
  other.set_epoch(4);
  EXPECT_EQ(collected::all<int64_t>(pass), pass_of(sampler));
}

TEST(SeedableRandomSampler, NeedsNoSharedGeneratorAndSeedsAGivenOneAnew) {
  const at::Generator given = cpu_generator(1);
  SeedableRandomSampler sampler(RandomSampler(8, {.generator = given}), {.data_seed = 3}), plain(8, {.data_seed = 3});
  EXPECT_EQ(sampler.own_generator(), std::nullopt);
  for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(pass_of(sampler), pass_of(plain));
  EXPECT_EQ(given.current_seed(), 5U);
}

TEST(SeedableRandomSampler, TakesOverWhatARandomSamplerDraws) {
  const RandomSampler random(6, {.replacement = true, .num_samples = 40});
  SeedableRandomSampler sampler(random, {.data_seed = 5});
  EXPECT_EQ(sampler.size(), 40);
  RandomSampler same(6, {.replacement = true, .num_samples = 40, .generator = cpu_generator(5)});
  EXPECT_EQ(pass_of(sampler), pass_of(same));
}

TEST(SubsetRandomSampler, DrawsWhatPythonDraws) {
  SubsetRandomSampler sampler({10, 20, 30, 40, 50}, cpu_generator(3));
  EXPECT_EQ(pass_of(sampler), (Indices{20, 10, 40, 50, 30}));
  EXPECT_EQ(pass_of(sampler), (Indices{10, 20, 30, 50, 40}));
  EXPECT_EQ(sampler.size(), 5);
  torch::manual_seed(7);
  SubsetRandomSampler unseeded({0, 1, 2, 3, 4, 5});
  EXPECT_EQ(pass_of(unseeded), (Indices{3, 0, 1, 5, 2, 4})) << "without a generator the default one is used itself";
  SubsetRandomSampler nothing({});
  EXPECT_EQ(pass_of(nothing), Indices());
}

TEST(WeightedRandomSampler, DrawsWhatPythonDraws) {
  const std::vector<double> weights = {0.1, 0.9, 0.4, 0.7, 3.0, 0.6};
  WeightedRandomSampler sampler(weights, 8, {.generator = cpu_generator(3)});
  EXPECT_EQ(pass_of(sampler), (Indices{1, 3, 4, 1, 4, 4, 2, 4}));
  EXPECT_EQ(pass_of(sampler), (Indices{4, 4, 2, 4, 4, 3, 5, 1}));
  EXPECT_EQ(sampler.size(), 8);
  WeightedRandomSampler once(weights, 4, {.replacement = false, .generator = cpu_generator(3)});
  EXPECT_EQ(pass_of(once), (Indices{3, 0, 1, 4}));
  EXPECT_EQ(pass_of(once), (Indices{4, 1, 2, 5}));
}

TEST(WeightedRandomSampler, WhatAreNoWeightsIsRefused) {
  EXPECT_THROW(WeightedRandomSampler({1, 2}, 0), UsageError);
  EXPECT_THROW(WeightedRandomSampler({}, 1), UsageError);
  EXPECT_THROW(WeightedRandomSampler({0, 0}, 1), UsageError);
  EXPECT_THROW(WeightedRandomSampler({1, -1}, 1), UsageError);
  EXPECT_THROW(WeightedRandomSampler({1, std::numeric_limits<double>::quiet_NaN()}, 1), UsageError);
  EXPECT_THROW(WeightedRandomSampler({1, 0, 2}, 3, {.replacement = false}), UsageError);
}

TEST(Sampler, RunsAreThePassInPieces) {
  const auto seeded = [](auto make) { return std::make_pair(make(cpu_generator(4)), make(cpu_generator(4))); };
  const auto expect_the_same = [](auto samplers, int64_t length) {
    Indices joined;
    for (const Indices& run : collected::all<Indices>(samplers.first->runs(length))) {
      EXPECT_LE(std::ssize(run), length);
      EXPECT_EQ(std::ssize(joined) % length, 0) << "only the last one is short";
      joined.insert(joined.end(), run.begin(), run.end());
    }
    EXPECT_EQ(joined, pass_of(*samplers.second));
    EXPECT_EQ(collected::all<Indices>(samplers.first->runs(length)).size(),
              collected::all<Indices>(samplers.second->accelerate::Sampler::runs(length)).size());
  };
  for (const int64_t length : {1, 5, 6, 7, 40, 1000}) {
    expect_the_same(seeded([](const at::Generator&) { return std::make_unique<SequentialSampler>(35); }), length);
    expect_the_same(seeded([](const at::Generator& from) {
                      return std::make_unique<RandomSampler>(
                          7, accelerate::RandomSamplerOptions{.num_samples = 35, .generator = from});
                    }),
                    length);
    expect_the_same(seeded([](const at::Generator& from) {
                      return std::make_unique<RandomSampler>(
                          7, accelerate::RandomSamplerOptions{.replacement = true, .num_samples = 71, .generator = from});
                    }),
                    length);
    expect_the_same(seeded([](const at::Generator& from) {
                      return std::make_unique<SubsetRandomSampler>(Indices{9, 8, 7, 6, 5, 4, 3}, from);
                    }),
                    length);
  }
}

/// An order of a user's own, with a size.
class FromTheUser : public accelerate::Sampler {
 public:
  accelerate::Source<int64_t> indices() override {
    return [order = Indices{2, 0, 1}, i = size_t{0}]() mutable -> std::optional<int64_t> {
      return i < order.size() ? std::optional(order[i++]) : std::nullopt;
    };
  }
  std::optional<int64_t> size() const override { return 3; }
};

TEST(SamplerBatches, TheLastOneIsShortOrLeftOut) {
  SamplerBatches kept(std::make_shared<SequentialSampler>(7), {.batch_size = 3});
  EXPECT_EQ(pass_of(kept), (Batches{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(kept.size(), 3);
  SamplerBatches dropped(std::make_shared<SequentialSampler>(7), {.batch_size = 3, .drop_last = true});
  EXPECT_EQ(pass_of(dropped), (Batches{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(dropped.size(), 2);
  SamplerBatches even(std::make_shared<SequentialSampler>(6), {.batch_size = 3});
  EXPECT_EQ(pass_of(even), (Batches{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(even.size(), 2);
  EXPECT_EQ(even.batch_size(), 3);
  EXPECT_EQ(even.total_batch_size(), 3);
}

TEST(SamplerBatches, ABatchMayBeAnnouncedLongerThanAnyMemory) {
  for (const int64_t length : {int64_t{1} << 60, std::numeric_limits<int64_t>::max()}) {
    SamplerBatches in_order(std::make_shared<SequentialSampler>(7), {.batch_size = length});
    EXPECT_EQ(pass_of(in_order), (Batches{{0, 1, 2, 3, 4, 5, 6}}));
    EXPECT_EQ(in_order.size(), 1);
    SamplerBatches shuffled(std::make_shared<RandomSampler>(7), {.batch_size = length});
    EXPECT_TRUE(is_permutation_of_range(shuffled.batches()().value(), 7));
    SamplerBatches own(std::make_shared<FromTheUser>(), {.batch_size = length});
    EXPECT_EQ(pass_of(own), (Batches{{2, 0, 1}}));
  }
}

TEST(SamplerBatches, WhatCannotBeBatchedIsRefused) {
  EXPECT_THROW(SamplerBatches(nullptr, {.batch_size = 3}), UsageError);
  EXPECT_THROW(SamplerBatches(std::make_shared<SequentialSampler>(7), {.batch_size = 0}), UsageError);
}

/// An order without an end, and without a size.
class EndlessSampler : public accelerate::Sampler {
 public:
  accelerate::Source<int64_t> indices() override {
    return [i = int64_t{0}]() mutable -> std::optional<int64_t> { return i++; };
  }
};

TEST(SamplerBatches, AnEndlessSamplerHasBatchesAndNoSize) {
  SamplerBatches batches(std::make_shared<EndlessSampler>(), {.batch_size = 2});
  auto pass = batches.batches();
  EXPECT_EQ(pass(), (Indices{0, 1}));
  EXPECT_EQ(pass(), (Indices{2, 3}));
  EXPECT_EQ(batches.size(), std::nullopt);
}

TEST(SamplerBatches, PassOnWhatTheSamplerIsToKnow) {
  auto seedable = std::make_shared<SeedableRandomSampler>(8, accelerate::SeedableSamplerOptions{.data_seed = 1});
  SamplerBatches batches(seedable, {.batch_size = 3});
  batches.set_epoch(5);
  EXPECT_EQ(seedable->epoch(), 5);
  pass_of(batches);
  EXPECT_EQ(seedable->epoch(), 6) << "the end of the last batch is the end of the pass";
  SamplerBatches random(std::make_shared<RandomSampler>(4), {.batch_size = 3});
  EXPECT_EQ(random.generator(), std::nullopt);
  EXPECT_TRUE(random.own_generator());
  EXPECT_EQ(random.generator(), random.sampler()->generator());
}

TEST(SamplerBatches, APassMayOutliveThem) {
  auto batches = std::make_unique<SamplerBatches>(
      std::make_shared<SeedableRandomSampler>(4, accelerate::SeedableSamplerOptions{.data_seed = 1}),
      accelerate::BatchOptions{.batch_size = 4});
  auto pass = batches->batches();
  batches.reset();
  EXPECT_TRUE(is_permutation_of_range(pass().value(), 4));
  EXPECT_EQ(pass(), std::nullopt);
}

}  // namespace
