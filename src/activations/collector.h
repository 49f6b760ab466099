#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "activations/checkpoint_region.h"

namespace accelerate::detail {

/// Leaves the function of a rerun when all that is needed was collected. A std::exception, because autograd's engine, should the
/// function make a backward pass of its own, hands on nothing else.
struct RerunComplete : std::exception {
  const char* what() const noexcept override { return "an activation checkpoint has recomputed what it needs"; }
};

/// Collects what operators save during a rerun, by its number.
class Collector final : public HookMaker {
 public:
  explicit Collector(CheckpointRegion& region);

  std::unique_ptr<SavedVariableHooks> make_hooks() override;
  /// The next tensor was saved. Throws RerunComplete after the last one that is needed, once: a function that catches it runs to
  /// its end. UsageError when it is another tensor than that of the forward pass.
  void see(const at::Tensor& tensor);
  /// The rerun is over. UsageError when it was not like the forward pass.
  void check() const;
  std::vector<at::Tensor>& tensors() { return tensors_; }

 private:
  CheckpointRegion& region_;
  std::vector<SavedLayout> layouts_;
  std::vector<bool> needed_;
  size_t missing_ = 0, seen_ = 0;
  std::vector<at::Tensor> tensors_;
  std::string difference_;
};

}  // namespace accelerate::detail
