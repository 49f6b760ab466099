#pragma once

#include <accelerate/data/prepared_loader.h>

#include "data/loader_core.h"

namespace accelerate::detail {

/// How a prepared loader goes through its data.
struct Sharing {
  ProcessState state;
  std::shared_ptr<GradientState> gradient_state = {};
  /// Where batches go; nowhere else when there is none.
  std::optional<at::Device> device = {};
  bool non_blocking = false;
  std::vector<RngType> rng_types = {};
  std::optional<at::Generator> synchronized = {};
  /// The main process reads for all.
  bool dispatch = false;
  bool split_batches = false;
  std::optional<int64_t> data_seed = {};
};

/// A loader that gives this process its part.
class PreparedCore : public LoaderCore {
 public:
  PreparedCore(Reading what, Sharing how) : LoaderCore(std::move(what)), sharing(std::move(how)) {}

  std::shared_ptr<LoaderPass> begin(std::source_location where) override;
  std::optional<int64_t> length() const override;
  std::optional<int64_t> total_batch_size() const override;
  std::shared_ptr<LoaderCore> skipping(Reading what, int64_t batches) const override;
  bool prepared() const override { return true; }
  SampleSeed sample_seed() const override;
  /// What is left for the last batch of all processes, as far as it is known before it comes; else -1.
  int64_t expected_remainder() const;

  const Sharing sharing;
};

}  // namespace accelerate::detail
