#include <ATen/Parallel.h>
#include <accelerate/core/error.h>
#include <accelerate/data/batch_sampler.h>
#include <accelerate/data/data_loader.h>
#include <accelerate/data/random_sampler.h>
#include <accelerate/data/tensor_dataset.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <set>
#include <thread>

#include "data/collect.h"
#include "support/error_text.h"
#include "support/run_program.h"

namespace {

using accelerate::DataLoader;
using accelerate::DataLoaderOptions;
using accelerate::UsageError;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;
using accelerate::testing::wait_until;
using collected::batches_of;
using collected::Lists;
using collected::numbers_of;
using collected::NumberStream;
using collected::samples_of;
using collected::stream_up_to;
using collected::up_to;

/// Sample i, later for the first ones, so that workers end in another order than they began in.
struct SlowFirst {
  size_t size() const { return 12; }
  int64_t get(size_t i) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(i % 3 == 0 ? 5 : 0));
    return static_cast<int64_t>(i);
  }
};

struct Boom : std::exception {
  const char* what() const noexcept override { return "boom"; }
};
template <class Exception>
struct FailsAt {
  size_t size() const { return 100; }
  int64_t get(size_t i) const {
    if (i == 17) throw Exception("it is broken");
    return static_cast<int64_t>(i);
  }
};
/// Batches that end with an error after the first six, more than workers are ahead.
struct BreakingBatches : accelerate::BatchSampler {
  accelerate::Source<accelerate::Indices> batches() override {
    return [i = int64_t{0}]() mutable -> std::optional<accelerate::Indices> {
      if (i == 6) throw std::runtime_error("the list ends here");
      return accelerate::Indices{i++};
    };
  }
};

/// Blocks its readers until it is released.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return open; });
  }
  void let_go() {
    {
      const std::lock_guard lock(mutex);
      open = true;
    }
    changed.notify_all();
  }
};
struct Gated {
  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  std::shared_ptr<std::atomic<int>> readers = std::make_shared<std::atomic<int>>(0);
  std::chrono::microseconds delay{0};
  size_t size() const { return 10; }
  int64_t get(size_t i) const {
    ++*readers;
    if (i == 3) gate->wait();
    std::this_thread::sleep_for(delay);
    --*readers;
    return static_cast<int64_t>(i);
  }
};

/// Counts reads, and those that come before their time.
struct Watched {
  static constexpr int64_t kAhead = 1;  // batches of one sample: workers * prefetch_factor, less the one in hand
  struct Seen {
    std::atomic<int64_t> asked = 0, reads = 0, too_early = 0;
  };
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  size_t size() const { return 20; }
  int64_t get(size_t i) const {
    if (static_cast<int64_t>(i) > seen->asked + kAhead) ++seen->too_early;
    ++seen->reads;
    return static_cast<int64_t>(i);
  }
};

/// Which threads read, and with how many they compute.
struct Witness {
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<std::set<std::thread::id>> threads = std::make_shared<std::set<std::thread::id>>();
  size_t size() const { return 16; }
  std::pair<int64_t, bool> get(size_t) const {
    const std::lock_guard lock(*mutex);
    threads->insert(std::this_thread::get_id());
    return {at::get_num_threads(), torch::GradMode::is_enabled()};
  }
};

struct Noisy {
  size_t size() const { return 6; }
  at::Tensor get(size_t, at::Generator& generator) const { return torch::randint(1000000, {1}, generator, torch::kLong)[0]; }
};

}  // namespace

TEST(DataLoader, BatchesComeInOrderAndTheLastMayBeShort) {
  EXPECT_EQ(batches_of(DataLoader(up_to(5), {.batch_size = 2})), (Lists{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(batches_of(DataLoader(up_to(5), {.batch_size = 2, .drop_last = true})), (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(batches_of(DataLoader(stream_up_to(5), {.batch_size = 2, .drop_last = true})), (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(batches_of(DataLoader(up_to(2))), (Lists{{0}, {1}}));
  EXPECT_EQ(batches_of(DataLoader(up_to(0), {.batch_size = 2})), Lists{});
}

TEST(DataLoader, WithoutBatchSizeSamplesComeAsTheyAre) {
  const DataLoader tensors(std::vector{torch::zeros({2}), torch::ones({3})}, {.batch_size = {}});
  std::vector<int64_t> lengths;
  for (auto& sample : tensors) lengths.push_back(sample.size(0));
  EXPECT_EQ(lengths, (std::vector<int64_t>{2, 3}));
  for (auto& number : DataLoader(up_to(3), {.batch_size = {}})) EXPECT_EQ(number.dim(), 0);
  for (auto& number : DataLoader(stream_up_to(3), {.batch_size = {}})) EXPECT_EQ(number.dim(), 0);
  for (auto& [data, target] :
       DataLoader(accelerate::TensorDataset(torch::zeros({3, 2}), torch::zeros({3})), {.batch_size = {}})) {
    EXPECT_EQ(data.dim() + target.dim(), 1);
  }
  EXPECT_EQ(DataLoader(up_to(3), {.batch_size = {}}).size(), 3);
}

TEST(DataLoader, SizesAreThoseOfPython) {
  EXPECT_EQ(DataLoader(up_to(5), {.batch_size = 2}).size(), 3);
  EXPECT_EQ(DataLoader(up_to(5), {.batch_size = 2, .drop_last = true}).size(), 2);
  EXPECT_EQ(DataLoader(stream_up_to(5), {.batch_size = 2}).size(), 3);
  EXPECT_EQ(DataLoader(up_to(5), {.batch_size = 2}).batch_size(), 2);
  EXPECT_EQ(DataLoader(up_to(5), {.batch_size = 2}).total_dataset_length(), 5);
  EXPECT_THROW(DataLoader(NumberStream{}, {.batch_size = 2}).size(), UsageError);
  EXPECT_THROW(DataLoader(NumberStream{}, {.batch_size = 2}).total_dataset_length(), UsageError);
}

TEST(DataLoader, OwnCollationDecidesTheType) {
  const auto words = [](std::vector<int64_t> numbers) {
    std::vector<std::string> texts;
    for (const auto number : numbers) texts.push_back("s" + std::to_string(number));
    return texts;
  };
  std::vector<std::vector<std::string>> batches;
  for (auto& batch : DataLoader(up_to(3), words, {.batch_size = 2, .num_workers = 2})) batches.push_back(batch);
  EXPECT_EQ(batches, (std::vector<std::vector<std::string>>{{"s0", "s1"}, {"s2"}}));
  for (auto& batch : DataLoader(stream_up_to(1), words)) EXPECT_EQ(batch, (std::vector<std::string>{"s0"}));
}

TEST(DataLoader, OwnSamplersDecideTheOrder) {
  const auto sampler = std::make_shared<accelerate::SubsetRandomSampler>(accelerate::Indices{3});
  EXPECT_EQ(batches_of(DataLoader(up_to(5), {.sampler = sampler})), (Lists{{3}}));
  const auto batches = std::make_shared<accelerate::SamplerBatches>(std::make_shared<accelerate::SequentialSampler>(3),
                                                                    accelerate::BatchOptions{.batch_size = 2});
  const DataLoader loader(up_to(9), {.batch_sampler = batches});
  EXPECT_EQ(batches_of(loader), (Lists{{0, 1}, {2}}));
  EXPECT_EQ(loader.batch_size(), std::nullopt);
  EXPECT_EQ(loader.total_batch_size(), 2);
}

TEST(DataLoader, ShufflingDrawsWhatTorchDraws) {
  torch::manual_seed(1);
  const DataLoader loader(up_to(11), {.batch_size = 2, .shuffle = true});
  EXPECT_EQ(samples_of(loader), (std::vector<int64_t>{5, 1, 3, 4, 0, 2, 9, 10, 7, 6, 8}));
  EXPECT_EQ(samples_of(loader), (std::vector<int64_t>{6, 2, 8, 9, 5, 0, 3, 4, 7, 10, 1}));
  EXPECT_EQ(samples_of(loader), (std::vector<int64_t>{2, 9, 0, 10, 6, 3, 1, 4, 8, 7, 5}));
  EXPECT_TRUE(torch::rand(2).allclose(torch::tensor({0.6826140880584717, 0.30514949560165405}, torch::kFloat)));
}

TEST(DataLoader, WorkersAndTheirNumberDoNotChangeTheOrderOrTheDraws) {
  std::vector<Lists> seen;
  std::vector<at::Tensor> after;
  for (const int workers : {0, 1, 3}) {
    torch::manual_seed(4);
    const DataLoader loader(up_to(50), {.batch_size = 4, .shuffle = true, .num_workers = workers});
    seen.push_back(batches_of(loader));
    after.push_back(torch::rand(2));
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
  EXPECT_TRUE(after[0].equal(after[1]) && after[0].equal(after[2]));
}

TEST(DataLoader, WorkersThatEndOutOfOrderDeliverInOrder) {
  EXPECT_EQ(samples_of(DataLoader(SlowFirst{}, {.num_workers = 3})), up_to(12));
  EXPECT_EQ(samples_of(DataLoader(stream_up_to(41), {.batch_size = 3, .num_workers = 3})), up_to(41));
}

TEST(DataLoader, OptionsThatContradictEachOtherAreErrors) {
  const auto sampler = std::make_shared<accelerate::SequentialSampler>(3);
  const auto batches = std::make_shared<accelerate::SamplerBatches>(sampler, accelerate::BatchOptions{});
  const std::vector<DataLoaderOptions> wrong = {
      {.batch_size = 0},
      {.batch_size = -1},
      {.num_workers = -1},
      {.shuffle = true, .sampler = sampler},
      {.batch_size = 2, .batch_sampler = batches},
      {.shuffle = true, .batch_sampler = batches},
      {.sampler = sampler, .batch_sampler = batches},
      {.batch_sampler = batches, .drop_last = true},
      {.batch_size = {}, .drop_last = true},
      {.timeout = -1},
      {.timeout = 1},
      {.prefetch_factor = 2},
      {.num_workers = 1, .prefetch_factor = 0},
      {.persistent_workers = true},
  };
  for (size_t i = 0; i < wrong.size(); ++i) EXPECT_THROW(DataLoader(up_to(3), wrong[i]), UsageError) << "case " << i;
  EXPECT_THROW(DataLoader(stream_up_to(3), {.shuffle = true}), UsageError);
  EXPECT_THROW(DataLoader(stream_up_to(3), {.sampler = sampler}), UsageError);
  EXPECT_THROW(DataLoader(stream_up_to(3), {.batch_sampler = batches}), UsageError);
}

TEST(DataLoader, AnExceptionComesWithTheSampleThatThrewIt) {
  for (const int workers : {0, 2}) {
    const DataLoaderOptions options{.batch_size = 4, .num_workers = workers};
    EXPECT_EQ(message_of<std::exception>([&] { batches_of(DataLoader(FailsAt<UsageError>{}, options)); }),
              "it is broken (while reading sample 17)");
    EXPECT_THROW(batches_of(DataLoader(FailsAt<UsageError>{}, options)), UsageError);
    EXPECT_THROW(batches_of(DataLoader(FailsAt<accelerate::CheckpointError>{}, options)), accelerate::CheckpointError);
    try {
      batches_of(DataLoader(FailsAt<std::out_of_range>{}, options));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const accelerate::Error& error) {
      EXPECT_STREQ(error.what(), "it is broken (while reading sample 17)");
      EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
    }
    const auto collate = [](std::vector<int64_t>) -> int64_t { throw Boom(); };
    EXPECT_NE(message_of<std::exception>([&] {
                for (auto& batch : DataLoader(up_to(4), collate, options)) static_cast<void>(batch);
              }).find("boom (while collating samples 0, 1, 2, 3)"),
              std::string::npos);
    EXPECT_NE(message_of<std::exception>([&] {
                batches_of(DataLoader(NumberStream{.breaks_at = 5}, options));
              }).find("the file ends here (while reading the sample"),
              std::string::npos);
  }
}

TEST(DataLoader, BatchesBeforeAFailureAreDelivered) {
  for (const int workers : {0, 2}) {
    int64_t batches = 0;
    EXPECT_THROW(
        {
          for (auto& batch : DataLoader(FailsAt<UsageError>{}, {.batch_size = 4, .num_workers = workers})) {
            EXPECT_EQ(batch.size(0), 4);
            ++batches;
          }
        },
        UsageError);
    EXPECT_EQ(batches, 4);
  }
}

TEST(DataLoader, LeavingALoopEarlyEndsItsWorkers) {
  for (const bool persistent : {false, true}) {
    const Gated dataset{.delay = std::chrono::microseconds(500)};
    dataset.gate->let_go();
    const DataLoader loader(dataset, {.num_workers = 2, .persistent_workers = persistent});
    for (int pass = 0; pass < 20; ++pass) {
      for (auto& batch : loader) {
        if (batch.item<int64_t>() == pass % 5) break;
      }
      EXPECT_EQ(dataset.readers->load(), 0) << "somebody reads on after the loop";
    }
    EXPECT_EQ(samples_of(loader), up_to(10));
  }
  for (auto& batch : DataLoader(NumberStream{}, {.batch_size = 2, .num_workers = 2})) {
    if (batch[0].item<int64_t>() == 20) break;
  }
}

TEST(DataLoader, WorkersReadAheadAsFarAsTheyMayAndNoFurther) {
  const Watched dataset;
  const DataLoader loader(dataset, {.num_workers = 2, .prefetch_factor = 1});
  const auto end = loader.end();
  for (auto at = loader.begin(); at != end; ++at) {
    const int64_t may_be_read = std::min<int64_t>(dataset.seen->asked + 1 + Watched::kAhead, 20);
    wait_until("workers to read ahead", [&] { return dataset.seen->reads >= may_be_read; });
    ++dataset.seen->asked;
  }
  EXPECT_EQ(dataset.seen->reads, 20);
  EXPECT_EQ(dataset.seen->too_early, 0) << "2 is not read before 1 is asked for, and so on";
}

TEST(DataLoader, AWorkerThatIsLateIsAnErrorThatNamesItsBatch) {
  const Gated dataset;
  const DataLoader loader(dataset, {.num_workers = 2, .timeout = 0.05});
  const auto error = message_of<std::exception>([&] { batches_of(loader); });
  EXPECT_NE(error.find("batch 3"), std::string::npos) << error;
  EXPECT_NE(error.find("(sample 3)"), std::string::npos) << error;
  EXPECT_NE(error.find("timeout=0.05"), std::string::npos) << error;
  dataset.gate->let_go();
  while (dataset.readers->load() != 0) std::this_thread::yield();
  EXPECT_EQ(samples_of(loader), up_to(10)) << "the next pass has new workers";
}

TEST(DataLoader, PersistentWorkersAreTheSameThreadsInEveryPass) {
  const Witness kept;
  const DataLoader persistent(kept, {.num_workers = 2, .persistent_workers = true});
  for (int pass = 0; pass < 5; ++pass) {
    for (auto& batch : persistent) static_cast<void>(batch);
  }
  EXPECT_LE(kept.threads->size(), 2u);
  EXPECT_FALSE(kept.threads->contains(std::this_thread::get_id()));
}

TEST(DataLoader, WorkersComputeAloneUnderTheSettingsOfTheLoopAndLeaveOthersTheirThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  {
    const torch::NoGradGuard no_grad;
    for (auto& [computing, grad] : DataLoader(Witness{}, {.batch_size = 4, .num_workers = 2})) {
      EXPECT_TRUE(computing.equal(torch::ones({4}, torch::kLong)));
      EXPECT_FALSE(grad.any().item<bool>());
    }
  }
  EXPECT_EQ(at::get_num_threads(), 3);
  int elsewhere = 0;
  std::thread([&] {
    torch::zeros({1});
    at::init_num_threads();
    elsewhere = at::get_num_threads();
  }).join();
  EXPECT_EQ(elsewhere, 3);
  at::set_num_threads(threads);
}

TEST(DataLoader, PassesOverOneLoaderMayBeNested) {
  for (const int workers : {0, 2}) {
    const DataLoader loader(up_to(4), {.num_workers = workers, .persistent_workers = workers > 0});
    std::vector<int64_t> pairs;
    for (auto& outer : loader) {
      for (auto& inner : loader) pairs.push_back(outer.item<int64_t>() * 10 + inner.item<int64_t>());
    }
    EXPECT_EQ(pairs, (std::vector<int64_t>{0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33}));
  }
}

TEST(DataLoader, ThreadsMayEachMakePassesOverOneLoader) {
  for (const int workers : {0, 2}) {
    const DataLoader loader(up_to(50), {.batch_size = 4, .shuffle = true, .num_workers = workers});
    std::vector<std::thread> threads;
    std::atomic<int> complete = 0;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        auto samples = samples_of(loader);
        std::sort(samples.begin(), samples.end());
        if (samples == up_to(50)) ++complete;
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(complete, 3);
    EXPECT_EQ(loader.iteration(), 3);
  }
}

TEST(DataLoader, ASamplerThatFailsEndsThePass) {
  for (const int workers : {0, 2}) {
    const DataLoader loader(up_to(9), {.batch_sampler = std::make_shared<BreakingBatches>(), .num_workers = workers});
    auto pass = loader.begin();
    EXPECT_THROW(
        {
          while (pass != loader.end()) ++pass;
        },
        std::runtime_error);
    ++pass;
    EXPECT_TRUE(pass == loader.end());
  }
}

TEST(DataLoader, WorkersThatTheSystemDoesNotGiveAreAnError) {
  pthread_attr_t usual, huge;
  pthread_getattr_default_np(&usual);
  pthread_attr_init(&huge);
  pthread_attr_setstacksize(&huge, size_t{1} << 46);  // more than there is address space
  const DataLoader loader(up_to(4), {.num_workers = 2});
  pthread_setattr_default_np(&huge);
  expect_parts(message_of<accelerate::Error>([&] { batches_of(loader); }), {"num_workers=2"});
  pthread_setattr_default_np(&usual);
  pthread_attr_destroy(&huge);
  EXPECT_EQ(samples_of(loader), up_to(4));
}

TEST(DataLoader, AGeneratorOfASampleDependsOnSeedEpochAndIndexAlone) {
  torch::manual_seed(3);
  const DataLoader alone(Noisy{}, {.batch_size = 2});
  const auto first = samples_of(alone), second = samples_of(alone);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 6u);

  torch::manual_seed(3);
  torch::rand(100);
  const DataLoader helped(Noisy{}, {.batch_size = 3, .num_workers = 2});
  EXPECT_EQ(samples_of(helped), first);
  EXPECT_EQ(samples_of(helped), second);
  torch::manual_seed(4);
  EXPECT_NE(samples_of(DataLoader(Noisy{}, {.batch_size = 3})), first);
}

TEST(DataLoader, ABatchIsTheLoopsToChangeAndToKeep) {
  std::vector<at::Tensor> kept;
  for (auto& batch : DataLoader(up_to(6), {.batch_size = 2, .num_workers = 2})) {
    batch += 100;
    kept.push_back(std::move(batch));
  }
  EXPECT_EQ(numbers_of(torch::cat(kept)), (std::vector<int64_t>{100, 101, 102, 103, 104, 105}));
}

TEST(DataLoader, CopiesAreTheSameLoader) {
  torch::manual_seed(0);
  DataLoader loader(up_to(4), {.batch_size = 2, .persistent_workers = false});
  DataLoader copy = loader;
  batches_of(loader);
  EXPECT_EQ(copy.iteration(), 1);
  copy.set_epoch(7);
  EXPECT_EQ(loader.iteration(), 7);
}

TEST(DataLoader, SkippingLeavesOutTheFirstBatchesAndReadsNoneOfThem) {
  const Gated dataset;  // sample 3 would wait for ever
  EXPECT_EQ(samples_of(accelerate::skip_first_batches(DataLoader(dataset), 4)), (std::vector<int64_t>{4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(accelerate::skip_first_batches(DataLoader(up_to(5), {.batch_size = 2}), 1).size(), 2);
  EXPECT_EQ(batches_of(accelerate::skip_first_batches(DataLoader(stream_up_to(5), {.batch_size = 2}), 1)), (Lists{{2, 3}, {4}}));
  EXPECT_EQ(batches_of(accelerate::skip_first_batches(DataLoader(stream_up_to(5), {.batch_size = 2}), 9)), Lists{});
  EXPECT_THROW(accelerate::skip_first_batches(DataLoader(up_to(5)), -1), UsageError);
}
