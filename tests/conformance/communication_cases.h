#pragma once

#include <torch/torch.h>

#include "conformance/golden.h"

/// What the recorded runs of communication.json were made of.
namespace communication_cases {

/// The numbers that stand for gradients, data and weights.
inline torch::Tensor wave(const std::vector<int64_t>& shape, int64_t seed) {
  const int64_t count = torch::empty(shape, torch::kByte).numel();
  const auto numbers = torch::arange(count, torch::kDouble);
  const auto s = static_cast<double>(seed);
  return (torch::sin(numbers * 0.7 + s * 1.3) + 0.3 * torch::cos(numbers * numbers * 0.11 + s)).to(torch::kFloat).view(shape);
}

/// The largest distance of an element to the recorded one, as a part of the largest of them or of 1.
inline double distance(const torch::Tensor& ours, const nlohmann::json& theirs) {
  const auto numbers = torch::tensor(theirs.get<std::vector<double>>(), torch::kDouble);
  const auto flat = ours.detach().to(torch::kDouble).flatten();
  if (flat.numel() != numbers.numel()) return std::numeric_limits<double>::infinity();
  if (numbers.numel() == 0) return 0;
  const double largest = (flat - numbers).abs().max().item<double>() / std::max(1.0, numbers.abs().max().item<double>());
  return std::isnan(largest) ? std::numeric_limits<double>::infinity() : largest;
}

/// Its gradients are what a forward pass is given.
struct ParametersImpl : torch::nn::Module {
  explicit ParametersImpl(const std::vector<std::vector<int64_t>>& shapes) {
    for (const auto& shape : shapes) all.push_back(register_parameter("p" + std::to_string(all.size()), torch::zeros(shape)));
  }
  torch::Tensor forward(const std::vector<torch::Tensor>& gradients) {
    torch::Tensor sum = torch::zeros({});
    for (size_t i = 0; i < all.size(); ++i) sum = sum + (all[i] * gradients[i]).sum();
    return sum;
  }
  std::vector<torch::Tensor> all;
};
TORCH_MODULE(Parameters);

}  // namespace communication_cases
