#include <ATen/ops/scalar_tensor.h>
#include <accelerate/accelerator/accelerator.h>
#include <accelerate/data/batch_sampler.h>
#include <accelerate/data/data_loader.h>

#include <algorithm>
#include <forward_list>

#include "sections.h"

namespace accelerate::self_test {
namespace {

using Batches = std::vector<Numbers>;
using Loader = DataLoader<at::Tensor>;

// The samples of a rank in a step, when sharding keeps the order of the dataset.
constexpr int64_t kShare = 4;

at::Tensor sample(int64_t i) { return at::scalar_tensor(i, at::kLong); }

struct Counting {
  int64_t length;
  size_t size() const { return static_cast<size_t>(length); }
  at::Tensor get(size_t i) const { return sample(static_cast<int64_t>(i)); }
};

// Not known by position, nor is its length known.
std::forward_list<at::Tensor> stream_of(int64_t length) {
  std::forward_list<at::Tensor> stream;
  for (int64_t i = length; i-- > 0;) stream.push_front(sample(i));
  return stream;
}

// A loader as a mode wants it: in all of them kShare samples reach each process in a step.
struct Mode {
  const char* name;
  bool split_batches;
  std::optional<bool> dispatch_batches;
  bool iterable = false;
};

constexpr std::array kSharded = {Mode{"a batch for each process", false, false}, Mode{"split_batches", true, false}};
constexpr std::array kDispatched = {Mode{"dispatch_batches", false, true},
                                    Mode{"dispatch_batches with split_batches", true, true}};
constexpr std::array kIterable = {Mode{"an iterable dataset", false, false, true},
                                  Mode{"an iterable dataset with split_batches", true, false, true},
                                  Mode{"an iterable dataset that is dispatched", false, true, true},
                                  Mode{"an iterable dataset that is dispatched and split", true, true, true}};

Loader prepared(Accelerator& accelerator, const Mode& mode, int64_t length, DataLoaderOptions options = {}) {
  options.batch_size = mode.split_batches ? kShare * accelerator.num_processes() : kShare;
  if (mode.iterable) return accelerator.prepare(DataLoader(stream_of(length), options));
  return accelerator.prepare(DataLoader(Counting{length}, options));
}

DataLoaderConfiguration configuration(const Mode& mode) {
  return {.split_batches = mode.split_batches, .dispatch_batches = mode.dispatch_batches};
}

Batches batches_of(const Loader& loader) {
  Batches batches;
  for (auto& batch : loader) batches.push_back(numbers_of(batch));
  return batches;
}

// What all processes saw, in the order of steps and in each of them of processes.
Numbers together(const Accelerator& accelerator, const Batches& mine) {
  const auto all = accelerator.gather_object(std::vector<Batches>{mine});
  Numbers samples;
  for (size_t step = 0;; ++step) {
    bool any = false;
    for (const auto& batches : all) {
      if (step >= batches.size()) continue;
      any = true;
      samples.insert(samples.end(), batches[step].begin(), batches[step].end());
    }
    if (!any) return samples;
  }
}

Numbers sorted(Numbers numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// The first `length` samples, then from the first on again until all processes have full batches.
Numbers filled_up(const Accelerator& accelerator, int64_t length) {
  const int64_t step = kShare * accelerator.num_processes();
  Numbers numbers;
  for (int64_t i = 0; i < (length + step - 1) / step * step; ++i) numbers.push_back(i % length);
  return numbers;
}

void expect_full_batches(Findings& findings, const Batches& batches, int64_t count, const std::string& name) {
  findings.equal(static_cast<int64_t>(batches.size()), count, "every process has its number of batches with " + name);
  for (const auto& batch : batches) {
    findings.equal(static_cast<int64_t>(batch.size()), kShare, "every batch is full with " + name);
  }
}

// A length that divides evenly must come out once, each sample in its place.
void check_even_length(Findings& findings, const Mode& mode) {
  Accelerator accelerator(patient({.dataloader = configuration(mode)}));
  const int64_t length = 3 * kShare * accelerator.num_processes();
  const auto loader = prepared(accelerator, mode, length);
  for (int pass = 0; pass < 2; ++pass) {
    const auto mine = batches_of(loader);
    expect_full_batches(findings, mine, 3, mode.name);
    findings.equal(together(accelerator, mine), range(0, length),
                   std::string("the data is sharded over the ranks with ") + mode.name);
  }
  for (const auto& batch : loader) {
    findings.expect(batch.device().type() == accelerator.device().type(),
                    std::string("batches are on the device with ") + mode.name);
  }
}

// Batches from the end of the dataset to its beginning.
class Backwards : public BatchSampler {
 public:
  explicit Backwards(int64_t count) : count_(count) {}
  Source<Indices> batches() override {
    return [i = count_]() mutable -> std::optional<Indices> {
      if (i == 0) return std::nullopt;
      --i;
      return range(i * kShare, (i + 1) * kShare);
    };
  }
  std::optional<int64_t> size() const override { return count_; }
  std::optional<int64_t> batch_size() const override { return kShare; }

 private:
  int64_t count_;
};

void check_metrics_of(Findings& findings, const Mode& mode, bool shuffle) {
  Accelerator accelerator(patient({.dataloader = configuration(mode)}));
  const int64_t length = 2 * kShare * accelerator.num_processes() + 3;
  const auto loader = prepared(accelerator, mode, length, {.shuffle = shuffle});
  Numbers samples;
  std::vector<std::string> names, expected;
  for (const auto& batch : loader) {
    const auto all = numbers_of(accelerator.gather_for_metrics(batch));
    samples.insert(samples.end(), all.begin(), all.end());
    std::vector<std::string> mine;
    for (const auto number : numbers_of(batch)) mine.push_back(std::to_string(number));
    for (auto& name : accelerator.gather_for_metrics(mine)) names.push_back(std::move(name));
  }
  for (const auto number : samples) expected.push_back(std::to_string(number));
  findings.equal(shuffle ? sorted(samples) : samples, range(0, length),
                 std::string("gather_for_metrics counts every sample once with ") + mode.name);
  findings.equal(names, expected, std::string("gather_for_metrics treats objects as it does tensors with ") + mode.name);
}

}  // namespace

void check_sharded_data(Accelerator&, Findings& findings) {
  for (const auto& mode : kSharded) check_even_length(findings, mode);
}

void check_dispatched_data(Accelerator&, Findings& findings) {
  for (const auto& mode : kDispatched) check_even_length(findings, mode);
}

void check_iterable_data(Accelerator&, Findings& findings) {
  for (const auto& mode : kIterable) check_even_length(findings, mode);
}

void check_uneven_data(Accelerator& first, Findings& findings) {
  const int64_t step = kShare * first.num_processes(), length = 2 * step + 3;
  for (const auto& mode : kSharded) {
    Accelerator even(patient({.dataloader = configuration(mode)}));
    auto mine = batches_of(prepared(even, mode, length));
    if (even.num_processes() > 1) {
      expect_full_batches(findings, mine, 3, std::string("even_batches and ") + mode.name);
      findings.equal(together(even, mine), filled_up(even, length),
                     std::string("even_batches completes the last batch with ") + mode.name);
    }
    mine = batches_of(prepared(even, mode, length, {.drop_last = true}));
    expect_full_batches(findings, mine, 2, std::string("drop_last and ") + mode.name);
    findings.equal(together(even, mine), range(0, 2 * step), std::string("drop_last drops the last batch with ") + mode.name);

    auto uneven_configuration = configuration(mode);
    uneven_configuration.even_batches = false;
    Accelerator uneven(patient({.dataloader = uneven_configuration}));
    findings.equal(together(uneven, batches_of(prepared(uneven, mode, length))), range(0, length),
                   std::string("without even_batches nothing is repeated with ") + mode.name);
  }
}

void check_shuffled_data(Accelerator& first, Findings& findings) {
  const int64_t length = 3 * kShare * first.num_processes();
  // The seeds differ, but the order must be that of the main process.
  set_seed(static_cast<uint64_t>(first.process_index()));
  for (const auto& mode : {kSharded[0], kSharded[1], kDispatched[0]}) {
    Accelerator accelerator(patient({.dataloader = configuration(mode)}));
    const auto loader = prepared(accelerator, mode, length, {.shuffle = true});
    const auto samples = together(accelerator, batches_of(loader));
    findings.equal(sorted(samples), range(0, length), std::string("a shuffle keeps every sample with ") + mode.name);
    findings.expect(samples != range(0, length), std::string("a shuffle changes the order with ") + mode.name);
  }
  Accelerator accelerator(patient({.dataloader = {.use_seedable_sampler = true, .data_seed = 42}}));
  const auto pass = [&](int64_t epoch) {
    auto loader = prepared(accelerator, kSharded[0], length, {.shuffle = true});
    loader.set_epoch(epoch);
    return together(accelerator, batches_of(loader));
  };
  const auto epoch_0 = pass(0), epoch_1 = pass(1);
  findings.equal(sorted(epoch_0), range(0, length), "a seedable shuffle keeps every sample");
  findings.expect(epoch_0 != epoch_1, "epochs of a seedable shuffle differ");
  set_seed(99);
  findings.equal(pass(1), epoch_1, "an epoch of a seedable shuffle can be repeated");
}

void check_batch_samplers(Accelerator&, Findings& findings) {
  Accelerator accelerator(patient());
  const int64_t world = accelerator.num_processes(), rank = accelerator.process_index(), count = 3 * world;
  const auto loader =
      accelerator.prepare(DataLoader(Counting{count * kShare}, {.batch_sampler = std::make_shared<Backwards>(count)}));
  const auto mine = batches_of(loader);
  expect_full_batches(findings, mine, 3, "a batch sampler");
  for (int64_t step = 0; step < static_cast<int64_t>(mine.size()); ++step) {
    const int64_t batch = count - 1 - (step * world + rank);
    findings.equal(mine[static_cast<size_t>(step)], range(batch * kShare, (batch + 1) * kShare),
                   "the batches of a batch sampler are assigned round-robin");
  }
}

void check_skipped_batches(Accelerator&, Findings& findings) {
  // Dispatched without split_batches it counts what the main process reads, as in Python, and that is no whole number of steps.
  for (const auto& mode : {kSharded[0], kSharded[1], kDispatched[1], kIterable[0], kIterable[2]}) {
    Accelerator accelerator(patient({.dataloader = configuration(mode)}));
    const int64_t step = kShare * accelerator.num_processes();
    const auto rest = skip_first_batches(prepared(accelerator, mode, 3 * step), 2);
    const auto mine = batches_of(rest);
    expect_full_batches(findings, mine, 1, std::string("skip_first_batches and ") + mode.name);
    findings.equal(together(accelerator, mine), range(2 * step, 3 * step),
                   std::string("skip_first_batches continues after the skipped batches with ") + mode.name);
  }
}

void check_metrics(Accelerator&, Findings& findings) {
  for (const bool shuffle : {false, true}) {
    for (const auto& mode : kSharded) check_metrics_of(findings, mode, shuffle);
    for (const auto& mode : kDispatched) check_metrics_of(findings, mode, shuffle);
  }
  check_metrics_of(findings, kIterable[2], false);
}

}  // namespace accelerate::self_test
