#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/distributed/process_state.h>

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate {
namespace detail {

/// What a prepared model does whatever its type is.
class ModelCore {
 public:
  /// Moves the module to the device when `place` is set, then gives every process the main process's parameters and
  /// buffers. DistributedError names the first tensor that is not the same kind of tensor everywhere.
  ModelCore(std::shared_ptr<torch::nn::Module> module, const ProcessState& state, bool place, std::source_location where);

  void train(bool on);
  std::vector<at::Tensor> parameters() const;
  /// Called before a forward pass.
  void before_forward() const;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  ProcessState state_;
};

}  // namespace detail

/// A module type: what TORCH_MODULE's holders contain.
template <class M>
concept ModuleType = std::derived_from<M, torch::nn::Module>;

/// A prepared module. Calls go to the module's `forward`; `->` reaches the module itself. Copies are the same model.
template <ModuleType M>
class Model {
 public:
  Model(std::shared_ptr<M> module, const ProcessState& state, bool place, std::source_location where)
      : module_(std::move(module)), core_(std::make_shared<detail::ModelCore>(module_, state, place, where)) {}

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    core_->before_forward();
    return module_->forward(std::forward<Arguments>(arguments)...);
  }

  void train(bool on = true) { core_->train(on); }
  void eval() { core_->train(false); }
  std::vector<at::Tensor> parameters() const { return core_->parameters(); }

  M* operator->() const { return module_.get(); }
  /// The module that was prepared.
  const std::shared_ptr<M>& module() const { return module_; }

 private:
  std::shared_ptr<M> module_;
  std::shared_ptr<detail::ModelCore> core_;
};

}  // namespace accelerate
