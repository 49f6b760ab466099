#pragma once

#include <accelerate/accelerator/gradient_state_view.h>
#include <accelerate/accelerator/preparation.h>
#include <accelerate/accelerator/uneven_inputs_scope.h>
#include <accelerate/capture/captured_step.h>
#include <accelerate/checkpoint/weights.h>
#include <accelerate/data/gather_for_metrics.h>
#include <accelerate/run_state/registered_object.h>
#include <accelerate/run_state/save_state.h>
#include <accelerate/training/autocast.h>
#include <accelerate/training/clip.h>

#include <filesystem>

namespace accelerate {

namespace detail {
class CheckpointManager;
struct RunParts;
}  // namespace detail

/// What `backward` passes on to autograd.
struct BackwardOptions {
  bool retain_graph = false;
  bool create_graph = false;
};

/// The main entry point. It combines the other classes and decides nothing itself.
///
///   accelerate::Accelerator accelerator;
///   auto [model, optimizer, loader] = accelerator.prepare(net, adamw, data);
///   for (auto& [inputs, targets] : loader) {
///     optimizer.zero_grad();
///     accelerator.backward(torch::mse_loss(model(inputs), targets));
///     optimizer.step();
///   }
class Accelerator : public Preparation {
 public:
  /// Reads the environment and joins the processes that were launched with this one. See ProcessState for the errors.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator();

  /// As Python prints its state.
  friend std::string to_string(const Accelerator& accelerator);

  // --- Taking a step -----------------------------------------------------------------------------------------------------
  /// Gradients of the loss, divided by gradient_accumulation_steps and scaled under fp16; the mean over all processes
  /// where they are all-reduced. A DistributedError names the process that is missing.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {},
                std::source_location where = std::source_location::current());
  /// A scope for one batch: whether its gradients are all-reduced and applied is decided here, see sync_gradients.
  /// UsageError when weights have changed since the batch before and its gradients are not yet applied.
  template <ModuleType M>
  NoSyncScope accumulate(const Model<M>& model, std::source_location where = std::source_location::current()) {
    return accumulate({model.core()}, where);
  }
  template <ModuleType... M>
  NoSyncScope accumulate(const Model<M>&... models) {
    return accumulate({models.core()...}, std::nullopt);
  }
  /// A whole step - forward and backward pass, clipping, optimizers, schedulers - that is called like `step`. On a GPU its work
  /// is recorded after a few calls, and replayed from then on; each kind of call (shapes, accumulation) is recorded
  /// separately. Where that is not possible, it runs eagerly, with the same numbers, and logs why once. See
  /// docs/guides/captured_steps.md for what a step may do. Call it after prepare; it must not outlive the accelerator.
  ///
  ///   auto step = accelerator.capture([&](Batch& batch) {
  ///     auto scope = accelerator.accumulate(model);
  ///     ...
  ///     return loss;
  ///   });
  ///   for (auto& batch : loader) step(batch);
  template <class F>
  CapturedStep<F> capture(F step, const CaptureOptions& options = {},
                          std::source_location where = std::source_location::current()) {
    return CapturedStep<F>(std::move(step), step_capture(options, where));
  }
  /// True while gradients are all-reduced and optimizers step.
  bool sync_gradients() const { return gradients_->sync_gradients(); }
  void set_sync_gradients(bool on) { gradients_->set_sync_gradients(on); }
  int gradient_accumulation_steps() const { return gradients_->num_steps(); }
  void set_gradient_accumulation_steps(int steps) { gradients_->set_num_steps(steps); }
  /// Gradients of passes in this scope stay on their rank: they are not all-reduced.
  template <ModuleType M>
  NoSyncScope no_sync(const Model<M>& model) const {
    return model.no_sync();
  }
  /// A scope in which the next backward pass all-reduces gradients although its forward pass was made under no_sync.
  template <ModuleType M>
  TriggerSyncScope trigger_sync_in_backward(const Model<M>& model) const {
    return TriggerSyncScope(model.core());
  }
  /// A scope in which processes may have different numbers of batches for these models: see UnevenInputsScope. One process alone
  /// needs none, and is given one that does nothing.
  template <ModuleType... M>
  UnevenInputsScope join_uneven_inputs(const JoinUnevenInputsOptions& options, const Model<M>&... models) {
    return join_uneven_inputs(options, std::vector<std::shared_ptr<detail::ModelCore>>{models.core()...});
  }
  /// Clips gradients to a norm of at most `max_norm` and returns the norm they had. Under fp16 they are unscaled first,
  /// with all others of their optimizers: UsageError when a backward pass has followed that and no step has.
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipGradNormOptions& options = {});
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  /// Unscales the gradients of all optimizers, or of one. No effect unless losses are scaled.
  void unscale_gradients();
  void unscale_gradients(const AcceleratedOptimizer& optimizer);
  /// True when a prepared optimizer skipped its last step, because gradients were not finite.
  bool optimizer_step_was_skipped() const;
  /// A scope whose operators run in the accelerator's precision: for losses and other code outside of a prepared model.
  [[nodiscard]] AutocastScope autocast(const AutocastOptions& options = {}) const;
  /// The scaler of fp16, or null.
  const std::shared_ptr<GradScaler>& grad_scaler() const { return scaler_; }
  GradientStateView gradient_state() const { return {*gradients_, *active_loaders_}; }

  // --- Checkpoints -------------------------------------------------------------------------------------------------------
  /// Objects that are saved and loaded with the run, in this order. They must outlive the accelerator.
  template <class... T>
  void register_for_checkpointing(T&... objects) {
    (registered_.push_back(detail::registered(objects)), ...);
  }
  /// Saves everything that was prepared or registered, where the loaders are, and the random numbers of every process, in the
  /// files of Python Accelerate. All processes call it. The folder appears when all of it is durable; without one it is
  /// project_dir/checkpoints/checkpoint_N. CheckpointError, on all processes, leaves older checkpoints and the run as they were.
  std::string save_state(const std::string& folder = {}, const SaveStateOptions& options = {},
                         std::source_location where = std::source_location::current());
  std::string save_state(const SaveStateOptions& options, std::source_location where = std::source_location::current()) {
    return save_state(std::string(), options, where);
  }
  /// Resumes from such a folder, or from one that Python wrote: all processes call it after prepare. Without a folder from the
  /// newest complete one under project_dir/checkpoints; nothing when there is none. Returns which it was. CheckpointError tells
  /// what is wrong with it.
  std::optional<std::filesystem::path> load_state(const std::string& folder = {}, const LoadStateOptions& options = {},
                                                  std::source_location where = std::source_location::current());
  /// The weights of a prepared model by name. They share their memory with it. Of a sharded model they are gathered: all
  /// processes call it, the main process gets them, in host memory, and the others nothing.
  template <ModuleType M>
  TensorDict get_state_dict(const Model<M>& model) const {
    return whole_weights(*model.core(), is_main_process());
  }
  /// Writes the weights for others to use, see save_weights. All processes call it, the main process writes.
  template <ModuleType M>
  void save_model(const Model<M>& model, const std::string& folder, const SaveModelOptions& options = {},
                  std::source_location where = std::source_location::current()) const {
    save_model(*model.core(), folder, options, where);
  }
  HookHandle register_save_state_pre_hook(SaveStateHook hook);
  HookHandle register_load_state_pre_hook(LoadStateHook hook);
  /// Waits until what is being saved is durable. All processes call it at the end of a run.
  void end_training(std::source_location where = std::source_location::current());

  // --- Metrics -----------------------------------------------------------------------------------------------------------
  /// See the function of the same name: what all processes have, each sample counted once. Several values give a tuple.
  template <class T>
  T gather_for_metrics(T data, const GatherForMetricsOptions& options = {},
                       std::source_location where = std::source_location::current()) const {
    return accelerate::gather_for_metrics(state(), *active_loaders_, std::move(data), options, where);
  }
  template <class A, class B>
  requires(!std::same_as<B, GatherForMetricsOptions>) std::tuple<A, B> gather_for_metrics(
      const A& a, const B& b, std::source_location where = std::source_location::current())
  const { return gather_each(where, a, b); }
  /// Three and more: std::source_location cannot follow a parameter pack, so errors do not name the line.
  template <class A, class B, class C, class... Rest>
  requires(!std::same_as<B, GatherForMetricsOptions> &&
           !std::same_as<C, std::source_location>) std::tuple<A, B, C, Rest...> gather_for_metrics(const A& a, const B& b,
                                                                                                   const C& c,
                                                                                                   const Rest&... rest)
  const { return gather_each({}, a, b, c, rest...); }

 private:
  template <class... Values>
  std::tuple<Values...> gather_each(std::source_location where, const Values&... values) const {
    return {gather_for_metrics(values, {}, where)...};  // braces: one after the other, in the order given
  }
  std::vector<at::Tensor> trained_parameters() const;
  void make_ready_to_clip(const std::vector<at::Tensor>& parameters);
  std::vector<const detail::ShardedModel*> sharded_models() const;
  UnevenInputsScope join_uneven_inputs(const JoinUnevenInputsOptions& options,
                                       const std::vector<std::shared_ptr<detail::ModelCore>>& models);
  NoSyncScope accumulate(const std::vector<std::shared_ptr<detail::ModelCore>>& models,
                         std::optional<std::source_location> where);
  void save_model(const detail::ModelCore& model, const std::string& folder, const SaveModelOptions& options,
                  std::source_location where) const;
  bool exports_16_bits() const;
  TensorDict whole_weights(const detail::ModelCore& model, bool keeps) const;
  detail::RunParts run_parts() const;
  std::shared_ptr<detail::StepCapture> step_capture(const CaptureOptions& options, std::source_location where);

  std::vector<RegisteredObject> registered_;
  std::unique_ptr<detail::CheckpointManager> checkpoints_;
};

}  // namespace accelerate
