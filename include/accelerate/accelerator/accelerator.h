#pragma once

#include <accelerate/accelerator/options.h>
#include <accelerate/accelerator/preparable.h>
#include <accelerate/accelerator/process_control.h>
#include <accelerate/accelerator/uneven_inputs_scope.h>
#include <accelerate/data/gather_for_metrics.h>
#include <accelerate/training/autocast.h>
#include <accelerate/training/clip.h>

namespace accelerate {

/// What `backward` passes on to autograd.
struct BackwardOptions {
  bool retain_graph = false;
  bool create_graph = false;
};

/// The class users meet first. It joins the others and decides nothing itself.
///
///   accelerate::Accelerator accelerator;
///   auto [model, optimizer, loader] = accelerator.prepare(net, adamw, data);
///   for (auto& [inputs, targets] : loader) {
///     optimizer.zero_grad();
///     accelerator.backward(torch::mse_loss(model(inputs), targets));
///     optimizer.step();
///   }
class Accelerator : public ProcessControl {
 public:
  /// Reads the environment and joins the processes that were launched with this one. See ProcessState for the errors.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator();

  Precision mixed_precision() const { return *options_.mixed_precision; }
  /// As Python prints its state.
  friend std::string to_string(const Accelerator& accelerator);

  // --- Preparing ---------------------------------------------------------------------------------------------------------
  /// Everything that takes part in training, made fit for this process, in the order given: a tuple, or the object itself
  /// when there is one. Preparing what was prepared gives the same again. UsageError for an optimizer none of whose parameters
  /// is in a prepared model, and for a scheduler whose optimizer was not prepared.
  template <Preparable T>
  auto prepare(T&& object, std::source_location where = std::source_location::current()) {
    return prepare_one(std::forward<T>(object), {}, where);
  }
  template <Preparable A, Preparable B>
  auto prepare(A&& a, B&& b, std::source_location where = std::source_location::current()) {
    return prepare_all({}, where, std::forward<A>(a), std::forward<B>(b));
  }
  template <Preparable A, Preparable B, Preparable C>
  auto prepare(A&& a, B&& b, C&& c, std::source_location where = std::source_location::current()) {
    return prepare_all({}, where, std::forward<A>(a), std::forward<B>(b), std::forward<C>(c));
  }
  template <Preparable A, Preparable B, Preparable C, Preparable D>
  auto prepare(A&& a, B&& b, C&& c, D&& d, std::source_location where = std::source_location::current()) {
    return prepare_all({}, where, std::forward<A>(a), std::forward<B>(b), std::forward<C>(c), std::forward<D>(d));
  }
  /// Five and more: behind so many C++ has no place for the source line, so errors do not name it.
  template <Preparable... Objects>
  requires(sizeof...(Objects) > 4) auto prepare(Objects&&... objects) {
    return prepare_all({}, {}, std::forward<Objects>(objects)...);
  }
  template <Preparable... Objects>
  auto prepare(const PrepareOptions& options, Objects&&... objects) {
    return prepare_all(options, options.where, std::forward<Objects>(objects)...);
  }

  /// A module on its device, with the main process's weights, whose gradients are the mean over all processes.
  template <detail::PreparesModel T>
  auto prepare_model(const T& model, const PrepareModelOptions& options = {},
                     std::source_location where = std::source_location::current()) {
    if constexpr (detail::is_prepared_model<T>::value) {
      keep_model(model.core());
      return model;
    } else if constexpr (detail::ModuleHolder<T>) {
      return prepare_model(model.ptr(), options, where);
    } else {
      return Model<typename T::element_type>(model, model_core(model, options, where));
    }
  }
  AcceleratedOptimizer prepare_optimizer(torch::optim::Optimizer& optimizer, const PlacementOptions& options = {});
  AcceleratedOptimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                         const PlacementOptions& options = {});
  AcceleratedOptimizer prepare_optimizer(AcceleratedOptimizer optimizer, const PlacementOptions& options = {});
  template <class Batch>
  DataLoader<Batch> prepare_data_loader(const DataLoader<Batch>& loader, const PlacementOptions& options = {}) {
    return DataLoader<Batch>(prepared_loader(loader, options));
  }
  template <class T>
  requires detail::PreparesScheduler<std::remove_cvref_t<T>> AcceleratedScheduler prepare_scheduler(T&& scheduler) {
    using Object = std::remove_cvref_t<T>;
    if constexpr (std::same_as<Object, AcceleratedScheduler>) {
      return keep_scheduler(scheduler);
    } else if constexpr (std::is_void_v<typename detail::pointee<Object>::type>) {
      static_assert(std::is_lvalue_reference_v<T>, "a scheduler must outlive what is prepared from it");
      return keep_scheduler({scheduler, scheduler_rule(optimizer_of(scheduler, prepared_optimizers()))});
    } else {
      return keep_scheduler({scheduler, scheduler_rule(scheduler ? optimizer_of(*scheduler, prepared_optimizers()) : nullptr)});
    }
  }

  /// The module that was prepared.
  template <ModuleType M>
  std::shared_ptr<M> unwrap_model(const Model<M>& model) const {
    return model.module();
  }
  template <detail::ModuleHolder Holder>
  auto unwrap_model(const Holder& holder) const {
    return holder.ptr();
  }
  /// Forgets everything that was prepared, begins an accumulation anew, and lets the device's caches go. Python's `clear` is the
  /// same.
  void free_memory();

  // --- Taking a step -----------------------------------------------------------------------------------------------------
  /// Gradients of the loss, divided by gradient_accumulation_steps and scaled where fp16 asks for it; the mean over all processes
  /// where they are exchanged. A DistributedError names the process that is missing.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {},
                std::source_location where = std::source_location::current());
  /// A scope for one batch: whether its gradients are exchanged and applied is decided here, see sync_gradients.
  template <ModuleType... M>
  NoSyncScope accumulate(const Model<M>&... models) {
    return accumulate(std::vector<std::shared_ptr<detail::ModelCore>>{models.core()...});
  }
  /// True while gradients are exchanged and optimizers step.
  bool sync_gradients() const { return gradients_->sync_gradients(); }
  void set_sync_gradients(bool on) { gradients_->set_sync_gradients(on); }
  int gradient_accumulation_steps() const { return gradients_->num_steps(); }
  void set_gradient_accumulation_steps(int steps) { gradients_->set_num_steps(steps); }
  /// Backward passes of what is called in this scope keep their gradients to themselves.
  template <ModuleType M>
  NoSyncScope no_sync(const Model<M>& model) const {
    return model.no_sync();
  }
  /// A scope in which the next backward pass exchanges gradients although its forward pass was made under no_sync.
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
  /// Scales gradients down to a norm of at most `max_norm` and returns the norm they had. Under fp16 they are unscaled first,
  /// with all others of their optimizers: UsageError when a backward pass has followed that and no step has.
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipGradNormOptions& options = {});
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  /// Divides gradients by the factor of the loss, of all optimizers or of one. Nothing unless losses are scaled.
  void unscale_gradients();
  void unscale_gradients(const AcceleratedOptimizer& optimizer);
  /// True when a prepared optimizer left its last step out, because gradients were not finite.
  bool optimizer_step_was_skipped() const;
  /// A scope whose operators calculate in the accelerator's precision: for losses and other code outside of a prepared model.
  [[nodiscard]] AutocastScope autocast(const AutocastOptions& options = {}) const;
  /// The scaler of fp16, or null.
  const std::shared_ptr<GradScaler>& grad_scaler() const { return scaler_; }
  const GradientState& gradient_state() const { return *gradients_; }

  // --- Metrics -----------------------------------------------------------------------------------------------------------
  /// See the function of the same name: what all processes have, each sample counted once. Several values give a tuple.
  template <class T>
  T gather_for_metrics(T data, const GatherForMetricsOptions& options = {},
                       std::source_location where = std::source_location::current()) const {
    return accelerate::gather_for_metrics(state(), gradient_state(), std::move(data), options, where);
  }
  template <class A, class B>
  requires(!std::same_as<B, GatherForMetricsOptions>) std::tuple<A, B> gather_for_metrics(
      const A& a, const B& b, std::source_location where = std::source_location::current())
  const { return gather_each(where, a, b); }
  /// Three and more: behind so many C++ has no place for the source line, so errors do not name it.
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
  template <class T>
  static constexpr int phase_of() {
    using Object = std::remove_cvref_t<T>;
    return detail::PreparesScheduler<Object> ? 2 : detail::PreparesOptimizer<Object> ? 1 : 0;
  }
  template <Preparable... Objects>
  auto prepare_all(const PrepareOptions& options, std::source_location where, Objects&&... objects) {
    check_placements(options, sizeof...(Objects));
    std::tuple<std::optional<decltype(prepare_one(std::forward<Objects>(objects), {}, where))>...> made;
    const auto placement = [&](size_t i) {
      return options.device_placement.empty() ? std::optional<bool>() : std::optional<bool>(options.device_placement[i]);
    };
    const auto make = [&]<size_t I, class T>(std::integral_constant<size_t, I>, T&& object, int phase) {
      if (phase_of<T>() == phase) std::get<I>(made).emplace(prepare_one(std::forward<T>(object), placement(I), where));
    };
    // What another needs comes first: optimizers look for their models, schedulers for their optimizers.
    for (int phase = 0; phase < 3; ++phase) {
      [&]<size_t... I>(std::index_sequence<I...>) {
        (make(std::integral_constant<size_t, I>(), std::forward<Objects>(objects), phase), ...);
      }
      (std::index_sequence_for<Objects...>());
    }
    if constexpr (sizeof...(Objects) == 1) {
      return std::move(*std::get<0>(made));
    } else {
      return std::apply([](auto&... each) { return std::tuple(std::move(*each)...); }, made);
    }
  }
  template <class T>
  auto prepare_one(T&& object, std::optional<bool> placement, std::source_location where) {
    using Object = std::remove_cvref_t<T>;
    if constexpr (detail::PreparesModel<Object>) {
      return prepare_model(object, {.device_placement = placement}, where);
    } else if constexpr (detail::PreparesLoader<Object>) {
      return prepare_data_loader(object, {.device_placement = placement});
    } else {
      constexpr bool is_handle = !std::is_void_v<typename detail::pointee<Object>::type> ||
                                 std::same_as<Object, AcceleratedOptimizer> || std::same_as<Object, AcceleratedScheduler>;
      static_assert(is_handle || std::is_lvalue_reference_v<T>,
                    "an optimizer or scheduler must outlive what is prepared from it");
      if constexpr (detail::PreparesOptimizer<Object>) {
        return prepare_optimizer(object, {.device_placement = placement});
      } else {
        return prepare_scheduler(object);
      }
    }
  }
  static ProcessState join(AcceleratorOptions& options);
  static void check_placements(const PrepareOptions& options, size_t objects);
  std::shared_ptr<detail::ModelCore> model_core(std::shared_ptr<torch::nn::Module> module, const PrepareModelOptions& options,
                                                std::source_location where);
  void keep_model(const std::shared_ptr<detail::ModelCore>& model);
  detail::LoaderHandle prepared_loader(const detail::LoaderHandle& loader, const PlacementOptions& options);
  AcceleratedOptimizer keep_optimizer(AcceleratedOptimizer optimizer);
  std::vector<torch::optim::Optimizer*> prepared_optimizers() const;
  SchedulerRule scheduler_rule(torch::optim::Optimizer* optimizer) const;
  AcceleratedScheduler keep_scheduler(AcceleratedScheduler scheduler);
  void unscale_for_clipping(const std::vector<at::Tensor>& parameters);
  UnevenInputsScope join_uneven_inputs(const JoinUnevenInputsOptions& options,
                                       const std::vector<std::shared_ptr<detail::ModelCore>>& models);
  NoSyncScope accumulate(const std::vector<std::shared_ptr<detail::ModelCore>>& models);

  AcceleratorOptions options_;
  std::shared_ptr<GradientState> gradients_;
  std::shared_ptr<GradScaler> scaler_;
  // What was prepared, in this order: what unscale_gradients, schedulers and checkpoints go through.
  std::vector<std::shared_ptr<detail::ModelCore>> models_;
  std::vector<AcceleratedOptimizer> optimizers_;
  std::vector<AcceleratedScheduler> schedulers_;
  std::vector<detail::LoaderHandle> loaders_;
};

}  // namespace accelerate
