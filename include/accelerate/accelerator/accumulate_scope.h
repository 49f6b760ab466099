#pragma once

#include <accelerate/parallel/model.h>

#include <vector>

namespace accelerate {

/// What `accumulate` returns: while it lives, gradients stay on this process where the batch is not one that exchanges them.
class [[nodiscard]] AccumulateScope {
 public:
  explicit AccumulateScope(std::vector<NoSyncScope> kept_here) : kept_here_(std::move(kept_here)) {}

 private:
  std::vector<NoSyncScope> kept_here_;
};

}  // namespace accelerate
