#pragma once

#include <memory>

#include "data/batch_stream.h"
#include "data/prepared_pass.h"

namespace accelerate::detail {

/// A pass for which the main process reads, one round ahead, and every process is sent its rows.
class DispatchPass : public PreparedPass {
 public:
  DispatchPass(std::shared_ptr<LoaderCore> core, std::source_location where);

 private:
  ErasedBatch next_batch() override;
  /// What all processes take in a step, as plain data. On the others its tensors come with `broadcast_round`.
  struct Round {
    Value batch;
    /// Shape and dtype of each tensor.
    Value::List kinds;
  };

  /// On the main process: the next round, or nothing. `last_` is set when there is none after it.
  std::optional<Value> read_round();
  std::vector<ErasedBatch> read_batches();
  Value join(const std::vector<ErasedBatch>& batches) const;
  /// Reads on the main process and tells the others what it has read, or why it could not.
  std::optional<Round> fetch();
  /// Resumes after the rounds that were handed out before the run was saved.
  void resume();
  void broadcast_round(Round& round);
  /// This process's rows of `round`, which is the last one or not.
  ErasedBatch share_of(Round& round, bool last);

  /// On the main process, from its first round on: a failure to open it is reported to the others too.
  std::unique_ptr<BatchStream> stream_;
  /// The first rows of the pass, to fill the last round up with.
  std::optional<Value> beginning_;
  std::optional<Round> ahead_;
  bool begun_ = false, last_ = false, ended_ = false;
  int64_t to_skip_;
  /// Rounds that the main process reads for nobody.
  int64_t to_drop_ = 0;
};

}  // namespace accelerate::detail
