#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/training/clip.h>

#include <vector>

namespace accelerate::detail {

class ShardedModel;

/// Parameters as their gradients are: those of sharded models by the pieces of this rank.
class ShardedGradients {
 public:
  ShardedGradients(const std::vector<const ShardedModel*>& models, const std::vector<at::Tensor>& parameters);

  /// Whether any is of a sharded model.
  bool any() const { return any_; }
  /// Pieces, and the parameters that are not sharded.
  std::vector<at::Tensor> all() const;
  /// Scales all gradients down so that the norm of the whole ones, over all ranks, is at most `max_norm`, and returns the norm
  /// that it was. All ranks call it.
  at::Tensor clip_norm(double max_norm, const ClipGradNormOptions& options) const;

 private:
  struct Sharded {
    const ShardedModel* model;
    std::vector<at::Tensor> pieces;
  };
  std::vector<Sharded> sharded_;
  std::vector<at::Tensor> rest_;
  bool any_ = false;
};

}  // namespace accelerate::detail
