#pragma once

#include "data/loader_core.h"
#include "data/open_loop.h"

namespace accelerate::detail {

/// One pass over a prepared loader, registered as the loop that a run is in until it ends or is given up.
class PreparedPass : public LoaderPass {
 public:
  ~PreparedPass() override { leave(); }
  /// Whatever fails ends the pass, which then is no epoch.
  ErasedBatch next() final;

 protected:
  virtual ErasedBatch next_batch() = 0;
  /// Makes the random numbers of all processes equal, registers the pass and tells everyone its number.
  PreparedPass(std::shared_ptr<LoaderCore> core, std::source_location where);

  const LoaderSpec& spec() const { return core_->spec; }
  const ShardingConfig& sharding() const { return *core_->sharding; }
  LoaderPosition& position() { return *position_; }

  /// The first random numbers have been drawn: what the training draws is its own again.
  void end_replay() { replay_.reset(); }

  /// The one place where the data end: the next pass is the next epoch. A pass without a single batch does not
  /// count.
  void finish(bool had_batches);

  const std::shared_ptr<LoaderCore> core_;
  const std::source_location where_;
  /// What is left out because it was handed out before the run was saved.
  PassStart start_;

 private:
  /// A batch is handed out.
  void count() {
    ++progress_->batches;
    progress_->shared = core_->shared_by(progress_->batches) + begun_at_;
  }
  LoaderProgress begin_or_resume();
  /// UsageError on all processes when their lengths differ.
  void compare_lengths() const;
  void leave();
  const OpenLoop loop_;
  std::shared_ptr<LoaderPosition> position_;
  std::shared_ptr<LoaderProgress> progress_;
  std::optional<ReplayedNumbers> replay_;
  int64_t begun_at_ = 0;
  bool failed_ = false;
};

}  // namespace accelerate::detail
