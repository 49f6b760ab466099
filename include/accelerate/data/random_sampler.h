#pragma once

#include <accelerate/data/sampler.h>

#include <memory>
#include <span>
#include <utility>

namespace accelerate {

/// A sampler that draws its order, from a generator that it was given or from torch's default one.
class DrawnSampler : public Sampler {
 public:
  Source<int64_t> indices() override;
  Source<Indices> runs(int64_t length) override;
  std::optional<at::Generator> generator() const override { return generator_; }
  std::optional<at::Generator> own_generator() override;

 protected:
  /// Gives up to so many of the next indices at once, where they stay until it is called again, and none at the end.
  using Blocks = std::function<std::span<const int64_t>(size_t at_most)>;

  explicit DrawnSampler(std::optional<at::Generator> generator) : generator_(std::move(generator)) {}
  /// Begins a pass, of which the others are made.
  virtual Blocks blocks() = 0;

 private:
  std::optional<at::Generator> generator_;
};

struct RandomSamplerOptions {
  /// Draw with replacement: some indices are repeated, others skipped.
  bool replacement = false;
  /// How many to draw; by default as many as there are. More of them without replacement are one shuffle after another.
  std::optional<int64_t> num_samples = {};
  /// Where the order comes from; by default a generator for each pass, seeded from torch's default one.
  std::optional<at::Generator> generator = {};
};

/// A shuffle of 0 to length - 1, the one that torch.utils.data.RandomSampler makes of the same generator.
class RandomSampler : public DrawnSampler {
 public:
  /// UsageError unless there is something to draw from and something to draw.
  explicit RandomSampler(int64_t length, RandomSamplerOptions options = {});
  /// Of as many as there are when a pass begins: UsageError then, too.
  explicit RandomSampler(DatasetLength length, RandomSamplerOptions options = {});
  std::optional<int64_t> size() const override { return num_samples(); }

  int64_t length() const { return length_(); }
  int64_t num_samples() const { return num_samples_ ? *num_samples_ : length(); }
  /// What it was made with; the generator is the present one.
  RandomSamplerOptions options() const;

 protected:
  Blocks blocks() override;
  /// The same, or UsageError when there is nothing to draw from.
  int64_t checked_length() const;

 private:
  friend class SeedableRandomSampler;
  DatasetLength length_;
  bool replacement_;
  std::optional<int64_t> num_samples_;
};

struct SeedableSamplerOptions {
  /// Where the seeds begin; by default at the seed that torch's default generator has now.
  std::optional<uint64_t> data_seed = {};
  /// The number of the first pass.
  int64_t epoch = 0;
};

/// A RandomSampler that starts each pass from the sum of a seed and the pass's number: a pass can be repeated, and processes
/// that agree on the seed agree on the order without communication.
class SeedableRandomSampler : public RandomSampler {
 public:
  explicit SeedableRandomSampler(int64_t length, const SeedableSamplerOptions& seeds = {}, RandomSamplerOptions options = {});
  explicit SeedableRandomSampler(DatasetLength length, const SeedableSamplerOptions& seeds = {},
                                 RandomSamplerOptions options = {});
  /// Draws what the other one draws. A generator that it was given is reseeded for each pass.
  explicit SeedableRandomSampler(const RandomSampler& other, const SeedableSamplerOptions& seeds = {});
  /// The next pass is this one. A pass that reaches its end advances the count.
  void set_epoch(int64_t epoch) override { *epoch_ = epoch; }
  /// Nothing: processes need not be given a generator to agree.
  std::optional<at::Generator> own_generator() override { return std::nullopt; }

  int64_t epoch() const { return *epoch_; }
  uint64_t initial_seed() const { return initial_seed_; }
  /// For the passes that begin from now on.
  void set_initial_seed(uint64_t seed) { initial_seed_ = seed; }

 protected:
  Blocks blocks() override;

 private:
  uint64_t initial_seed_;
  /// Shared with the passes under way, which count it on.
  std::shared_ptr<int64_t> epoch_;
};

/// The given indices in a random order, as torch.utils.data.SubsetRandomSampler draws them.
class SubsetRandomSampler : public DrawnSampler {
 public:
  explicit SubsetRandomSampler(Indices subset, std::optional<at::Generator> generator = {});
  std::optional<int64_t> size() const override;

 protected:
  Blocks blocks() override;

 private:
  std::shared_ptr<const Indices> subset_;
};

struct WeightedSamplerOptions {
  /// An index may come more than once.
  bool replacement = true;
  std::optional<at::Generator> generator = {};
};

/// Indices with the given probabilities, as torch.utils.data.WeightedRandomSampler draws them.
class WeightedRandomSampler : public DrawnSampler {
 public:
  /// The weights need not sum to 1. UsageError when they are no weights, or too few for what is drawn without replacement.
  WeightedRandomSampler(std::vector<double> weights, int64_t num_samples, const WeightedSamplerOptions& options = {});
  std::optional<int64_t> size() const override { return num_samples_; }

 protected:
  Blocks blocks() override;

 private:
  std::shared_ptr<const std::vector<double>> weights_;
  int64_t num_samples_;
  bool replacement_;
};

}  // namespace accelerate
