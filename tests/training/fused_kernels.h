#pragma once

#include <ATen/Parallel.h>
#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/gradient_state.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

/// Claims about fused kernels that hold on every device, for every dtype, beside the plain optimizer on float64.
namespace fused_kernels {

using Tensors = std::vector<torch::Tensor>;

/// What a weight may be off after three steps, in the optimizer's own dtype or in a wider one.
inline double tolerance(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kBFloat16:
      return 8 * 0x1p-7;
    case torch::kHalf:
      return 8 * 0x1p-10;
    case torch::kFloat:
      return 1e-5;
    default:
      return 1e-12;
  }
}

/// All elements in their logical order.
inline torch::Tensor joined(const Tensors& tensors) {
  Tensors flat;
  for (const auto& tensor : tensors) flat.push_back(tensor.reshape(-1));
  return torch::cat(flat).to(torch::kCPU, torch::kDouble);
}

/// Of one sign with its weight, so that what decay adds never brings it near zero: a weight that stays as it was is far off, and
/// no square is lost in float16. A weight may be zero.
inline torch::Tensor gradient_of(const torch::Tensor& weight, bool in_row_order) {
  const auto gradient = (weight.contiguous().sign() + 0.5).sign() * (torch::rand(weight.sizes(), weight.options()) + 0.5);
  return in_row_order ? gradient : torch::empty_like(weight).copy_(gradient);
}

/// With so many threads, as long as it lives.
struct Threads {
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  const int before = at::get_num_threads();
};

struct Manner {
  bool gradients_in_row_order = false;
  int threads = 1;
};

/// `initial` weights, stepped three times with a prepared optimizer, and the same in float64 with a plain one: how far
/// they are apart.
template <class Optimizer, class Options>
double apart_after_three_steps(const Tensors& initial, const Tensors& gradients, Options options, int threads) {
  options.lr(0.25);
  Tensors weights;
  for (size_t i = 0; i < initial.size(); ++i) {
    weights.push_back(torch::empty_strided(initial[i].sizes(), initial[i].strides(), initial[i].options()).copy_(initial[i]));
    weights.back().mutable_grad() = gradients[i];
  }
  auto expected = joined(initial);
  expected.mutable_grad() = joined(gradients);
  Optimizer ours(weights, options), plain({expected}, options);
  accelerate::AcceleratedOptimizer prepared(ours, std::make_shared<accelerate::GradientState>());
  for (int i = 0; i < 3; ++i) {
    {
      const Threads of_step(threads);
      prepared.step();
    }
    plain.step();
  }
  return ((joined(weights) - expected).abs() / expected.abs().clamp_min(1)).max().template item<double>();
}

/// Steps the weights that `weights_of(dtype)` makes with every optimizer that has a fused kernel, in every dtype.
template <class MakeWeights>
void expect_every_kernel_right(const MakeWeights& weights_of, const Manner& manner = {}) {
  using namespace torch::optim;
  const Threads one(1);
  torch::manual_seed(7);
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    const Tensors weights = weights_of(dtype);
    Tensors gradients;
    for (const auto& weight : weights) gradients.push_back(gradient_of(weight, manner.gradients_in_row_order));
    const auto expect = [&]<class Optimizer, class Options>(std::type_identity<Optimizer>, const char* name,
                                                            const Options& options) {
      EXPECT_LE((apart_after_three_steps<Optimizer>(weights, gradients, options, manner.threads)), tolerance(dtype))
          << name << " in " << dtype;
    };
    const std::type_identity<SGD> sgd;
    expect(sgd, "SGD", SGDOptions(1));
    expect(sgd, "SGD, weight decay", SGDOptions(1).weight_decay(0.25));
    expect(sgd, "SGD, momentum", SGDOptions(1).momentum(0.5));
    expect(sgd, "SGD, momentum, dampening, weight decay", SGDOptions(1).momentum(0.5).dampening(0.5).weight_decay(0.25));
    expect(sgd, "SGD, nesterov, weight decay", SGDOptions(1).momentum(0.5).nesterov(true).weight_decay(0.25));
    expect(std::type_identity<Adam>(), "Adam", AdamOptions());
    expect(std::type_identity<Adam>(), "Adam, amsgrad, weight decay", AdamOptions().amsgrad(true).weight_decay(0.25));
    expect(std::type_identity<AdamW>(), "AdamW", AdamWOptions());
    expect(std::type_identity<AdamW>(), "AdamW, amsgrad, weight decay", AdamWOptions().amsgrad(true).weight_decay(0.25));
  }
}

inline torch::Tensor weight(torch::IntArrayRef shape, torch::ScalarType dtype, torch::Device device) {
  return torch::randn(shape, torch::TensorOptions().dtype(dtype).device(device));
}

/// Every size up to 1,000, all in one step.
inline void expect_every_size_right(torch::Device device) {
  expect_every_kernel_right([device](torch::ScalarType dtype) {
    Tensors weights;
    for (int64_t size = 1; size <= 1000; ++size) weights.push_back(weight({size}, dtype, device));
    return weights;
  });
}

/// Sizes that are split among threads or blocks, beside small ones.
inline void expect_large_sizes_right(torch::Device device) {
  expect_every_kernel_right(
      [device](torch::ScalarType dtype) -> Tensors {
        return {weight({70001}, dtype, device), weight({3}, dtype, device), weight({32768}, dtype, device),
                weight({500}, dtype, device)};
      },
      {.threads = 2});
}

inline void expect_every_layout_right(torch::Device device) {
  for (const bool gradients_in_row_order : {false, true}) {
    expect_every_kernel_right(
        [device](torch::ScalarType dtype) -> Tensors {
          return {weight({}, dtype, device),
                  weight({0}, dtype, device),
                  weight({1, 5}, dtype, device).expand({1, 5}),
                  weight({40, 9}, dtype, device).t(),
                  weight({40, 18}, dtype, device).slice(1, 0, 18, 2),
                  weight({3, 16, 5, 7}, dtype, device).contiguous(torch::MemoryFormat::ChannelsLast),
                  weight({99}, dtype, device).slice(0, 1)};
        },
        {.gradients_in_row_order = gradients_in_row_order});
  }
}

}  // namespace fused_kernels
