#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>

namespace accelerate {

namespace detail {
class EmptyScope;
}

struct InitEmptyWeightsOptions {
  /// Buffers take no memory either. By default as ACCELERATE_INIT_INCLUDE_BUFFERS says, else off.
  std::optional<bool> include_buffers = {};
};

/// While it lives, modules made by this thread have parameters on the meta device: shapes and dtypes, but no memory. Buffers are
/// real when the scope ends. Modules need no change for it:
///
///   auto model = [] { accelerate::InitEmptyWeights empty; return Transformer(config); }();
///
/// Weights come with `load_checkpoint_and_dispatch`; those that a checkpoint lacks get the values that the constructor would have
/// given them.
class [[nodiscard]] InitEmptyWeights {
 public:
  explicit InitEmptyWeights(const InitEmptyWeightsOptions& options = {});
  ~InitEmptyWeights();
  InitEmptyWeights(const InitEmptyWeights&) = delete;
  InitEmptyWeights& operator=(const InitEmptyWeights&) = delete;

 private:
  std::unique_ptr<detail::EmptyScope> scope_;
};

/// While it lives, modules made by this thread have parameters on `device`, made and initialized there. Buffers are where they
/// would have been when the scope ends, unless they are included. Numbers that are written out, `torch::tensor({1, 2})`, stay on
/// the CPU, be they a buffer or a parameter; what is computed of them follows the rule.
class [[nodiscard]] InitOnDevice {
 public:
  explicit InitOnDevice(c10::Device device, const InitEmptyWeightsOptions& options = {});
  ~InitOnDevice();
  InitOnDevice(const InitOnDevice&) = delete;
  InitOnDevice& operator=(const InitOnDevice&) = delete;

 private:
  std::unique_ptr<detail::EmptyScope> scope_;
};

}  // namespace accelerate
