#pragma once

#include <memory>

#include "data/batch_stream.h"
#include "data/device_feed.h"
#include "data/prepared_pass.h"

namespace accelerate::detail {

/// A pass over this process's own part, which it reads itself, one batch ahead of the one in hand.
class ShardPass : public PreparedPass {
 public:
  ShardPass(std::shared_ptr<LoaderCore> core, std::source_location where);

 private:
  ErasedBatch next_batch() override;
  void read_first();
  void send(const ErasedBatch& batch);

  const std::unique_ptr<BatchStream> stream_;
  DeviceFeed feed_;
  bool begun_ = false, had_batches_ = false;
  ErasedBatch ahead_;
};

}  // namespace accelerate::detail
