#include <accelerate/core/error.h>
#include <accelerate/data/sharding.h>

#include <deque>
#include <string>

namespace accelerate {
namespace {

void check_process(const std::string& who, int num_processes, int process_index) {
  if (num_processes < 1 || process_index < 0 || process_index >= num_processes) {
    throw UsageError(who + " was given process_index " + std::to_string(process_index) + " of num_processes " +
                     std::to_string(num_processes) + "; expected 0 <= process_index < num_processes.");
  }
}

void check_divisible(const std::string& who, std::optional<int64_t> batch_size, int num_processes) {
  if (batch_size && *batch_size % num_processes == 0) return;
  throw UsageError(who + " splits batches between " + std::to_string(num_processes) + " processes, but the batch size is " +
                   (batch_size ? std::to_string(*batch_size) : "unknown") +
                   "; expected a multiple of the number of processes. Choose another batch size, or turn split_batches off.");
}

/// Where a pass's missing indices come from: its own beginning, over and over.
class Beginning {
 public:
  void add(const Indices& batch) { indices_.insert(indices_.end(), batch.begin(), batch.end()); }
  bool empty() const { return indices_.empty(); }
  void append(Indices& batch, size_t from, size_t count) const {
    for (size_t i = from; i < from + count; ++i) batch.push_back(indices_[i % indices_.size()]);
  }

 private:
  Indices indices_;
};

/// What is common to both ways of sharding: the batches of all processes, and how a pass over them ends.
struct SharedPass {
  SharedPass(BatchSampler& whole, const BatchShardOptions& shard, int64_t given_out)
      : next(whole.batches()), skip(given_out), full_length(whole.batch_size()), drop_last(whole.drop_last()), options(shard) {}

  bool is_full(const Indices& batch) const { return !full_length || static_cast<int64_t>(batch.size()) == *full_length; }

  /// The next batch of all processes. One longer than was announced would silently be lost.
  std::optional<Indices> read() {
    for (; skip > 0 && next(); --skip) {
    }
    std::optional<Indices> batch = next();
    if (batch && full_length && static_cast<int64_t>(batch->size()) > *full_length) {
      throw UsageError("A batch sampler with batch_size " + std::to_string(*full_length) + " returned a batch of " +
                       std::to_string(batch->size()) +
                       "; expected at most batch_size. A sampler of varying batches must not have a batch_size.");
    }
    return batch;
  }

  Source<Indices> next;
  int64_t skip;
  std::optional<int64_t> full_length;
  bool drop_last;
  BatchShardOptions options;
};

/// Whole batches: each process takes every num_processes-th.
class RoundRobinPass : SharedPass {
 public:
  using SharedPass::SharedPass;

  std::optional<Indices> operator()() {
    while (!ended_) {
      std::optional<Indices> batch = read();
      if (!batch) {
        finish();
      } else if (take(std::move(*batch))) {
        return std::exchange(mine_, std::nullopt);
      }
    }
    if (leftovers_.empty()) return std::nullopt;
    Indices batch = std::move(leftovers_.front());
    leftovers_.pop_front();
    return batch;
  }

 private:
  /// Keeps of a batch what may be needed, and says whether it completes a round.
  bool take(Indices batch) {
    const bool full = is_full(batch);
    if (options.even_batches && !drop_last && seen_ < options.num_processes) keep(batch);
    const auto slot = static_cast<int>(seen_++ % options.num_processes);
    short_.reset();
    if (!full) short_ = batch;
    if (slot == options.process_index) mine_ = std::move(batch);
    return full && slot == options.num_processes - 1;
  }

  void keep(const Indices& batch) { full_length ? beginning_.add(batch) : first_batches_.push_back(batch); }

  void finish() {
    ended_ = true;
    if (drop_last) return;
    const bool whole = mine_ && !mine_->empty() && (!options.even_batches || is_full(*mine_));
    if (whole) leftovers_.push_back(std::move(*mine_));
    if (options.even_batches) complete_round();
  }

  /// The first slot to be filled is that of a short last batch, or the one after a full one; ours comes a number of slots
  /// later, and what the slots before it took is where ours begins.
  void complete_round() {
    if (beginning_.empty() && first_batches_.empty()) return;
    const Indices last = short_.value_or(Indices());
    const int64_t first_slot = (short_ ? seen_ - 1 : seen_) % options.num_processes;
    if ((first_slot == 0 && last.empty()) || options.process_index < first_slot) return;
    const auto slots_before = static_cast<size_t>(options.process_index - first_slot);
    if (!full_length) return leftovers_.push_back(first_batches_[slots_before % first_batches_.size()]);
    const auto length = static_cast<size_t>(*full_length);
    Indices batch = slots_before == 0 ? last : Indices();
    const size_t taken = slots_before == 0 ? 0 : slots_before * length - last.size();
    beginning_.append(batch, taken, length - batch.size());
    leftovers_.push_back(std::move(batch));
  }

  int64_t seen_ = 0;
  bool ended_ = false;
  std::optional<Indices> mine_, short_;
  Beginning beginning_;
  std::vector<Indices> first_batches_;
  std::deque<Indices> leftovers_;
};

/// Slices: each process takes its part of every batch.
class SlicePass : SharedPass {
 public:
  SlicePass(BatchSampler& whole, const BatchShardOptions& shard, int64_t given_out)
      : SharedPass(whole, shard, given_out), length_(static_cast<size_t>(*full_length / shard.num_processes)) {}

  std::optional<Indices> operator()() {
    while (!ended_) {
      std::optional<Indices> batch = read();
      if (!batch) return finish();
      if (options.even_batches && !drop_last && std::exchange(at_first_, false)) beginning_.add(*batch);
      short_.reset();
      if (is_full(*batch)) return slice_of(*batch);
      short_ = std::move(*batch);
    }
    return std::nullopt;
  }

 private:
  Indices slice_of(const Indices& batch) const {
    const size_t begin = length_ * static_cast<size_t>(options.process_index);
    const size_t end = std::min(begin + length_, batch.size());
    return begin < end ? Indices(batch.begin() + static_cast<ptrdiff_t>(begin), batch.begin() + static_cast<ptrdiff_t>(end))
                       : Indices();
  }

  std::optional<Indices> finish() {
    ended_ = true;
    if (drop_last || !short_) return std::nullopt;
    if (!beginning_.empty()) beginning_.append(*short_, 0, static_cast<size_t>(*full_length) - short_->size());
    Indices slice = slice_of(*short_);
    return slice.empty() ? std::nullopt : std::optional(std::move(slice));
  }

  size_t length_;
  bool at_first_ = true, ended_ = false;
  std::optional<Indices> short_;
  Beginning beginning_;
};

}  // namespace

BatchSamplerShard::BatchSamplerShard(std::shared_ptr<BatchSampler> batches, const BatchShardOptions& options)
    : whole_(std::move(batches)), options_(options) {
  if (!whole_) throw UsageError("BatchSamplerShard was given a null batch sampler.");
  check_process("BatchSamplerShard", options_.num_processes, options_.process_index);
  if (options_.split_batches) check_divisible("BatchSamplerShard", whole_->batch_size(), options_.num_processes);
}

Source<Indices> BatchSamplerShard::batches_after(int64_t whole_batches) {
  // The batch sampler goes along: a pass may outlive the loader that began it.
  if (options_.split_batches)
    return [whole = whole_, pass = SlicePass(*whole_, options_, whole_batches)]() mutable { return pass(); };
  return [whole = whole_, pass = RoundRobinPass(*whole_, options_, whole_batches)]() mutable { return pass(); };
}

std::optional<int64_t> BatchSamplerShard::size() const {
  const std::optional<int64_t> all = whole_->size();
  if (!all || options_.split_batches) return all;
  const int64_t rounds = *all / options_.num_processes, rest = *all % options_.num_processes;
  const bool one_more = rest > 0 && !drop_last() && (options_.even_batches || options_.process_index < rest);
  return rounds + (one_more ? 1 : 0);
}

std::optional<int64_t> BatchSamplerShard::total_batch_size() const {
  const std::optional<int64_t> length = batch_size();
  if (!length || options_.split_batches) return length;
  return *length * options_.num_processes;
}

SkipBatchSampler::SkipBatchSampler(std::shared_ptr<BatchSampler> batches, int64_t skip_batches)
    : whole_(std::move(batches)), skip_batches_(skip_batches) {
  if (!whole_) throw UsageError("SkipBatchSampler was given a null batch sampler.");
  if (skip_batches_ < 0) {
    throw UsageError("SkipBatchSampler was given skip_batches=" + std::to_string(skip_batches_) + "; expected 0 or more.");
  }
}

Source<Indices> SkipBatchSampler::batches() {
  return [whole = whole_, next = whole_->batches(), skip = skip_batches_]() mutable -> std::optional<Indices> {
    for (; skip > 0; --skip) {
      if (!next()) {
        skip = 0;
        return std::nullopt;
      }
    }
    return next();
  };
}

std::optional<int64_t> SkipBatchSampler::size() const {
  const std::optional<int64_t> all = whole_->size();
  return all ? std::optional(std::max<int64_t>(0, *all - skip_batches_)) : std::nullopt;
}

IterableRound iterable_round(const IterableShardOptions& options) {
  check_process("IterableDatasetShard", options.num_processes, options.process_index);
  if (options.batch_size < 1) {
    throw UsageError("IterableDatasetShard was given a batch_size of " + std::to_string(options.batch_size) +
                     "; expected 1 or more.");
  }
  if (options.split_batches && options.batch_size > 1) {
    check_divisible("IterableDatasetShard", options.batch_size, options.num_processes);
  }
  const int64_t length = options.split_batches ? options.batch_size : options.batch_size * options.num_processes;
  const int64_t mine = length / options.num_processes;
  return {.length = length, .begin = mine * options.process_index, .end = mine * (options.process_index + 1)};
}

int64_t iterable_shard_size(int64_t dataset_length, const IterableShardOptions& options) {
  const int64_t round = options.batch_size * options.num_processes;
  return (dataset_length + (options.drop_last ? 0 : round - 1)) / round * options.batch_size;
}

}  // namespace accelerate
