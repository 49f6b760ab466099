#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBody.h>
#include <accelerate/distributed/value.h>

#include <cstdint>
#include <optional>
#include <string>

namespace accelerate::detail {

struct LoaderSpec;

/// The states of the generators that a pass over a loader draws from when it begins; undefined where there is none.
struct RandomNumbers {
  at::Tensor of_default, of_options, of_order;

  /// As they are now.
  static RandomNumbers of(const LoaderSpec& spec);
  Value to_value() const;
  static RandomNumbers from_value(const Value& value);
  /// Sets the generators of the loader, but for torch's default one. A sampler that had a generator of its own gets one.
  void give_to(const LoaderSpec& spec) const;
};

/// Lets a pass begin with the random numbers of an earlier one, and puts torch's default generator back afterwards: what was
/// drawn at the beginning of an epoch is not drawn again when the run resumes in its middle.
class ReplayedNumbers {
 public:
  ReplayedNumbers(const LoaderSpec& spec, const RandomNumbers& start);
  ~ReplayedNumbers();
  ReplayedNumbers(const ReplayedNumbers&) = delete;
  ReplayedNumbers& operator=(const ReplayedNumbers&) = delete;

 private:
  at::Generator default_;
  at::Tensor present_;
};

/// What the positions of a pass refer to. In another order, or one of another length, the same position is another sample.
struct PassOrder {
  /// Samples in the dataset, and those that its sampler visits; nothing where they are not known.
  std::optional<int64_t> dataset_length = {}, sampler_length = {};
  /// What it is; empty where none decides the order.
  std::string sampler = {};
  /// How many batches of the user's own there are, before they are sharded; nothing where they are made of the sampler.
  std::optional<int64_t> batches = {};

  /// As a pass that begins now has it.
  static PassOrder of(const LoaderSpec& spec);
  Value to_value() const;
  static PassOrder from_value(const Value& value);
  /// How `now` differs, in words; empty where it does not, or one of the two is not known.
  std::string difference_to(const PassOrder& now) const;
};

/// Progress of the newest pass over a prepared loader, and how to reproduce its order.
struct LoaderProgress {
  int64_t epoch = 0;
  /// A pass has begun and has not reached its end.
  bool under_way = false;
  /// Its last batch was handed out: nothing is left of this epoch, whatever the data are when the run resumes.
  bool ended = false;
  /// What this process was given in it.
  int64_t batches = 0;
  /// The same for all processes together, counted before it is sharded: batches, or samples of an iterable dataset.
  int64_t shared = 0;
  int num_processes = 1;
  bool split_batches = false;
  RandomNumbers start;
  /// Nothing where it is not known: of a checkpoint of an earlier version.
  std::optional<PassOrder> order = {};
};

/// What a pass leaves out at its beginning.
struct PassStart {
  /// Batches, or samples of an iterable dataset, before they are sharded.
  int64_t shared = 0;
  /// Batches of this process.
  int64_t own = 0;
};

}  // namespace accelerate::detail
