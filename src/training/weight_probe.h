#pragma once

#include <ATen/core/TensorBody.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Tells whether somebody has changed the weights of a model since they were remembered, by a look at its smallest trained
/// parameters: biases and norms, which every step of an optimizer moves. Embeddings are left out: with max_norm, forward passes
/// change them. On a CPU that costs less than a microsecond; on another
/// device, where a look waits for it, only the first two times.
class WeightProbe {
 public:
  explicit WeightProbe(const torch::nn::Module& module);
  void remember();
  void forget() { remembered_ = false; }
  /// False when nothing is remembered.
  bool has_changed();

 private:
  bool may_look();
  std::string look() const;

  std::vector<at::Tensor> probed_;
  std::string seen_;
  bool remembered_ = false, waits_ = false;
  int looks_ = 0;
};

}  // namespace accelerate::detail
