#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <optional>
#include <vector>

namespace models {

class CausalLM;
class KeyValueCache;

struct GenerationOptions {
  int64_t max_new_tokens = 32;
  /// Draws tokens instead of taking the likeliest, by the three numbers below in this order.
  bool sample = false;
  double temperature = 1;
  /// Only the so many likeliest; 0: all.
  int64_t top_k = 0;
  /// Only the likeliest that together are at least this probable; 1: all.
  double top_p = 1;
  /// Of a generator that belongs to the call: the same seed gives the same text.
  uint64_t seed = 0;
  /// A sequence that has one of these is at its end, and is filled up with `pad_token` while others go on.
  std::vector<int64_t> end_tokens = {};
  /// Unset: the first end token.
  std::optional<int64_t> pad_token = {};
  /// Off: all positions are computed anew for each token. The same tokens, more slowly.
  bool use_cache = true;
};

/// The logits [batch, 1, vocabulary] of the last position of ids [batch, positions]; the cache is null when none is used.
using NextTokenLogits = std::function<at::Tensor(const at::Tensor& ids, KeyValueCache* cache)>;

/// The given ids [batch, positions], all rows of one length, and the new ones behind them. Gradients are not recorded.
/// accelerate::UsageError for options or ids that cannot mean anything.
at::Tensor generate(CausalLM& model, const at::Tensor& ids, const GenerationOptions& options = {});
/// The same for anything that gives logits, such as a model that a wrapper calls.
at::Tensor generate(const NextTokenLogits& model, const at::Tensor& ids, const GenerationOptions& options = {});

/// The probabilities [batch, vocabulary] by which tokens are drawn from logits of the same shape.
at::Tensor sampling_probabilities(const at::Tensor& logits, const GenerationOptions& options);

}  // namespace models
