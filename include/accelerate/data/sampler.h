#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace accelerate {

/// The positions of samples in a dataset.
using Indices = std::vector<int64_t>;

/// Returns the number of samples. Called whenever a pass begins, as a dataset may have grown or shrunk since.
using DatasetLength = std::function<int64_t()>;

/// Gives the next one each time it is called, and nothing at the end.
template <class T>
using Source = std::function<std::optional<T>()>;

/// Which samples a pass over a dataset visits, in which order. Derive from it for an order of your own:
///
///   struct Backwards : accelerate::Sampler {
///     accelerate::Source<int64_t> indices() override {
///       return [i = length]() mutable -> std::optional<int64_t> { return i > 0 ? std::optional(--i) : std::nullopt; };
///     }
///     std::optional<int64_t> size() const override { return length; }
///     int64_t length;
///   };
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Begins a pass. Several may be under way at once, and random numbers are drawn when the first index is asked for.
  virtual Source<int64_t> indices() = 0;
  /// Begins a pass that is given out in runs of `length`, with a shorter one at the end. By default it is made of indices();
  /// override it where many can be given at once.
  virtual Source<Indices> runs(int64_t length);
  /// How many indices a pass has; nothing when that is not known.
  virtual std::optional<int64_t> size() const { return std::nullopt; }
  /// Sets the number of the next pass, counted from 0.
  virtual void set_epoch(int64_t) {}
  /// The generator that decides the order, where there is one: processes are given that of the main process.
  virtual std::optional<at::Generator> generator() const { return std::nullopt; }
  /// The same, for processes that must draw the same numbers: a sampler that took its numbers from torch's default generator gets
  /// one of its own first, seeded from that. Nothing when the order is not drawn, or equal on all processes without help.
  virtual std::optional<at::Generator> own_generator() { return generator(); }
};

/// The same, by batches.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  /// Begins a pass, as Sampler::indices does.
  virtual Source<Indices> batches() = 0;
  /// How many batches a pass has; nothing when that is not known.
  virtual std::optional<int64_t> size() const { return std::nullopt; }
  /// The length of all batches but the last, before they are sharded; nothing when they vary.
  virtual std::optional<int64_t> batch_size() const { return std::nullopt; }
  /// How many samples all processes together take in a step.
  virtual std::optional<int64_t> total_batch_size() const { return batch_size(); }
  /// A last batch that is too short is left out.
  virtual bool drop_last() const { return false; }
  /// The rest is what the Sampler beneath says, where there is one.
  virtual void set_epoch(int64_t) {}
  virtual std::optional<at::Generator> generator() const { return std::nullopt; }
  virtual std::optional<at::Generator> own_generator() { return generator(); }
};

/// From the first to the last.
class SequentialSampler : public Sampler {
 public:
  /// UsageError when `length` is negative.
  explicit SequentialSampler(int64_t length);
  /// As many as there are when a pass begins: UsageError then, too.
  explicit SequentialSampler(DatasetLength length) : length_(std::move(length)) {}
  Source<int64_t> indices() override;
  Source<Indices> runs(int64_t length) override;
  std::optional<int64_t> size() const override { return length_(); }

 private:
  DatasetLength length_;
};

}  // namespace accelerate
