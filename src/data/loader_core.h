#pragma once

#include <accelerate/data/data_loader.h>
#include <accelerate/distributed/value.h>
#include <accelerate/training/gradient_state.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "data/loader_spec.h"

namespace accelerate::detail {

/// A data loader whatever its batches are.
class LoaderCore : public std::enable_shared_from_this<LoaderCore> {
 public:
  explicit LoaderCore(LoaderSpec what) : spec(std::move(what)) {}
  virtual ~LoaderCore() = default;

  /// Begins a pass. `where` is the line that asked for it.
  virtual std::shared_ptr<LoaderPass> begin(std::source_location where);
  virtual std::optional<int64_t> length() const { return spec.length(); }
  virtual std::optional<int64_t> total_batch_size() const { return spec.total_batch_size(); }
  /// The same loader without its first `batches`: over another reading that begins later, or by reading and dropping them.
  virtual std::shared_ptr<LoaderCore> skipping(LoaderSpec what, int64_t batches);
  /// Whether `what` begins later than the reading of this one.
  bool skips_by_sampler() const { return spec.batches != nullptr; }
  virtual bool prepared() const { return false; }
  /// What the generators of samples depend on in the pass that begins now.
  virtual SampleSeed sample_seed() const;
  /// See LoaderHandle. UsageError from one that is not prepared.
  virtual StateDict state_dict() const;
  virtual void load_state_dict(const StateDict& state);
  /// Puts back what load_state_dict changes, whatever the data are by then.
  virtual std::function<void()> undo_of_load();

  void set_epoch(int64_t epoch) {
    iteration = epoch;
    spec.set_epoch(epoch);
  }

  const LoaderSpec spec;
  /// The number of the next pass. Threads may each make passes of their own over one loader.
  std::atomic<int64_t> iteration = 0;
  /// Batches that are read and thrown away at the start of a pass; those of map-style datasets are skipped by their sampler.
  int64_t skip_batches = 0;
  /// Where the newest pass is.
  std::shared_ptr<LoaderPosition> position = std::make_shared<LoaderPosition>();
};

}  // namespace accelerate::detail
