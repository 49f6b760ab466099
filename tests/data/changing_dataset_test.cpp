// Datasets that grow and shrink from one epoch to the next: all of what is there is read, and nothing beyond its end.
#include <accelerate/core/error.h>
#include <accelerate/data/prepared_loader.h>
#include <accelerate/data/random_sampler.h>
#include <torch/torch.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "data/collect.h"
#include "support/error_text.h"
#include "support/together.h"

namespace {

using accelerate::DataLoader;
using accelerate::DataLoaderOptions;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

/// Sample i is i, as long as there are so many.
struct ChangingNumbers {
  size_t size() const { return static_cast<size_t>(length->load()); }
  int64_t get(size_t i) const {
    if (i >= size()) ++*beyond;
    return static_cast<int64_t>(i);
  }
  std::shared_ptr<std::atomic<int64_t>> length = std::make_shared<std::atomic<int64_t>>(0);
  std::shared_ptr<std::atomic<int>> beyond = std::make_shared<std::atomic<int>>(0);
};

/// As many samples as its epoch is told to have.
struct GrowingByEpoch {
  void set_epoch(int64_t epoch) { length = 10 * (epoch + 1); }
  size_t size() const { return static_cast<size_t>(length); }
  int64_t get(size_t i) const { return static_cast<int64_t>(i); }
  int64_t length = 10;
};

std::set<int64_t> all_below(int64_t n) {
  const auto all = collected::up_to(n);
  return {all.begin(), all.end()};
}

class TogetherChangingDataset : public Together {
 protected:
  /// What all processes read in a pass.
  static std::set<int64_t> seen_by_all(const DataLoader<at::Tensor>& loader) {
    std::set<int64_t> seen;
    for (const int64_t number : accelerator().gather_object(collected::samples_of(loader))) seen.insert(number);
    return seen;
  }
};

TEST_F(TogetherChangingDataset, EveryEpochReadsWhatIsThereAndNothingBeyondItsEnd) {
  for (const int workers : {0, 3}) {
    for (const bool shuffle : {false, true}) {
      for (const bool seedable : {false, true}) {
        for (const bool dispatch : {false, true}) {
          SCOPED_TRACE(::testing::Message() << workers << " workers, shuffle " << shuffle << ", seedable " << seedable
                                            << ", dispatch " << dispatch);
          ChangingNumbers numbers;
          *numbers.length = 44;
          DataLoader data(numbers,
                          {.batch_size = 3, .shuffle = shuffle, .num_workers = workers, .persistent_workers = workers > 0});
          auto loader = prepare_data_loader(
              data, {.state = state(),
                     .configuration = {.dispatch_batches = dispatch, .use_seedable_sampler = seedable, .data_seed = 7}});
          for (const int64_t length : {44, 25, 31, 7}) {
            *numbers.length = length;
            EXPECT_EQ(seen_by_all(loader), all_below(length));
            EXPECT_EQ(loader.total_dataset_length(), length);
          }
          EXPECT_EQ(*numbers.beyond, 0);
        }
      }
    }
  }
}

TEST_F(TogetherChangingDataset, TheEpochMayDecideTheLength) {
  auto loader = prepare_data_loader(DataLoader(GrowingByEpoch(), {.batch_size = 4, .shuffle = true}), {.state = state()});
  for (const int64_t length : {10, 20, 30}) EXPECT_EQ(seen_by_all(loader), all_below(length));
}

TEST_F(TogetherChangingDataset, LengthsThatDifferBetweenProcessesWhenAPassBeginsAreAnErrorOnAll) {
  ChangingNumbers numbers;
  *numbers.length = 40;
  auto loader = prepare_data_loader(DataLoader(numbers, {.batch_size = 3, .shuffle = true}), {.state = state()});
  if (world() > 1) {
    *numbers.length = 40 + rank();
    expect_parts(message_of<accelerate::UsageError>([&] { loader.begin(); }), {"40 on rank 0, 41 on rank 1"});
  }
  *numbers.length = 44;
  EXPECT_EQ(seen_by_all(loader), all_below(44));
}

TEST_F(TogetherChangingDataset, APassOfASeedableSamplerMayBeginOnOneProcessAlone) {
  torch::manual_seed(100 + rank());  // apart: prepare makes them agree
  auto loader = prepare_data_loader(DataLoader(collected::up_to(12), {.batch_size = 2, .shuffle = true}),
                                    {.state = state(), .configuration = {.use_seedable_sampler = true}});
  if (accelerator().is_main_process()) {
    EXPECT_EQ((*loader.begin()).size(0), 2);
  }
  EXPECT_EQ(seen_by_all(loader), all_below(12));
}

TEST(ChangingDataset, APlainLoaderFollowsItToo) {
  ChangingNumbers numbers;
  *numbers.length = 9;
  DataLoader ordered(numbers, {.batch_size = 2}), shuffled(numbers, {.batch_size = 2, .shuffle = true, .num_workers = 2});
  for (const int64_t length : {9, 4, 12}) {
    *numbers.length = length;
    EXPECT_EQ(collected::samples_of(ordered), collected::up_to(length));
    auto order = collected::samples_of(shuffled);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, collected::up_to(length));
    EXPECT_EQ(ordered.size(), (length + 1) / 2);
  }
  EXPECT_EQ(*numbers.beyond, 0);
}

TEST(ChangingDataset, WithoutASampleItCannotBeShuffledInALaterEpochEither) {
  ChangingNumbers numbers;
  *numbers.length = 5;
  DataLoader data(numbers, {.shuffle = true});
  *numbers.length = 0;
  EXPECT_THROW(collected::samples_of(data), accelerate::UsageError);
  *numbers.length = 2;
  EXPECT_EQ(collected::samples_of(data).size(), 2U);
}

TEST(ChangingDataset, ASamplerWithALengthOfItsOwnIsStoppedAtTheEnd) {
  for (const int workers : {0, 2}) {
    ChangingNumbers numbers;
    *numbers.length = 44;
    DataLoaderOptions options{.batch_size = 4, .num_workers = workers};
    options.sampler = std::make_shared<accelerate::SequentialSampler>(44);
    const DataLoader loader(numbers, options);
    *numbers.length = 40;
    std::vector<int64_t> seen;
    const auto said = message_of<accelerate::UsageError>([&] {
      for (auto& batch : loader) {
        for (const int64_t number : collected::numbers_of(batch)) seen.push_back(number);
      }
    });
    EXPECT_EQ(seen, collected::up_to(40));
    expect_parts(said, {"has shrunk to 40 samples", "the sampler returned sample 40"});
    EXPECT_EQ(*numbers.beyond, 0);
  }
}

/// Sample i is i, whatever i is. Notes which threads ask for its length.
struct AnyNumber {
  size_t size() const {
    const std::lock_guard lock(*mutex);
    askers->insert(std::this_thread::get_id());
    return 4;
  }
  int64_t get(size_t i) const { return static_cast<int64_t>(i); }
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<std::set<std::thread::id>> askers = std::make_shared<std::set<std::thread::id>>();
};

TEST(ChangingDataset, IndicesOfASamplerNeedNotBePositionsAndWorkersDoNotAskForTheLength) {
  for (const int workers : {0, 2}) {
    const AnyNumber numbers;
    const std::vector<int64_t> codes = {3'000'001, 7, -2, 1'000'002};
    DataLoaderOptions options{.batch_size = 2, .num_workers = workers};
    struct Codes : accelerate::Sampler {
      accelerate::Source<int64_t> indices() override {
        return [given = given, i = size_t{0}]() mutable { return i < given.size() ? std::optional(given[i++]) : std::nullopt; };
      }
      std::vector<int64_t> given;
    };
    auto sampler = std::make_shared<Codes>();
    sampler->given = codes;
    options.sampler = sampler;
    EXPECT_EQ(collected::samples_of(DataLoader(numbers, options)), codes);
    EXPECT_EQ(*numbers.askers, std::set{std::this_thread::get_id()});
  }
}

}  // namespace
