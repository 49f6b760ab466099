#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>

namespace accelerate::detail {

/// A parameter, a view of one, or a view of an offloaded or sharded weight: to keep it costs no memory, and its bytes come when
/// an operator reads it.
bool is_weight(const at::Tensor& tensor);

/// A tensor that stays as it is until the backward pass, without its graph.
class KeptTensor {
 public:
  explicit KeptTensor(const at::Tensor& tensor);
  /// UsageError, which begins with `what()`, when it was changed in place meanwhile.
  template <class What>
  const at::Tensor& get(const What& what) const {
    if (is_changed()) refuse(what());
    return tensor_;
  }

 private:
  bool is_changed() const;
  [[noreturn]] void refuse(const std::string& what) const;

  at::Tensor tensor_;
  uint32_t version_;
};

}  // namespace accelerate::detail
