#include "generation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <accelerate/core/error.h>
#include <torch/torch.h>

#include "causal_lm.h"

namespace models {
namespace {

void check_generation(const at::Tensor& ids, const GenerationOptions& options) {
  const auto fail = [](const std::string& what) { throw accelerate::UsageError("generate: " + what); };
  if (ids.dim() != 2 || ids.size(0) == 0 || ids.size(1) == 0) {
    fail("ids must be [batch, positions] with at least one of each. A prompt needs at least one token.");
  }
  if (ids.scalar_type() != at::kLong) fail("ids must be int64.");
  if (options.max_new_tokens < 0) fail("max_new_tokens is negative.");
  if (!options.sample) return;
  if (!(options.temperature > 0)) fail("temperature must be above 0. To take the likeliest token, do not sample.");
  if (options.top_k < 0) fail("top_k is negative; 0 means all.");
  if (!(options.top_p > 0 && options.top_p <= 1)) fail("top_p must be above 0 and at most 1.");
}

at::Tensor is_any_of(const at::Tensor& tokens, const std::vector<int64_t>& wanted) {
  auto found = at::zeros_like(tokens, at::kBool);
  for (const auto token : wanted) found = found.logical_or(tokens == token);
  return found;
}

/// One token a row, [batch, 1].
at::Tensor choose(const at::Tensor& logits, const GenerationOptions& options, const at::Generator& generator) {
  if (!options.sample) return logits.argmax(-1, true);
  // On the CPU wherever the model is: a seed gives the same draws there.
  return sampling_probabilities(logits.to(at::kCPU), options).multinomial(1, false, generator).to(logits.device());
}

/// cuDNN plans attention anew for every length that it meets, which takes a tenth of a second for each token; other kernels of
/// torch are as fast and need no plan.
class WithoutCudnnAttention {
 public:
  WithoutCudnnAttention() { at::globalContext().setSDPUseCuDNN(false); }
  ~WithoutCudnnAttention() { at::globalContext().setSDPUseCuDNN(before_); }

 private:
  bool before_ = at::globalContext().userEnabledCuDNNSDP();
};

}  // namespace

at::Tensor sampling_probabilities(const at::Tensor& logits, const GenerationOptions& options) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  auto scores = logits.to(at::kFloat) / options.temperature;
  if (options.top_k > 0 && options.top_k < scores.size(-1)) {
    const auto last_kept = std::get<0>(scores.topk(options.top_k, -1)).narrow(-1, options.top_k - 1, 1);
    scores = scores.masked_fill(scores < last_kept, kNever);
  }
  if (options.top_p < 1) {
    // From the least likely on: those that are dropped may together have at most the rest of the probability.
    const auto [sorted, order] = scores.sort(-1, /*descending=*/false);
    auto dropped = sorted.softmax(-1).cumsum(-1) <= 1 - options.top_p;
    dropped.narrow(-1, dropped.size(-1) - 1, 1).fill_(false);
    scores = scores.masked_fill(dropped.scatter(-1, order, dropped), kNever);
  }
  return scores.softmax(-1);
}

at::Tensor generate(CausalLM& model, const at::Tensor& ids, const GenerationOptions& options) {
  check_generation(ids, options);
  // A GPU would only report this long after, and for the whole process.
  const int64_t known = model.config().vocab_size;
  if (ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= known) {
    throw accelerate::UsageError("generate: ids reach from " + std::to_string(ids.min().item<int64_t>()) + " to " +
                                 std::to_string(ids.max().item<int64_t>()) + ", but the model has tokens from 0 to " +
                                 std::to_string(known - 1) + ". Does the tokenizer belong to the model?");
  }
  const auto forward = [&](const at::Tensor& tokens, KeyValueCache* cache) {
    return model.forward(tokens, {.cache = cache, .last_only = true});
  };
  return generate(forward, ids, options);
}

at::Tensor generate(const NextTokenLogits& model, const at::Tensor& ids, const GenerationOptions& options) {
  check_generation(ids, options);
  const at::NoGradGuard no_grad;
  const WithoutCudnnAttention any_length;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  KeyValueCache cache(ids.size(1) + options.max_new_tokens);
  auto text = ids, given = ids;
  auto ended = at::zeros({ids.size(0), 1}, ids.options().dtype(at::kBool));
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const auto logits = model(given, options.use_cache ? &cache : nullptr).select(1, -1);
    auto next = choose(logits, options, generator);
    if (!options.end_tokens.empty()) {
      next = next.masked_fill(ended, options.pad_token.value_or(options.end_tokens.front()));
      ended = ended.logical_or(is_any_of(next, options.end_tokens));
    }
    text = at::cat({text, next}, 1);
    given = options.use_cache ? next : text;
    if (!options.end_tokens.empty() && ended.all().item<bool>()) break;
  }
  return text;
}

}  // namespace models
