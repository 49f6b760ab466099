#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/checkpoint/tensor_dict.h>
#include <accelerate/distributed/nested.h>
#include <accelerate/distributed/process_state.h>
#include <accelerate/parallel/ddp_options.h>
#include <accelerate/parallel/sync_scope.h>
#include <accelerate/sharding/fsdp_options.h>
#include <accelerate/training/autocast.h>

#include <atomic>
#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// How a module is prepared.
struct ModelOptions {
  /// Move it to the device of this process.
  bool place = true;
  /// It will not be trained: nothing is sent, not even its weights.
  bool evaluation_mode = false;
  /// How its gradients are all-reduced.
  DdpOptions ddp = {};
  /// How it is sharded, if it is.
  std::optional<FsdpOptions> fsdp = {};
  /// The dtype that its forward pass casts to; its outputs are cast back to float32.
  std::optional<c10::ScalarType> autocast = {};
};

namespace detail {

class DataParallel;
class KnownParameters;
class ShardedModel;
class WeightProbe;

/// What a prepared model does, independent of its type.
class ModelCore {
 public:
  /// Moves the module to its device, then gives every process the main process's parameters and buffers. DistributedError names
  /// the first tensor that is not the same kind of tensor everywhere; UsageError an invalid option.
  ModelCore(std::shared_ptr<torch::nn::Module> module, const ProcessState& state, const ModelOptions& options,
            std::source_location where);
  ~ModelCore();
  ModelCore(const ModelCore&) = delete;
  ModelCore& operator=(const ModelCore&) = delete;

  void train(bool on);
  void zero_grad(bool set_to_none);
  std::vector<at::Tensor> parameters() const;
  TensorDict named_parameters() const;
  /// What optimizers step: the parameters, or this rank's pieces of them.
  std::vector<at::Tensor> stepped_parameters() const;
  TensorDict named_stepped_parameters() const;
  /// Weights and buffers by name: of a sharded model whole where `keeps`, else none, and all ranks call it.
  TensorDict state_dict(bool keeps) const;
  /// Copies whole weights and buffers, which fit, into the module, or their parts into its shards.
  void load_state_dict(const TensorDict& state);
  /// Bytes of the parameters that this rank holds, and of all of them.
  int64_t local_parameter_bytes() const;
  int64_t total_parameter_bytes() const;
  torch::nn::Module& module() const { return *module_; }
  bool evaluation_mode() const { return options_.evaluation_mode; }
  const ProcessState& state() const { return state_; }

  /// Called before a forward pass, and after it with what it returned, which may be replaced by equal tensors. `outputs` is null
  /// for a result in which tensors cannot be found. Parameters that were unfrozen or converted since the last pass are
  /// synchronised from this one on.
  void before_forward();
  /// A scope for the forward pass itself.
  AutocastScope autocast() const;
  bool wants_outputs() const;
  void after_forward(const Leaves* outputs) const;

  /// All-reduces gradients with the other processes; null when there are none or nothing is trained.
  const std::shared_ptr<DataParallel>& data_parallel() const { return data_parallel_; }
  /// Null unless the model is sharded.
  ShardedModel* sharded() const { return sharded_.get(); }
  /// What floating-point arguments of a forward pass are converted to.
  std::optional<c10::ScalarType> input_dtype() const { return input_dtype_; }

  // --- Guards against silent training mistakes ------------------------------------------------------------
  /// Whether a backward pass that reaches the parameters now bypassed this model and its precision, on one process: no
  /// forward pass was made since gradients were dropped.
  bool lacks_forward() const;
  /// Whether a forward pass was made since the last step.
  bool had_forward() const { return forward_since_step_; }
  /// Another prepared model has some of these parameters: passes of that one are not mistaken for passes that bypass this one.
  void share_parameters();
  /// Trained parameters that the module has got since it was prepared, by name: they are not synchronised.
  std::vector<std::string> unknown_parameters() const;
  /// An optimizer of all its trained parameters (`is_whole`), or of some, is about to step. UsageError when gradients were not
  /// synchronised.
  void before_step(bool is_whole);
  /// A part of it is about to be called in the precision of the run, without its prepared forward pass.
  void expect_autocast_calls() { forward_since_step_ = true; }
  /// A batch of an accumulation begins, the first one or a later one. UsageError when weights have changed in between.
  void accumulate(bool is_first, std::optional<std::source_location> where);
  /// A loss is about to be multiplied by the factor of fp16 while no optimizer is known that would divide gradients by it.
  /// UsageError when weights have changed since the last such loss.
  void before_scaled_backward(std::source_location where);
  /// The weights were loaded: they are the same on all ranks, and others than before.
  void weights_loaded();
  /// Where it was prepared.
  const std::source_location& where() const { return where_; }

 private:
  void warn_of_unprepared_loader();
  WeightProbe& probe();
  void follow_parameters();
  void checkpoint_activations(const FsdpOptions& options);
  void shard(const FsdpOptions& options);
  void compute_as_if_sharded(const FsdpOptions& options);

  std::shared_ptr<torch::nn::Module> module_;
  ProcessState state_;
  ModelOptions options_;
  std::source_location where_;
  std::shared_ptr<DataParallel> data_parallel_;  // goes before the group does
  std::unique_ptr<ShardedModel> sharded_;        // likewise
  std::optional<c10::ScalarType> input_dtype_;
  std::unique_ptr<KnownParameters> known_;        // null where nothing is synchronised
  std::unique_ptr<WeightProbe> probe_;            // made when it is first needed
  std::atomic<bool> forward_since_step_ = false;  // threads may run inference without NoGradGuard
  bool shares_parameters_ = false;
  bool loader_warned_ = false;
};

/// Runs a backward pass through prepared models of the group. DistributedError tells, as `backward` at `where`, that a process
/// has been lost over it; UsageError that it bypassed the prepared forward pass of one of `models`; what else `backward`
/// throws comes out as it is.
void run_backward(const ProcessState& state, std::source_location where, const std::function<void()>& backward,
                  const std::vector<std::shared_ptr<ModelCore>>& models = {});

}  // namespace detail

/// A module type: what TORCH_MODULE's holders contain.
template <class M>
concept ModuleType = std::derived_from<M, torch::nn::Module>;

/// A prepared module. Calls go to the module's `forward`; `->` reaches the module itself. Copies are the same model.
template <ModuleType M>
class Model {
 public:
  Model(std::shared_ptr<M> module, const ProcessState& state, const ModelOptions& options, std::source_location where)
      : module_(std::move(module)), core_(std::make_shared<detail::ModelCore>(module_, state, options, where)) {}
  /// The model of `core`, whose module is `module`.
  Model(std::shared_ptr<M> module, std::shared_ptr<detail::ModelCore> core)
      : module_(std::move(module)), core_(std::move(core)) {}

  /// A forward pass. On several processes all of them run it, and a backward pass through what it returns all-reduces gradients.
  /// UsageError names parameters that the backward pass before did not reach.
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    core_->before_forward();
    const auto forward = [&] {
      const auto casting = core_->autocast();
      return module_->forward(converted(std::forward<Arguments>(arguments))...);
    };
    if constexpr (std::is_void_v<decltype(forward())>) {
      forward();
      core_->after_forward(nullptr);
    } else {
      auto result = forward();
      after_forward(result);
      return result;
    }
  }

  void train(bool on = true) { core_->train(on); }
  void eval() { core_->train(false); }
  void zero_grad(bool set_to_none = true) { core_->zero_grad(set_to_none); }
  std::vector<at::Tensor> parameters() const { return core_->parameters(); }
  /// The parameters by name, in the module's order.
  TensorDict named_parameters() const { return core_->named_parameters(); }
  /// Bytes of the parameters that this process holds between steps: its shards, where the model is sharded.
  int64_t local_parameter_bytes() const { return core_->local_parameter_bytes(); }
  int64_t total_parameter_bytes() const { return core_->total_parameter_bytes(); }

  /// Backward passes through forward passes in this scope add up gradients on each process alone; the first one after it
  /// all-reduces the sum.
  NoSyncScope no_sync() const { return NoSyncScope({core_}); }

  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }
  /// The module that was prepared.
  const std::shared_ptr<M>& module() const { return module_; }
  /// The same model as one of any type.
  const std::shared_ptr<detail::ModelCore>& core() const { return core_; }

 private:
  /// An argument as the forward pass takes it: a sharded model in 16 bits has no weights of another dtype.
  template <class Argument>
  decltype(auto) converted(Argument&& argument) const {
    if constexpr (std::same_as<std::remove_cvref_t<Argument>, at::Tensor>) {
      const auto dtype = core_->input_dtype();
      return dtype && argument.defined() && argument.is_floating_point() ? argument.to(*dtype) : at::Tensor(argument);
    } else {
      return std::forward<Argument>(argument);
    }
  }
  template <class Result>
  void after_forward(Result& result) const {
    if constexpr (detail::Searchable<Result>) {
      if (core_->wants_outputs()) {
        const auto leaves = detail::leaves_of(result);
        core_->after_forward(&leaves);
        return;
      }
    }
    core_->after_forward(nullptr);
  }

  std::shared_ptr<M> module_;
  std::shared_ptr<detail::ModelCore> core_;
};

/// The module that was prepared, or that nobody has: what `unwrap_model` gives, without an accelerator.
template <ModuleType M>
std::shared_ptr<M> extract_model_from_parallel(const Model<M>& model) {
  return model.module();
}
template <ModuleType M>
std::shared_ptr<M> extract_model_from_parallel(const std::shared_ptr<M>& module) {
  return module;
}

}  // namespace accelerate
