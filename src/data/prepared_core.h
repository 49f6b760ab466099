#pragma once

#include <accelerate/data/prepared_loader.h>

#include "data/loader_core.h"
#include "data/loader_progress.h"

namespace accelerate {
class SeedableRandomSampler;
}

namespace accelerate::detail {

/// How a prepared loader goes through its data.
struct ShardingConfig {
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
  PreparedCore(LoaderSpec what, ShardingConfig how) : LoaderCore(std::move(what)), sharing(std::move(how)) {}

  std::shared_ptr<LoaderPass> begin(std::source_location where) override;
  std::optional<int64_t> length() const override;
  std::optional<int64_t> total_batch_size() const override;
  std::shared_ptr<LoaderCore> skipping(LoaderSpec what, int64_t batches) override;
  bool prepared() const override { return true; }
  SampleSeed sample_seed() const override;
  /// What is left for the last batch of all processes when `shared` of it was given out before the pass began, as far as it is
  /// known before that batch comes; else -1.
  int64_t expected_remainder(int64_t shared) const;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  std::function<void()> undo_of_load() override;
  /// What a pass that begins now resumes: loaded here, or into the loader that this one is a part of. Nothing for one that begins
  /// at its beginning.
  std::optional<LoaderProgress> take_resumed();
  /// Among how many processes the data are shared out.
  int num_processes() const;
  /// What so many batches of each process are before they are shared out.
  int64_t shared_by(int64_t batches) const;

  const ShardingConfig sharing;
  /// Of the newest pass.
  std::shared_ptr<LoaderProgress> progress = std::make_shared<LoaderProgress>();
  /// The next pass goes on here.
  std::optional<LoaderProgress> resumed = {};
  /// The loader that this one is without its first `skipped` batches, whose progress it makes; null: this one itself.
  std::shared_ptr<PreparedCore> origin = {};
  int64_t skipped = 0;

 private:
  /// Null where the order is not drawn from a seed.
  SeedableRandomSampler* seedable() const;
  /// UsageError when the position of `at`, which is in the middle of an epoch, means other samples here.
  void check_resumable(const StateDict& state, const LoaderProgress& at) const;
};

}  // namespace accelerate::detail
