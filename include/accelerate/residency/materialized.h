#pragma once

#include <memory>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// Is any weight of the module, or below it, offloaded?
bool has_offloaded_params(const torch::nn::Module& module);

/// While it lives, all weights of a module and below it are in memory and stay where they are, so that pointers to them can be
/// used: `auto scope = accelerate::materialized(*model);`. CheckpointError when one cannot be read.
class [[nodiscard]] MaterializedScope {
 public:
  explicit MaterializedScope(const torch::nn::Module& module);
  ~MaterializedScope();
  MaterializedScope(const MaterializedScope&) = delete;
  MaterializedScope& operator=(const MaterializedScope&) = delete;

 private:
  struct Pins;
  std::unique_ptr<Pins> pins_;
};

inline MaterializedScope materialized(const torch::nn::Module& module) { return MaterializedScope(module); }

}  // namespace accelerate
