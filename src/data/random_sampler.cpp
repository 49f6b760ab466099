#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <accelerate/core/error.h>
#include <accelerate/data/random_sampler.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>

namespace accelerate {
namespace {

at::Generator generator_seeded_by_default_one() {
  const int64_t seed = at::empty({}, at::kLong).random_().item<int64_t>();
  return at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
}

/// Indices that were drawn at once.
class DrawnIndices {
 public:
  DrawnIndices() = default;
  DrawnIndices(at::Tensor drawn, int64_t count)
      : drawn_(std::move(drawn)), left_(drawn_.const_data_ptr<int64_t>(), static_cast<size_t>(count)) {}
  bool empty() const { return left_.empty(); }
  std::span<const int64_t> take(size_t at_most) {
    const auto taken = left_.first(std::min(at_most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }

 private:
  at::Tensor drawn_;
  std::span<const int64_t> left_;
};

/// What a pass draws from, and whether anything but this pass can tell how much of it was drawn.
struct PassGenerator {
  at::Generator generator;
  bool shared;
};

PassGenerator begin_random_pass(const std::optional<at::Generator>& given) {
  return given ? PassGenerator{*given, true} : PassGenerator{generator_seeded_by_default_one(), false};
}

PassGenerator begin_seeded_pass(const std::optional<at::Generator>& given, uint64_t seed) {
  if (!given) return {at::detail::createCPUGenerator(seed), false};
  at::Generator generator = *given;
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
  return {generator, true};
}

/// A pass of a RandomSampler: what it has drawn, and what it has yet to draw.
class RandomPass {
 public:
  RandomPass(int64_t length, int64_t count, bool replacement, PassGenerator source)
      : length_(length), left_(count), replacement_(replacement), source_(std::move(source)) {}

  std::span<const int64_t> operator()(size_t at_most) {
    while (drawn_.empty() && !ended_) replacement_ ? draw_anew() : shuffle();
    return drawn_.take(at_most);
  }

 private:
  /// A shared generator is asked for 32 at a time, as in Python. One of our own gives the same numbers however many are asked
  /// for at once, and many are quicker.
  void draw_anew() {
    const int64_t count = std::min<int64_t>(left_, source_.shared ? 32 : 4096);
    ended_ = count == 0;
    if (!ended_) drawn_ = DrawnIndices(at::randint(length_, {count}, source_.generator, at::kLong), count);
    left_ -= count;
  }

  /// Python ends with a shuffle of which it takes what is missing, and be that nothing: the next pass over a shared generator
  /// depends on it.
  void shuffle() {
    const int64_t count = std::min(left_, length_);
    ended_ = count < length_;
    if (count == 0 && !source_.shared) return;
    drawn_ = DrawnIndices(at::randperm(length_, source_.generator, at::kLong), count);
    left_ -= count;
  }

  int64_t length_, left_;
  bool replacement_, ended_ = false;
  PassGenerator source_;
  DrawnIndices drawn_;
};

void check_weights(const std::vector<double>& weights, int64_t num_samples, bool replacement) {
  if (num_samples < 1) {
    throw UsageError("WeightedRandomSampler was given num_samples = " + std::to_string(num_samples) + "; expected 1 or more.");
  }
  int64_t possible = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] < 0) {
      throw UsageError("WeightedRandomSampler was given the weight " + std::to_string(weights[i]) + " for sample " +
                       std::to_string(i) + "; expected a finite, non-negative number.");
    }
    if (weights[i] > 0) ++possible;
  }
  const int64_t needed = replacement ? 1 : num_samples;
  if (possible < needed) {
    throw UsageError("WeightedRandomSampler was given " + std::to_string(possible) + " positive weights, but draws " +
                     std::to_string(num_samples) + (replacement ? "." : " without replacement.") + " Expected at least " +
                     std::to_string(needed) + " positive weights" + (replacement ? "." : "; give more, or set replacement."));
  }
}

}  // namespace

std::optional<at::Generator> DrawnSampler::own_generator() {
  if (!generator_) generator_ = generator_seeded_by_default_one();
  return generator_;
}

Source<int64_t> DrawnSampler::indices() {
  return [next = blocks()]() mutable {
    const auto block = next(1);
    return block.empty() ? std::nullopt : std::optional(block.front());
  };
}

Source<Indices> DrawnSampler::runs(int64_t length) {
  const auto expected = static_cast<size_t>(std::clamp<int64_t>(size().value_or(0), 0, length));
  return [next = blocks(), expected, length = static_cast<size_t>(length), ended = false]() mutable -> std::optional<Indices> {
    Indices run;
    if (!ended) run.reserve(expected);
    while (!ended && run.size() < length) {
      const auto block = next(length - run.size());
      ended = block.empty();
      run.insert(run.end(), block.begin(), block.end());
    }
    return run.empty() ? std::nullopt : std::optional(std::move(run));
  };
}

RandomSampler::RandomSampler(int64_t length, RandomSamplerOptions options)
    : RandomSampler([length] { return length; }, std::move(options)) {}

RandomSampler::RandomSampler(DatasetLength length, RandomSamplerOptions options)
    : DrawnSampler(std::move(options.generator)),
      length_(std::move(length)),
      replacement_(options.replacement),
      num_samples_(options.num_samples) {
  checked_length();
  if (num_samples() < 1) {
    throw UsageError("RandomSampler was given num_samples = " + std::to_string(num_samples()) + "; expected 1 or more.");
  }
}

int64_t RandomSampler::checked_length() const {
  const int64_t present = length();
  if (present < 1) {
    throw UsageError("RandomSampler was given a length of " + std::to_string(present) +
                     "; expected 1 or more. A dataset without samples cannot be shuffled.");
  }
  return present;
}

DrawnSampler::Blocks RandomSampler::blocks() {
  const int64_t present = checked_length();
  return [made = options(), n = present, count = num_samples_.value_or(present),
          pass = std::optional<RandomPass>()](size_t at_most) mutable {
    if (!pass) pass.emplace(n, count, made.replacement, begin_random_pass(made.generator));
    return (*pass)(at_most);
  };
}

RandomSamplerOptions RandomSampler::options() const {
  return {.replacement = replacement_, .num_samples = num_samples_, .generator = generator()};
}

SeedableRandomSampler::SeedableRandomSampler(int64_t length, const SeedableSamplerOptions& seeds, RandomSamplerOptions options)
    : SeedableRandomSampler([length] { return length; }, seeds, std::move(options)) {}

SeedableRandomSampler::SeedableRandomSampler(DatasetLength length, const SeedableSamplerOptions& seeds,
                                             RandomSamplerOptions options)
    : RandomSampler(std::move(length), std::move(options)),
      initial_seed_(seeds.data_seed ? *seeds.data_seed : at::globalContext().defaultGenerator(at::kCPU).current_seed()),
      epoch_(std::make_shared<int64_t>(seeds.epoch)) {}

SeedableRandomSampler::SeedableRandomSampler(const RandomSampler& other, const SeedableSamplerOptions& seeds)
    : SeedableRandomSampler(other.length_, seeds, other.options()) {}

DrawnSampler::Blocks SeedableRandomSampler::blocks() {
  const int64_t present = checked_length();
  return [made = options(), n = present, count = num_samples_.value_or(present), first_seed = initial_seed_, epoch = epoch_,
          pass = std::optional<RandomPass>(), ended = false](size_t at_most) mutable {
    if (!pass) {
      const uint64_t seed = first_seed + static_cast<uint64_t>(*epoch);
      pass.emplace(n, count, made.replacement, begin_seeded_pass(made.generator, seed));
    }
    const auto block = (*pass)(at_most);
    if (block.empty() && !std::exchange(ended, true)) ++*epoch;
    return block;
  };
}

SubsetRandomSampler::SubsetRandomSampler(Indices subset, std::optional<at::Generator> generator)
    : DrawnSampler(std::move(generator)), subset_(std::make_shared<const Indices>(std::move(subset))) {}

DrawnSampler::Blocks SubsetRandomSampler::blocks() {
  return [subset = subset_, given = generator(), order = std::optional<DrawnIndices>()](size_t at_most) mutable {
    if (!order) {
      const auto length = static_cast<int64_t>(subset->size());
      const at::Tensor drawn = at::randperm(length, given, at::kLong);
      const std::span places(drawn.mutable_data_ptr<int64_t>(), subset->size());
      for (int64_t& place : places) place = (*subset)[static_cast<size_t>(place)];
      order.emplace(drawn, length);
    }
    return order->take(at_most);
  };
}

std::optional<int64_t> SubsetRandomSampler::size() const { return static_cast<int64_t>(subset_->size()); }

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, int64_t num_samples,
                                             const WeightedSamplerOptions& options)
    : DrawnSampler(options.generator),
      weights_(std::make_shared<const std::vector<double>>(std::move(weights))),
      num_samples_(num_samples),
      replacement_(options.replacement) {
  check_weights(*weights_, num_samples_, replacement_);
}

DrawnSampler::Blocks WeightedRandomSampler::blocks() {
  return [weights = weights_, count = num_samples_, replacement = replacement_, given = generator(),
          order = std::optional<DrawnIndices>()](size_t at_most) mutable {
    if (!order) order.emplace(at::multinomial(at::tensor(*weights, at::kDouble), count, replacement, given), count);
    return order->take(at_most);
  };
}

}  // namespace accelerate
