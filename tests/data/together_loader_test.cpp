#include <accelerate/core/error.h>
#include <accelerate/data/prepared_loader.h>
#include <accelerate/data/random_sampler.h>
#include <accelerate/distributed/collectives.h>
#include <torch/torch.h>

#include <list>
#include <set>

#include "data/collect.h"
#include "support/error_text.h"
#include "support/together.h"

namespace {

using accelerate::ActiveLoaders;
using accelerate::DataLoader;
using accelerate::DataLoaderConfiguration;
using accelerate::LoaderPreparation;
using accelerate::UsageError;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;
using collected::batches_of;
using collected::numbers_of;
using collected::NumberStream;
using collected::stream_up_to;
using collected::up_to;

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
/// Gives some batches, then throws what is no exception.
struct TornBatches : accelerate::BatchSampler {
  explicit TornBatches(int64_t good_batches) : good(good_batches) {}
  accelerate::Source<accelerate::Indices> batches() override {
    return [i = int64_t{0}, end = good]() mutable -> std::optional<accelerate::Indices> {
      if (i == end) throw 42;
      return accelerate::Indices{i++};
    };
  }
  int64_t good;
};

}  // namespace

class TogetherLoader : public Together {
 protected:
  static LoaderPreparation preparation(DataLoaderConfiguration configuration = {}, std::shared_ptr<ActiveLoaders> active = {}) {
    return {.state = state(), .active_loaders = std::move(active), .configuration = configuration};
  }
  /// What all processes got in a step. As objects: where one process wrongly got fewer rows the test shall fail, not end.
  static std::vector<int64_t> gathered(const at::Tensor& mine) { return accelerate::gather_object(state(), numbers_of(mine)); }
  static std::vector<int64_t> first_of(std::vector<int64_t> rows, int64_t count) {
    if (std::ssize(rows) > count) rows.erase(rows.begin() + count, rows.end());
    return rows;
  }
};

TEST_F(TogetherLoader, EverySampleComesOnceAndTheLastRoundIsFilledUp) {
  for (const int workers : {0, 2}) {
    const auto active = std::make_shared<ActiveLoaders>();
    const auto loader = prepare_data_loader(DataLoader(up_to(41), {.batch_size = 4, .shuffle = true, .num_workers = workers}),
                                            preparation({}, active));
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::multiset<int64_t> seen;
      int64_t steps = 0;
      for (auto& batch : loader) {
        auto all = gathered(batch);
        if (active->end_of_dataloader() && active->remainder() > 0) all = first_of(all, active->remainder());
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
  const auto loader = prepare_data_loader(DataLoader(up_to(world() * 6), {.batch_size = 3, .shuffle = true}), preparation());
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
      const auto active = std::make_shared<ActiveLoaders>();
      const auto loader =
          prepare_data_loader(DataLoader(stream_up_to(3 * step + 1), {.batch_size = batch_size, .num_workers = workers}),
                              preparation({.split_batches = split}, active));
      std::vector<int64_t> all;
      int64_t steps = 0;
      for (auto& batch : loader) {
        auto rows = gathered(batch);
        EXPECT_EQ(active->end_of_dataloader(), steps == 3);
        if (steps == 3) {
          EXPECT_EQ(active->remainder(), 1);
          EXPECT_EQ(std::ssize(rows), world());
          rows = first_of(rows, 1);
        }
        all.insert(all.end(), rows.begin(), rows.end());
        ++steps;
      }
      EXPECT_EQ(steps, 4);
      EXPECT_EQ(loader.size(), 4);
      EXPECT_EQ(loader.total_batch_size(), step);
      EXPECT_EQ(all, up_to(3 * step + 1));
      EXPECT_FALSE(active->in_dataloader());
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
  const auto loader = prepare_data_loader(DataLoader(NumberStream{.breaks_at = 9}, {.batch_size = 1}), preparation());
  const auto read_all = [&] {
    for (auto& batch : loader) static_cast<void>(batch);
  };
  expect_parts(message_of<accelerate::Error>(read_all), {"the file ends here"});
  state().wait_for_everyone();
}

TEST_F(TogetherLoader, AFailureOfTheSamplerReachesEveryProcessAndEndsThePass) {
  for (const int workers : {0, 2}) {
    for (const int64_t good_batches : {0, 1, 5 * world() + 1}) {
      const auto loader = prepare_data_loader(
          DataLoader(up_to(100), {.batch_sampler = std::make_shared<TornBatches>(good_batches), .num_workers = workers}),
          preparation({.dispatch_batches = true}));
      EXPECT_ANY_THROW(batches_of(loader)) << good_batches;
      state().wait_for_everyone();
    }
  }
  const auto loader = prepare_data_loader(DataLoader(up_to(100), {.batch_sampler = std::make_shared<TornBatches>(3 * world())}),
                                          preparation({.dispatch_batches = true}));
  auto pass = loader.begin();
  EXPECT_ANY_THROW({
    while (pass != loader.end()) ++pass;
  });
  EXPECT_NO_THROW(++pass);
  EXPECT_TRUE(pass == loader.end());
  state().wait_for_everyone();
}

TEST_F(TogetherLoader, FewerSamplesThanProcessesAreDispatchedToAll) {
  for (int64_t samples = 1; samples <= 2 * world(); ++samples) {
    const auto active = std::make_shared<ActiveLoaders>();
    const auto loader = prepare_data_loader(DataLoader(stream_up_to(samples)), preparation({}, active));
    std::vector<int64_t> all;
    for (auto& batch : loader) {
      EXPECT_EQ(batch.size(0), 1);
      const auto rows = gathered(batch);
      const auto more = active->end_of_dataloader() ? first_of(rows, active->remainder()) : rows;
      all.insert(all.end(), more.begin(), more.end());
    }
    EXPECT_EQ(all, up_to(samples));
  }
}

TEST_F(TogetherLoader, DrawnSubsetsAreSharedOutWhateverTheSeedsOfTheProcesses) {
  for (const bool seedable : {false, true}) {
    torch::manual_seed(static_cast<uint64_t>(100 + rank()));
    const auto subset = std::make_shared<accelerate::SubsetRandomSampler>(up_to(world() * 6));
    const auto loader = prepare_data_loader(DataLoader(up_to(100), {.batch_size = 3, .sampler = subset}),
                                            preparation({.use_seedable_sampler = seedable}));
    std::set<int64_t> seen;
    for (auto& batch : loader) {
      for (const auto number : gathered(batch)) seen.insert(number);
    }
    EXPECT_EQ(std::ssize(seen), world() * 6) << seedable;
  }
}

TEST_F(TogetherLoader, NothingToDispatchIsAnError) {
  EXPECT_THROW(batches_of(prepare_data_loader(DataLoader(stream_up_to(0), {.batch_size = 2}), preparation())), UsageError);
  state().wait_for_everyone();
}

TEST_F(TogetherLoader, AnEarlyEndOfADispatchedLoopLetsTheNextOneBegin) {
  const auto loader = prepare_data_loader(DataLoader(stream_up_to(20 * world()), {.batch_size = 2}), preparation());
  for (int pass = 0; pass < 3; ++pass) {
    int64_t steps = 0;
    for (auto& batch : loader) {
      EXPECT_EQ(batch.size(0), 2);
      if (++steps == 3) break;
    }
  }
  state().wait_for_everyone();
}

TEST_F(TogetherLoader, ASeedableOrderIsOneOrderAlsoWhenProcessesAreSeededApart) {
  torch::manual_seed(100 + rank());
  const auto loader =
      prepare_data_loader(DataLoader(up_to(24), {.batch_size = 2, .shuffle = true}), preparation({.use_seedable_sampler = true}));
  for (int pass = 0; pass < 2; ++pass) {
    std::set<int64_t> seen;
    for (auto& batch : loader) {
      for (const int64_t number : gathered(batch)) EXPECT_TRUE(seen.insert(number).second) << number;
    }
    EXPECT_EQ(seen.size(), 24U) << "pass " << pass;
  }
}

TEST_F(TogetherLoader, SkippedRoundsOfADispatchedStreamAreReadAndThrownAway) {
  const auto loader = prepare_data_loader(DataLoader(stream_up_to(6 * world()), {.batch_size = 2}), preparation());
  std::vector<int64_t> all;
  for (auto& batch : accelerate::skip_first_batches(loader, 1)) {
    for (const auto number : gathered(batch)) all.push_back(number);
  }
  const auto everything = up_to(6 * world());
  EXPECT_EQ(all, std::vector<int64_t>(everything.begin() + 2 * world(), everything.end()));
}
