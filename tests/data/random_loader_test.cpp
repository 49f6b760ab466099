#include <accelerate/core/error.h>
#include <accelerate/data/prepared_loader.h>
#include <torch/torch.h>

#include <forward_list>
#include <list>
#include <numeric>
#include <sstream>

#include "data/random_cases.h"
#include "data/reference_sharding.h"
#include "support/together.h"

namespace {

using accelerate::DataLoader;
using accelerate::LoaderPreparation;
using reference::List;
using reference::Lists;

/// A prepared loader, drawn at random, and what the reference says it must give.
struct LoaderCase {
  enum Kind { map, iterable, unsized };

  LoaderCase(random_cases::Dice& dice, size_t processes) : samples(dice.below(4) == 0 ? dice.below(4) : dice.below(50)) {
    sharding = {.batch_size = 1 + dice.below(5),
                .processes = processes,
                .process = 0,
                .split = dice.coin(),
                .drop_last = dice.coin(),
                .even = dice.coin()};
    if (sharding.split) sharding.batch_size *= processes;
    kind = static_cast<Kind>(dice.below(3));
    shuffle = dice.coin() && kind == map && !samples.empty();
    seed = static_cast<int64_t>(dice.below(100));
    workers = dice.below(4) == 0 ? 1 + static_cast<int>(dice.below(2)) : 0;
    skip = dice.coin() ? dice.below(4) : 0;
    std::iota(samples.begin(), samples.end(), 0);
  }

  /// The dataset's samples in the order of a pass.
  List order(int64_t epoch) const {
    if (!shuffle) return samples;
    const at::Tensor drawn =
        torch::randperm(std::ssize(samples), at::detail::createCPUGenerator(static_cast<uint64_t>(seed + epoch)), torch::kLong);
    return {drawn.const_data_ptr<int64_t>(), drawn.const_data_ptr<int64_t>() + drawn.numel()};
  }

  /// The batches of a pass before they are sharded.
  Lists whole(int64_t epoch) const {
    const List ordered = order(epoch);
    return reference::pieces(sharding.drop_last ? reference::cut(ordered, sharding.batch_size) : ordered, sharding.batch_size);
  }

  size_t share() const { return sharding.split ? sharding.batch_size / sharding.processes : sharding.batch_size; }

  Lists expected_batches(int64_t epoch) const {
    if (sharding.processes == 1) return whole(epoch);
    return kind == map ? reference::shard(order(epoch), sharding)
                       : reference::pieces(reference::shard_stream(samples, sharding), share());
  }

  /// How many samples a process is said to have of a stream.
  size_t stream_length() const {
    return sharding.processes == 1 ? samples.size() : reference::stream_length(samples.size(), sharding);
  }

  /// The number of batches that Python says there are; -1: that is not known.
  int64_t expected_size() const {
    if (kind == unsized) return -1;
    if (kind == map) {
      const size_t all = whole(0).size();
      const size_t mine = sharding.processes == 1 ? all : reference::shard_length(all, sharding);
      return static_cast<int64_t>(mine - std::min(skip, mine));
    }
    const List said(stream_length());
    return std::ssize(reference::pieces(sharding.drop_last ? reference::cut(said, share()) : said, share()));
  }

  /// How many samples of the last step are no repetition as far as Python knows; 0: all, -1: not known.
  int64_t expected_remainder() const {
    if (sharding.drop_last || kind == unsized || (kind == map && skip > 0)) return -1;
    if (kind == iterable) return static_cast<int64_t>(stream_length() % share());
    return static_cast<int64_t>(samples.size() % (share() * sharding.processes));
  }

  DataLoader<at::Tensor> loader() const {
    const accelerate::DataLoaderOptions options{.batch_size = static_cast<int64_t>(sharding.batch_size),
                                                .shuffle = shuffle,
                                                .num_workers = workers,
                                                .drop_last = sharding.drop_last};
    if (kind == iterable) return DataLoader(std::list<int64_t>(samples.begin(), samples.end()), options);
    if (kind == unsized) return DataLoader(std::forward_list<int64_t>(samples.begin(), samples.end()), options);
    return DataLoader(samples, options);
  }

  accelerate::DataLoaderConfiguration configuration(bool dispatch) const {
    return {.split_batches = sharding.split,
            .dispatch_batches = dispatch,
            .even_batches = sharding.even,
            .use_seedable_sampler = true,
            .data_seed = seed};
  }

  std::string text() const {
    std::ostringstream out;
    out << (kind == map        ? "map"
            : kind == iterable ? "iterable"
                               : "unsized")
        << " of " << samples.size() << ", batches of " << sharding.batch_size << ", process " << sharding.process << " of "
        << sharding.processes << (sharding.split ? ", split" : "") << (sharding.drop_last ? ", drop_last" : "")
        << (sharding.even ? ", even" : "") << (shuffle ? ", shuffled by " : ", seed ") << seed << ", " << workers
        << " workers, skip " << skip;
    return out.str();
  }

  reference::ShardingConfig sharding;
  List samples;
  Kind kind;
  bool shuffle;
  int64_t seed;
  int workers;
  size_t skip;
};

/// What a pass over a loader shows.
struct SeenPass {
  Lists batches;
  std::vector<size_t> ends;
  int64_t remainder = -1;
};

SeenPass see_pass(const DataLoader<at::Tensor>& loader) {
  SeenPass seen;
  for (const at::Tensor& batch : loader) {
    if (loader.end_of_dataloader()) seen.ends.push_back(seen.batches.size());
    seen.remainder = loader.remainder();
    seen.batches.emplace_back(batch.const_data_ptr<int64_t>(), batch.const_data_ptr<int64_t>() + batch.numel());
  }
  return seen;
}

int64_t size_or_unknown(const DataLoader<at::Tensor>& loader) {
  try {
    return loader.size();
  } catch (const accelerate::UsageError&) {
    return -1;
  }
}

/// The batches that are left, and that the last of them is known as such.
void expect_pass(const SeenPass& seen, Lists expected, size_t skip, int64_t remainder, const std::string& text) {
  expected.erase(expected.begin(), expected.begin() + std::min<ptrdiff_t>(static_cast<ptrdiff_t>(skip), std::ssize(expected)));
  EXPECT_EQ(seen.batches, expected) << text;
  EXPECT_EQ(seen.ends, expected.empty() ? std::vector<size_t>() : std::vector<size_t>{expected.size() - 1}) << text;
  if (!expected.empty()) {
    EXPECT_EQ(seen.remainder, remainder) << text;
  }
}

TEST(RandomLoader, PreparedLoadersAreThoseOfTheReference) {
  const accelerate::ProcessState state({.cpu = true, .environment = [](const std::string&) { return std::nullopt; }});
  random_cases::Dice dice(3);
  for (int i = 0; i < random_cases::count() && !::testing::Test::HasFailure(); ++i) {
    LoaderCase c(dice, 1 + dice.below(4));
    for (; c.sharding.process < c.sharding.processes; ++c.sharding.process) {
      LoaderPreparation preparation{.state = state,
                                    .configuration = c.configuration(false),
                                    .num_processes = static_cast<int>(c.sharding.processes),
                                    .process_index = static_cast<int>(c.sharding.process)};
      const auto all = prepare_data_loader(c.loader(), preparation);
      const auto loader = c.skip > 0 ? skip_first_batches(all, static_cast<int64_t>(c.skip)) : all;
      expect_pass(see_pass(loader), c.expected_batches(0), c.skip, c.expected_remainder(), c.text());
      EXPECT_EQ(size_or_unknown(loader), c.expected_size()) << c.text();
      if (c.skip == 0 && !c.samples.empty() && !c.expected_batches(0).empty()) {
        EXPECT_EQ(see_pass(loader).batches, c.expected_batches(1)) << "in the next epoch, " << c.text();
      }
    }
  }
}

class TogetherRandomLoader : public Together {};

TEST_F(TogetherRandomLoader, DispatchedLoadersAreThoseOfTheReference) {
  random_cases::Dice dice(4);
  for (int i = 0; i < random_cases::count() / 4; ++i) {
    LoaderCase c(dice, static_cast<size_t>(world()));
    c.sharding.process = static_cast<size_t>(rank());
    Lists read = c.whole(0);
    const size_t unread = c.kind == LoaderCase::map ? std::min(c.skip, read.size()) : 0;
    read.erase(read.begin(), read.begin() + static_cast<ptrdiff_t>(unread));
    const reference::Dispatched expected = reference::dispatch(read, c.sharding);
    const auto all = prepare_data_loader(c.loader(), LoaderPreparation{.state = state(), .configuration = c.configuration(true)});
    const auto loader = c.skip > 0 ? skip_first_batches(all, static_cast<int64_t>(c.skip)) : all;
    if (expected.batches.empty()) {
      EXPECT_THROW(see_pass(loader), accelerate::UsageError) << c.text();
      continue;
    }
    expect_pass(see_pass(loader), expected.batches, c.kind == LoaderCase::map ? 0 : c.skip,
                static_cast<int64_t>(expected.rows_of_last_step), c.text());
  }
}

}  // namespace
