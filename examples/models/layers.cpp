#include "layers.h"

#include <ATen/autocast_mode.h>
#include <accelerate/core/error.h>
#include <torch/torch.h>

#include <limits>
#include <numbers>

namespace models {
namespace {

/// Which positions see which, as scaled_dot_product_attention takes it: true where they do.
at::Tensor visible(int64_t queries, int64_t keys, int64_t window, const at::Tensor& like) {
  const auto key = at::arange(keys, like.options().dtype(at::kLong));
  const auto query = at::arange(keys - queries, keys, like.options().dtype(at::kLong)).unsqueeze(1);
  auto sees = key <= query;
  if (window > 0) sees = sees.logical_and(key > query - window);
  return sees;
}

at::Tensor frequencies(const RopeConfig& rope, int64_t head_dim, const at::TensorOptions& options) {
  const auto exponents = at::arange(0, head_dim, 2, options) / static_cast<double>(head_dim);
  const auto plain = at::reciprocal(at::pow(rope.theta, exponents));
  if (rope.type == "default") return plain;
  if (rope.type == "linear") return plain / rope.factor;
  // Llama 3: slow rotations are stretched, fast ones stay, and those between pass from one to the other.
  const auto length = static_cast<double>(rope.original_max_positions);
  const auto wavelengths = 2 * std::numbers::pi / plain;
  const auto smooth = (length / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const auto between = (1 - smooth) * plain / rope.factor + smooth * plain;
  const auto slow = wavelengths > length / rope.low_freq_factor;
  const auto fast = wavelengths < length / rope.high_freq_factor;
  return at::where(slow, plain / rope.factor, at::where(fast, plain, between));
}

constexpr int64_t kNoLabel = -100;

int64_t missing_rows(const at::Tensor& weight, int64_t multiple) { return (multiple - weight.size(0) % multiple) % multiple; }

/// For half precision GPUs have fast kernels only for rows of eight numbers. For a few tokens the product costs less than
/// filling up.
int64_t multiple_that_pays(const at::Tensor& x, const at::Tensor& weight) {
  constexpr int64_t kMultiple = 64, kManyTokens = 256;
  const bool in_half = at::autocast::is_autocast_enabled(at::kCUDA) || at::isReducedFloatingType(weight.scalar_type());
  return weight.is_cuda() && in_half && x.numel() >= kManyTokens * x.size(-1) ? kMultiple : 1;
}

/// Filling up is a copy: of half the size after autocast.
at::Tensor in_dtype_of_products(const at::Tensor& weight) {
  const auto device = weight.device().type();
  return at::autocast::is_autocast_enabled(device) ? weight.to(at::autocast::get_autocast_dtype(device)) : weight;
}

/// The cross entropy of x times a head, both in half precision, on a GPU. Arrays of the size of the logits are the work: there is
/// one in float32 for the backward pass and one in half precision within it, and each number is read or written nine times, where
/// one operator after the other does it twenty times. The mean is taken of small arrays, before and after the products.
struct HeadLoss : torch::autograd::Function<HeadLoss> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& head,
                            const at::Tensor& next, int64_t rows) {
    at::Tensor logits = at::mm(x, head.t(), at::kFloat);
    // What the head is filled up with is never the next token.
    logits.narrow(1, rows, head.size(0) - rows).fill_(-std::numeric_limits<double>::infinity());
    const auto logs = at::log_softmax(logits, 1);
    context->save_for_backward({x, head, logs, next});
    return at::nll_loss(logs, next, /*weight=*/{}, at::Reduction::Mean, kNoLabel);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &head = saved[1], &logs = saved[2], &next = saved[3];
    const auto is_named = next.ne(kNoLabel);
    const auto share = (is_named * (gradients[0] / is_named.sum())).unsqueeze(1);
    // By a logit: its probability, and one less at the label.
    auto change = at::empty_like(logs, x.options());
    at::exp_out(change, logs);
    const auto label = next.clamp_min(0).unsqueeze(1);
    change.scatter_(1, label, logs.gather(1, label).expm1_().to(x.scalar_type()));
    return {(at::mm(change, head) * share).to(x.scalar_type()), at::mm(change.t(), (x * share).to(x.scalar_type())), {}, {}};
  }
};

}  // namespace

RMSNorm::RMSNorm(int64_t width, double eps) : eps_(eps) { weight_ = register_parameter("weight", torch::ones({width})); }

at::Tensor RMSNorm::forward(const at::Tensor& x) {
  const auto wide = x.to(at::kFloat);
  return weight_ * (wide * at::rsqrt(wide.square().mean(-1, true) + eps_)).to(x.scalar_type());
}

Conv1D::Conv1D(int64_t in, int64_t out) {
  weight_ = register_parameter("weight", torch::normal(0.0, 0.02, {in, out}, std::nullopt));
  bias_ = register_parameter("bias", torch::zeros({out}));
}

/// One operator, so that the bias is added while the product is made, in the dtype of the product.
at::Tensor Conv1D::forward(const at::Tensor& x) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight_.size(1);
  return at::addmm(bias_, x.reshape({-1, x.size(-1)}), weight_).view(sizes);
}

Activation activation_named(const std::string& name) {
  if (name == "gelu") return +[](const at::Tensor& x) { return at::gelu(x); };
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return +[](const at::Tensor& x) { return at::gelu(x, "tanh"); };
  if (name == "silu" || name == "swish") return +[](const at::Tensor& x) { return at::silu(x); };
  if (name == "relu") return +[](const at::Tensor& x) { return at::relu(x); };
  if (name == "tanh") return +[](const at::Tensor& x) { return at::tanh(x); };
  throw accelerate::ConfigError("The model asks for the activation '" + name +
                                "'; gelu, gelu_new, gelu_pytorch_tanh, silu, swish, relu and tanh are supported.");
}

at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            const AttentionOptions& options) {
  const int64_t asked = queries.size(2), seen = keys.size(2);
  const bool windowed = options.window > 0 && seen > options.window;
  const bool whole = asked == seen && !windowed;  // for which torch has kernels that need no mask
  std::optional<at::Tensor> mask;
  if (!whole && (asked > 1 || windowed)) mask = visible(asked, seen, options.window, queries);
  std::optional<double> scale;
  if (options.scale != 0) scale = options.scale;
  return at::scaled_dot_product_attention(queries, keys, values, mask, /*dropout_p=*/0, /*is_causal=*/whole && asked > 1, scale,
                                          /*enable_gqa=*/queries.size(1) != keys.size(1));
}

at::Tensor linear_filled_up(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            int64_t multiple) {
  const int64_t rows = weight.size(0), missing = missing_rows(weight, multiple);
  if (missing == 0) return at::linear(x, weight, bias);
  std::optional<at::Tensor> filled_bias;
  if (bias) filled_bias = at::constant_pad_nd(*bias, {0, missing});
  return at::linear(x, at::constant_pad_nd(in_dtype_of_products(weight), {0, 0, 0, missing}), filled_bias).narrow(-1, 0, rows);
}

at::Tensor tied_logits(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return linear_filled_up(x, weight, bias, multiple_that_pays(x, weight));
}

at::Tensor next_token_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, int64_t multiple) {
  // Labels move instead of logits, which then need no copy. Behind the last is none.
  const auto next = at::constant_pad_nd(labels, {0, 1}, kNoLabel).narrow(1, 1, labels.size(1)).reshape({-1});
  const auto x = hidden.reshape({-1, hidden.size(-1)}), head = in_dtype_of_products(weight);
  if (head.is_cuda() && at::isReducedFloatingType(head.scalar_type())) {
    const auto filled = at::constant_pad_nd(head, {0, 0, 0, missing_rows(weight, multiple)});
    return HeadLoss::apply(x.to(head.scalar_type()), filled, next, weight.size(0));
  }
  const auto named = at::log_softmax(linear_filled_up(x, weight, {}, multiple), 1, at::kFloat);
  return at::nll_loss(named, next, /*weight=*/{}, at::Reduction::Mean, kNoLabel);
}

at::Tensor next_token_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) {
  return next_token_loss(hidden, weight, labels, multiple_that_pays(hidden, weight));
}

at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

at::Tensor merge_heads(const at::Tensor& x) { return x.transpose(1, 2).reshape({x.size(0), x.size(2), -1}); }

Rotation rotation_of(const RopeConfig& rope, int64_t head_dim, int64_t first, int64_t count, const at::Tensor& like) {
  const auto options = like.options().dtype(at::kFloat);
  const auto positions = at::arange(first, first + count, options).unsqueeze(1);
  const auto half = positions * frequencies(rope, head_dim, options);
  const auto angles = at::cat({half, half}, 1);
  return {angles.cos().to(like.scalar_type()), angles.sin().to(like.scalar_type())};
}

at::Tensor rotated(const at::Tensor& x, const Rotation& rotation) {
  const auto halves = x.chunk(2, -1);
  return x * rotation.cosine + at::cat({-halves[1], halves[0]}, -1) * rotation.sine;
}

}  // namespace models
