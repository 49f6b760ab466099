#pragma once

#include <accelerate/data/sampler.h>

#include <algorithm>
#include <concepts>
#include <memory>
#include <utility>

namespace accelerate {

struct BatchShardOptions {
  int num_processes = 1;
  int process_index = 0;
  /// Each process takes its slice of every batch; else batches go round, whole.
  bool split_batches = false;
  /// All processes get the same number of equally long batches: what is missing at the end is filled up with the beginning.
  /// Without it the last ones may be shorter on some processes, or missing.
  bool even_batches = true;
};

/// The batches of a batch sampler that are for one of several processes, all of which see the same ones. A round, a batch for
/// each process, is given out when it is complete; with drop_last an incomplete one never is.
class BatchSamplerShard : public BatchSampler {
 public:
  /// UsageError when batches are to be split and the batch size is unknown, or no multiple of the number of processes.
  BatchSamplerShard(std::shared_ptr<BatchSampler> batches, const BatchShardOptions& options);
  Source<Indices> batches() override { return batches_after(0); }
  /// Those that are left when `whole_batches` of the batch sampler have been given out before, to however many processes.
  Source<Indices> batches_after(int64_t whole_batches);
  /// With split_batches that of the whole, also where even_batches is off and a process is left without its last slice.
  std::optional<int64_t> size() const override;
  std::optional<int64_t> batch_size() const override { return whole_->batch_size(); }
  std::optional<int64_t> total_batch_size() const override;
  bool drop_last() const override { return whole_->drop_last(); }
  void set_epoch(int64_t epoch) override { whole_->set_epoch(epoch); }
  std::optional<at::Generator> generator() const override { return whole_->generator(); }
  std::optional<at::Generator> own_generator() override { return whole_->own_generator(); }

  const std::shared_ptr<BatchSampler>& whole() const { return whole_; }
  const BatchShardOptions& options() const { return options_; }
  /// For the passes that begin from now on.
  void set_even_batches(bool even_batches) { options_.even_batches = even_batches; }

 private:
  std::shared_ptr<BatchSampler> whole_;
  BatchShardOptions options_;
};

/// All but the first batches. Its batch_size is unknown, as Python's is.
class SkipBatchSampler : public BatchSampler {
 public:
  /// UsageError when there is no batch sampler, or less than nothing to skip.
  SkipBatchSampler(std::shared_ptr<BatchSampler> batches, int64_t skip_batches);
  Source<Indices> batches() override;
  std::optional<int64_t> size() const override;
  void set_epoch(int64_t epoch) override { whole_->set_epoch(epoch); }
  std::optional<at::Generator> generator() const override { return whole_->generator(); }
  std::optional<at::Generator> own_generator() override { return whole_->own_generator(); }

  const std::shared_ptr<BatchSampler>& whole() const { return whole_; }
  int64_t skip_batches() const { return skip_batches_; }

 private:
  std::shared_ptr<BatchSampler> whole_;
  int64_t skip_batches_;
};

struct IterableShardOptions {
  /// Of each process, or of all together with split_batches.
  int64_t batch_size = 1;
  bool drop_last = false;
  int num_processes = 1;
  int process_index = 0;
  bool split_batches = false;
};

/// Which elements of each round belong to a process: `begin` to `end` of `length`.
struct IterableRound {
  int64_t length = 0, begin = 0, end = 0;
};
/// UsageError when batches are to be split and their size is no multiple of the number of processes.
IterableRound iterable_round(const IterableShardOptions& options);
/// How many elements a process gets of `dataset_length`, as Python says it: batches are counted as if they were not split.
int64_t iterable_shard_size(int64_t dataset_length, const IterableShardOptions& options);

/// The elements of a stream that are for one of several processes, all of which read the same ones. They are given out by
/// rounds, and an incomplete last round is filled up with the beginning, or left out with drop_last. It is a Source itself.
template <std::copyable T>
class IterableDatasetShard {
 public:
  IterableDatasetShard(Source<T> elements, const IterableShardOptions& options)
      : elements_(std::move(elements)), round_(iterable_round(options)), drop_last_(options.drop_last) {}

  std::optional<T> operator()() {
    if (next_ == mine_.size()) read_round();
    return next_ < mine_.size() ? std::optional<T>(std::move(mine_[next_++])) : std::nullopt;
  }

 private:
  /// Keeps what is ours of a round, and the first round as a whole to fill the last one up with.
  void read_round() {
    mine_.clear();
    next_ = 0;
    if (ended_ || round_.begin == round_.end) return;
    for (int64_t i = 0; i < round_.length; ++i) {
      std::optional<T> element = elements_();
      if (!element) return fill_up(i);
      if (!first_is_complete_ && !drop_last_) first_.push_back(*element);
      if (i >= round_.begin && i < round_.end) mine_.push_back(std::move(*element));
    }
    first_is_complete_ = true;
  }

  void fill_up(int64_t read) {
    ended_ = true;
    if (drop_last_ || read == 0) return mine_.clear();
    for (int64_t i = std::max(read, round_.begin); i < round_.end; ++i) {
      mine_.push_back(first_[static_cast<size_t>(i - read) % first_.size()]);
    }
  }

  Source<T> elements_;
  IterableRound round_;
  bool drop_last_;
  std::vector<T> first_, mine_;
  size_t next_ = 0;
  bool first_is_complete_ = false, ended_ = false;
};

}  // namespace accelerate
