#pragma once

#include <torch/nn/module.h>

#include <string>

#include "config.h"
#include "key_value_cache.h"

namespace models {

/// Root mean square normalisation, computed in float32 whatever the dtype of the input is.
class RMSNorm : public torch::nn::Module {
 public:
  RMSNorm(int64_t width, double eps);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
  double eps_;
};

/// A linear layer whose weight lies as [in, out], as GPT-2's checkpoints have it.
class Conv1D : public torch::nn::Module {
 public:
  Conv1D(int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_, bias_;
};

/// The activation that transformers calls `name`; accelerate::ConfigError for one that is not known here.
using Activation = at::Tensor (*)(const at::Tensor&);
Activation activation_named(const std::string& name);

struct AttentionOptions {
  /// What products of queries and keys are multiplied with; 0: one by the root of the head's width.
  double scale = 0;
  /// How far back a position sees; 0: to the beginning.
  int64_t window = 0;
};

/// Attention of each position to itself and those before it. Queries are the last positions of those that keys and values have;
/// several heads of queries may share one of keys and values. All are [batch, heads, positions, head_dim].
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            const AttentionOptions& options = {});

/// at::linear with rows of zeros added to the weight until there are a multiple of `multiple`, and their results left out: the
/// same values and gradients.
at::Tensor linear_filled_up(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            int64_t multiple);
/// The logits of a head whose weight is that of the embedding, filled up where that pays.
at::Tensor tied_logits(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias = {});

/// How well the next tokens are named: the mean cross entropy of the logits `hidden` [batch, positions, width] times the head's
/// weight, for `labels` [batch, positions], each to be named by the position before it; -100: not at all. In float32. The second
/// fills the weight up where that pays.
at::Tensor next_token_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, int64_t multiple);
at::Tensor next_token_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels);

/// [batch, positions, heads * head_dim] as [batch, heads, positions, head_dim], and back.
at::Tensor split_heads(const at::Tensor& x, int64_t heads);
at::Tensor merge_heads(const at::Tensor& x);

/// Cosine and sine of the angles by which positions turn queries and keys, [positions, head_dim] each.
struct Rotation {
  at::Tensor cosine, sine;
};

/// The rotation of `count` positions from `first` on, on the device and in the dtype of `like`. It is made in each forward
/// instead of being kept in a buffer: checkpoints do not have it, and a model may be built without memory.
Rotation rotation_of(const RopeConfig& rope, int64_t head_dim, int64_t first, int64_t count, const at::Tensor& like);

/// Queries or keys, turned.
at::Tensor rotated(const at::Tensor& x, const Rotation& rotation);

}  // namespace models
