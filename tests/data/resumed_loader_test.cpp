#include <accelerate/core/error.h>
#include <accelerate/data/gather_for_metrics.h>
#include <accelerate/data/prepared_loader.h>
#include <accelerate/data/random_sampler.h>
#include <accelerate/data/tensor_dataset.h>
#include <torch/torch.h>

#include <list>
#include <map>
#include <set>

#include "data/random_cases.h"
#include "support/error_text.h"
#include "support/together.h"

namespace {

using accelerate::DataLoader;
using accelerate::DataLoaderConfiguration;
using accelerate::DataLoaderOptions;
using accelerate::LoaderPreparation;
using accelerate::StateDict;
using accelerate::UsageError;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;
using ResumedLoader = DataLoader<at::Tensor>;

/// A batch, and what the training draws after it: both have to be the same in a run that goes on.
struct Step {
  std::vector<int64_t> batch;
  float draw = 0;
  int64_t epoch = 0;
  bool operator==(const Step&) const = default;
};
void PrintTo(const Step& step, std::ostream* out) {
  *out << "epoch " << step.epoch << " draw " << step.draw << " batch " << ::testing::PrintToString(step.batch);
}

std::vector<int64_t> whole_numbers(int64_t n) {
  std::vector<int64_t> numbers(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) numbers[static_cast<size_t>(i)] = i;
  return numbers;
}

Step take_step(const at::Tensor& batch, int64_t epoch) {
  const at::Tensor flat = batch.cpu().contiguous().view(-1);
  return {{flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()}, torch::rand({1}).item<float>(), epoch};
}

/// A kind of run.
struct RunKind {
  int64_t samples = 10;
  bool iterable = false;
  DataLoaderOptions options = {};
  DataLoaderConfiguration configuration = {};
  int sampler = 0;  // 0: as the options say, 1: a subset, 2: weighted, 3: with replacement
};

ResumedLoader make_run(const RunKind& kind, LoaderPreparation preparation) {
  DataLoaderOptions options = kind.options;
  if (kind.sampler == 1) options.sampler = std::make_shared<accelerate::SubsetRandomSampler>(whole_numbers(kind.samples));
  if (kind.sampler == 2) {
    std::vector<double> weights(static_cast<size_t>(kind.samples), 1.0);
    options.sampler = std::make_shared<accelerate::WeightedRandomSampler>(weights, kind.samples);
  }
  if (kind.sampler == 3) {
    options.sampler =
        std::make_shared<accelerate::RandomSampler>(kind.samples, accelerate::RandomSamplerOptions{.replacement = true});
  }
  preparation.configuration = kind.configuration;
  const auto numbers = whole_numbers(kind.samples);
  if (kind.iterable)
    return prepare_data_loader(DataLoader(std::list<int64_t>(numbers.begin(), numbers.end()), options), preparation);
  return prepare_data_loader(DataLoader(numbers, options), preparation);
}

at::Tensor default_numbers() { return at::Generator(at::globalContext().defaultGenerator(at::kCPU)).get_state(); }
void set_default_numbers(const at::Tensor& numbers) {
  at::Generator(at::globalContext().defaultGenerator(at::kCPU)).set_state(numbers);
}

/// Two epochs; after `stop` steps the state is taken, as is what the training would draw next, and a new run resumes from there.
std::vector<Step> run_stopped_at(const RunKind& kind, const LoaderPreparation& preparation, int64_t stop) {
  std::vector<Step> steps;
  std::optional<StateDict> state;
  at::Tensor numbers;
  torch::manual_seed(11);
  {
    auto loader = make_run(kind, preparation);
    for (int64_t epoch = 0; epoch < 2 && !state; ++epoch) {
      for (auto& batch : loader) {
        steps.push_back(take_step(batch, epoch));
        if (static_cast<int64_t>(steps.size()) != stop) continue;
        state = loader.state_dict();
        numbers = default_numbers();
        break;
      }
    }
  }
  if (!state) return steps;
  torch::manual_seed(99);  // another process knows nothing of the first
  auto loader = make_run(kind, preparation);
  loader.load_state_dict(*state);
  set_default_numbers(numbers);
  for (int64_t epoch = loader.iteration(); epoch < 2; ++epoch) {
    for (auto& batch : loader) steps.push_back(take_step(batch, epoch));
  }
  return steps;
}

RunKind drawn_kind(random_cases::Dice& dice, int num_processes) {
  RunKind kind;
  kind.samples = 1 + static_cast<int64_t>(dice.below(23));
  kind.iterable = dice.below(4) == 0;
  const auto processes = static_cast<int64_t>(num_processes);
  kind.configuration.split_batches = dice.coin();
  kind.options.batch_size = (1 + static_cast<int64_t>(dice.below(3))) * (kind.configuration.split_batches ? processes : 1);
  kind.options.drop_last = dice.below(4) == 0;
  kind.configuration.even_batches = dice.below(4) != 0;
  kind.configuration.dispatch_batches = dice.below(3) == 0;
  if (!kind.iterable) {
    kind.sampler = static_cast<int>(dice.below(6));
    kind.options.shuffle = (kind.sampler == 0 || kind.sampler > 3) && dice.below(3) != 0;
    kind.configuration.use_seedable_sampler = dice.coin();
  }
  kind.options.num_workers = static_cast<int>(dice.below(3)) % 2 * 2;
  return kind;
}

/// Whether a pass has a batch at all: one without is refused by a dispatched loader, which is tested elsewhere.
bool has_batches(const RunKind& kind, int processes) {
  const int64_t in_a_step = *kind.options.batch_size * (kind.configuration.split_batches ? 1 : processes);
  return !kind.options.drop_last || kind.samples >= in_a_step;
}

class TogetherResumedLoader : public Together {};

TEST_F(TogetherResumedLoader, GoesOnWithTheBatchesAndDrawsOfARunThatWasNeverStopped) {
  random_cases::Dice dice(5);
  const int cases = std::max(12, random_cases::count() / 10);
  for (int i = 0; i < cases; ++i) {
    const RunKind kind = drawn_kind(dice, world());
    const auto stop_fraction = dice.below(101);
    if (!has_batches(kind, world())) continue;
    const LoaderPreparation preparation{.state = state()};
    const auto expected = run_stopped_at(kind, preparation, -1);
    // The same on all processes, which may have different numbers of batches.
    const auto shortest = accelerate::reduce(state(), torch::tensor(static_cast<int64_t>(expected.size())), {});
    const int64_t stop = 1 + static_cast<int64_t>(stop_fraction) * (shortest.item<int64_t>() / world() - 1) / 100;
    if (stop < 1) continue;
    EXPECT_EQ(run_stopped_at(kind, preparation, stop), expected)
        << "case " << i << ", stopped after " << stop << ": samples " << kind.samples << " iterable " << kind.iterable
        << " batch " << *kind.options.batch_size << " drop_last " << kind.options.drop_last << " even "
        << kind.configuration.even_batches << " split " << kind.configuration.split_batches << " dispatch "
        << *kind.configuration.dispatch_batches << " shuffle " << kind.options.shuffle << " sampler " << kind.sampler
        << " seedable " << kind.configuration.use_seedable_sampler << " workers " << kind.options.num_workers;
  }
}

TEST_F(TogetherResumedLoader, MetricsOfARunThatGoesOnCountEverySampleOnce) {
  for (const bool dispatch : {false, true}) {
    RunKind kind{.samples = 37};
    kind.options = {.batch_size = 2, .shuffle = true};
    kind.configuration = {.dispatch_batches = dispatch};
    for (const int64_t stop : {1, 3}) {
      const auto active = std::make_shared<accelerate::ActiveLoaders>();
      const LoaderPreparation preparation{.state = state(), .active_loaders = active};
      std::map<int64_t, int> counted;
      const auto add_up = [&](const at::Tensor& batch) {
        for (const int64_t sample : take_step(accelerate::gather_for_metrics(state(), *active, batch), 0).batch)
          ++counted[sample];
      };
      StateDict progress;
      {
        torch::manual_seed(8);
        auto loader = make_run(kind, preparation);
        int64_t taken = 0;
        for (auto& batch : loader) {
          add_up(batch);
          if (++taken < stop) continue;
          progress = loader.state_dict();
          break;
        }
      }
      torch::manual_seed(9);
      auto resumed = make_run(kind, preparation);
      resumed.load_state_dict(progress);
      for (auto& batch : resumed) add_up(batch);
      EXPECT_EQ(counted.size(), 37U);
      for (const auto& item : counted) {
        EXPECT_EQ(item.second, 1) << "sample " << item.first << ", stopped after " << stop << ", dispatched " << dispatch;
      }
    }
  }
}

/// How often each sample comes when `before` processes take `stop` batches each and `after` processes what is left.
std::map<int64_t, int> seen_by(const RunKind& kind, int before, int after, int64_t stop) {
  accelerate::ProcessState alone;
  std::map<int64_t, int> seen;
  StateDict state;
  for (int process = before; process-- > 0;) {
    torch::manual_seed(3);
    auto loader = make_run(kind, {.state = alone, .num_processes = before, .process_index = process});
    int64_t taken = 0;
    for (auto& batch : loader) {
      for (const int64_t sample : take_step(batch, 0).batch) ++seen[sample];
      if (++taken < stop) continue;
      state = loader.state_dict();  // that of the first process remains
      break;
    }
  }
  for (int process = 0; process < after; ++process) {
    torch::manual_seed(50 + static_cast<uint64_t>(process));
    auto loader = make_run(kind, {.state = alone, .num_processes = after, .process_index = process});
    loader.load_state_dict(state);
    for (auto& batch : loader) {
      for (const int64_t sample : take_step(batch, 0).batch) ++seen[sample];
    }
    EXPECT_EQ(loader.iteration(), 1);
  }
  return seen;
}

TEST(ResumedLoader, OnAnotherNumberOfProcessesEverySampleThatIsLeftComesOnce) {
  for (const bool iterable : {false, true}) {
    for (const bool seedable : {false, true}) {
      for (const bool split : {false, true}) {
        RunKind kind{.samples = 96, .iterable = iterable};
        kind.options = {.batch_size = split ? 12 : 4, .shuffle = !iterable};
        kind.configuration = {.split_batches = split, .dispatch_batches = false, .use_seedable_sampler = seedable && !iterable};
        for (const auto& [before, after] : {std::pair{1, 2}, {2, 1}, {2, 3}, {3, 2}, {4, 1}, {1, 4}, {2, 2}}) {
          // What is left is a multiple of what a step of all processes takes: nothing has to be filled up.
          const int64_t stop = split ? 4 : 48 / (4 * before);
          const auto seen = seen_by(kind, before, after, stop);
          EXPECT_EQ(seen.size(), 96U) << before << " to " << after << " split " << split << " iterable " << iterable;
          for (const auto& [sample, times] : seen) {
            EXPECT_EQ(times, 1) << "sample " << sample << ", " << before << " to " << after << " seedable " << seedable;
          }
        }
      }
    }
  }
}

TEST(ResumedLoader, OnAnotherNumberOfProcessesOnlyTheLastRoundIsFilledUp) {
  RunKind kind{.samples = 50};
  kind.options = {.batch_size = 4, .shuffle = true};
  const auto seen = seen_by(kind, 2, 3, 2);  // 16 are out; 34 are left: two rounds of 12, and 10 in one of 12
  EXPECT_EQ(seen.size(), 50U);
  int times = 0;
  for (const auto& item : seen) times += item.second;
  EXPECT_EQ(times, 52);
}

TEST(ResumedLoader, SavedAfterTheLastBatchItGivesNoneAndThenTheNextEpoch) {
  RunKind kind{.samples = 6};
  kind.options = {.batch_size = 2, .shuffle = true};
  kind.configuration = {.use_seedable_sampler = true};
  const LoaderPreparation preparation{.state = accelerate::ProcessState()};
  auto loader = make_run(kind, preparation);
  StateDict state;
  int taken = 0;
  for ([[maybe_unused]] auto& batch : loader) {
    if (++taken == 3) state = loader.state_dict();
  }
  auto resumed = make_run(kind, preparation);
  resumed.load_state_dict(state);
  EXPECT_TRUE(resumed.begin() == resumed.end());
  EXPECT_EQ(resumed.iteration(), 1);
  std::set<int64_t> seen;
  for (auto& batch : resumed) {
    for (const int64_t sample : take_step(batch, 1).batch) seen.insert(sample);
  }
  EXPECT_EQ(seen.size(), 6U);
  EXPECT_EQ(resumed.iteration(), 2);
}

TEST(ResumedLoader, ALoopThatWasLeftBeginsAnew) {
  RunKind kind{.samples = 6};
  kind.options = {.batch_size = 2};
  const LoaderPreparation preparation{.state = accelerate::ProcessState()};
  auto loader = make_run(kind, preparation);
  for ([[maybe_unused]] auto& batch : loader) break;
  auto resumed = make_run(kind, preparation);
  resumed.load_state_dict(loader.state_dict());
  EXPECT_EQ(take_step(*resumed.begin(), 0).batch, (std::vector<int64_t>{0, 1}));
}

TEST(ResumedLoader, SkipFirstBatchesReplacesThePositionAndKeepsTheOrder) {
  RunKind kind{.samples = 12};
  kind.options = {.batch_size = 2, .shuffle = true};
  const LoaderPreparation preparation{.state = accelerate::ProcessState()};
  torch::manual_seed(4);
  auto loader = make_run(kind, preparation);
  std::vector<std::vector<int64_t>> batches;
  StateDict state;
  for (auto& batch : loader) {
    batches.push_back(take_step(batch, 0).batch);
    if (batches.size() == 4) state = loader.state_dict();
  }
  torch::manual_seed(77);
  auto resumed = make_run(kind, preparation);
  resumed.load_state_dict(state);
  auto skipping = skip_first_batches(resumed, 2);
  std::vector<std::vector<int64_t>> rest;
  StateDict of_origin;
  for (auto& batch : skipping) {
    rest.push_back(take_step(batch, 0).batch);
    if (rest.size() == 1) of_origin = resumed.state_dict();
  }
  EXPECT_EQ(rest, (std::vector<std::vector<int64_t>>{batches.begin() + 2, batches.end()}));
  // The prepared loader resumes: it knows the progress of the other one.
  EXPECT_EQ(of_origin.at("batches"), accelerate::Value(3));
  auto again = make_run(kind, preparation);
  again.load_state_dict(of_origin);
  EXPECT_EQ(take_step(*again.begin(), 0).batch, batches[3]);
}

TEST(ResumedLoader, BatchesOfAnotherSizeAreRefusedAndChangeNothing) {
  RunKind kind{.samples = 12};
  kind.options = {.batch_size = 2};
  const LoaderPreparation preparation{.state = accelerate::ProcessState()};
  auto loader = make_run(kind, preparation);
  StateDict state;
  for ([[maybe_unused]] auto& batch : loader) {
    state = loader.state_dict();
    break;  // in the middle: after the last batch of an epoch they may be of any size
  }
  kind.options.batch_size = 3;
  auto other = make_run(kind, preparation);
  expect_parts(message_of<UsageError>([&] { other.load_state_dict(state); }), {"batch_size is 3"});
  EXPECT_EQ(take_step(*other.begin(), 0).batch, (std::vector<int64_t>{0, 1, 2}));
}

TEST(ResumedLoader, StatesOfEarlierVersionsHaveNoLengthsAndAreRead) {
  RunKind kind{.samples = 12};
  kind.options = {.batch_size = 2, .shuffle = true};
  const LoaderPreparation preparation{.state = accelerate::ProcessState()};
  auto loader = make_run(kind, preparation);
  StateDict earlier;
  std::vector<int64_t> seen;
  for (auto& batch : loader) {
    for (const int64_t number : take_step(batch, 0).batch) seen.push_back(number);
    for (const auto& [name, value] : loader.state_dict()) {
      if (name != "order" && name != "ended" && name != "split_batches") earlier[name] = value;
    }
    break;
  }
  auto resumed = make_run(kind, preparation);
  resumed.load_state_dict(earlier);
  for (auto& batch : resumed) {
    for (const int64_t number : take_step(batch, 0).batch) seen.push_back(number);
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, whole_numbers(12));
}

/// The state of a run after its first batch, without what earlier versions did not save.
StateDict earlier_state(const ResumedLoader& loader) {
  StateDict earlier;
  for ([[maybe_unused]] auto& batch : loader) {
    for (const auto& [name, value] : loader.state_dict()) {
      if (name != "order" && name != "ended" && name != "split_batches") earlier[name] = value;
    }
    break;
  }
  return earlier;
}

TEST(ResumedLoader, AStateOfAnEarlierVersionMayBeSavedAgainBeforeAPass) {
  RunKind kind{.samples = 6};
  kind.options = {.batch_size = 2};
  const LoaderPreparation preparation{.state = accelerate::ProcessState()};
  auto second = make_run(kind, preparation), third = make_run(kind, preparation);
  second.load_state_dict(earlier_state(make_run(kind, preparation)));
  third.load_state_dict(second.state_dict());
  EXPECT_EQ(take_step(*third.begin(), 0).batch, (std::vector<int64_t>{2, 3}));
}

TEST(ResumedLoader, APositionThatIsSkippedAndNotYetUsedIsSavedAgain) {
  RunKind kind{.samples = 12};
  kind.options = {.batch_size = 2};
  const LoaderPreparation preparation{.state = accelerate::ProcessState()};
  auto first = make_run(kind, preparation), second = make_run(kind, preparation), third = make_run(kind, preparation);
  StateDict state;
  int taken = 0;
  for ([[maybe_unused]] auto& batch : first) {
    if (++taken == 3) state = first.state_dict();
  }
  second.load_state_dict(state);
  const auto rest = skip_first_batches(second, 4);
  third.load_state_dict(second.state_dict());
  EXPECT_EQ(take_step(*third.begin(), 0).batch, (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(take_step(*rest.begin(), 0).batch, (std::vector<int64_t>{8, 9}));
  EXPECT_EQ(take_step(*second.begin(), 0).batch, (std::vector<int64_t>{0, 1})) << "the pass over the rest has used it";
}

/// `count` batches of the numbers up to 12, two at a time, over and over.
struct RoundBatches : accelerate::BatchSampler {
  explicit RoundBatches(int64_t batches) : count(batches) {}
  accelerate::Source<accelerate::Indices> batches() override {
    return [n = count, i = int64_t{0}]() mutable -> std::optional<accelerate::Indices> {
      if (i == n) return std::nullopt;
      const int64_t first = 2 * (i++ % 6);
      return accelerate::Indices{first, first + 1};
    };
  }
  std::optional<int64_t> size() const override { return count; }
  int64_t count;
};

TEST(ResumedLoader, AnotherNumberOfBatchesAndDrawingWithReplacementAreOtherOrders) {
  const auto error_of = [](const DataLoaderOptions& saved, const DataLoaderOptions& now) -> std::string {
    const LoaderPreparation preparation{.state = accelerate::ProcessState()};
    auto before = prepare_data_loader(DataLoader(whole_numbers(12), saved), preparation);
    StateDict state;
    for ([[maybe_unused]] auto& batch : before) {
      state = before.state_dict();
      break;
    }
    return message_of<UsageError>(
        [&] { prepare_data_loader(DataLoader(whole_numbers(12), now), preparation).load_state_dict(state); });
  };
  const auto batches_of = [](int64_t count) {
    DataLoaderOptions options;
    options.batch_sampler = std::make_shared<RoundBatches>(count);
    return options;
  };
  const auto drawn = [](bool replacement) {
    DataLoaderOptions options{.batch_size = 2};
    options.sampler =
        std::make_shared<accelerate::RandomSampler>(12, accelerate::RandomSamplerOptions{.replacement = replacement});
    return options;
  };
  EXPECT_EQ(error_of(batches_of(6), batches_of(6)), "no error");
  EXPECT_NE(error_of(batches_of(6), batches_of(9)).find("its sampler gives 9 batches, and gave 6"), std::string::npos);
  EXPECT_EQ(error_of(drawn(true), drawn(true)), "no error");
  EXPECT_NE(error_of(drawn(false), drawn(true)).find("its order is that of accelerate::RandomSampler with replacement, and was"),
            std::string::npos);
}

TEST(ResumedLoader, OneThatWasNotPreparedHasNoState) {
  DataLoader loader(whole_numbers(3), {.batch_size = 1});
  EXPECT_THROW(loader.state_dict(), UsageError);
  EXPECT_THROW(loader.load_state_dict({}), UsageError);
}

}  // namespace
