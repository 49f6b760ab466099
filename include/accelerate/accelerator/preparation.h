#pragma once

#include <accelerate/accelerator/options.h>
#include <accelerate/accelerator/preparable.h>
#include <accelerate/accelerator/process_control.h>
#include <accelerate/data/data_loader.h>

namespace accelerate {

namespace detail {
class GradientBuffers;
struct DeepSpeedSettings;
}  // namespace detail

/// Prepares training objects for this process, and owns them. Base of Accelerator.
class Preparation : public ProcessControl {
 public:
  Precision mixed_precision() const { return *options_.mixed_precision; }

  /// Training objects, prepared for this process, in the order given: a tuple, or the object itself
  /// when there is one. Preparing what was prepared gives the same again. UsageError for an optimizer none of whose parameters
  /// is in a prepared model, and for a scheduler whose optimizer was not prepared.
  template <detail::GivenToPrepare T>
  auto prepare(T&& object, std::source_location where = std::source_location::current()) {
    return prepare_one(std::forward<T>(object), {}, where);
  }
  template <detail::GivenToPrepare A, detail::GivenToPrepare B>
  auto prepare(A&& a, B&& b, std::source_location where = std::source_location::current()) {
    return prepare_all({}, where, std::forward<A>(a), std::forward<B>(b));
  }
  template <detail::GivenToPrepare A, detail::GivenToPrepare B, detail::GivenToPrepare C>
  auto prepare(A&& a, B&& b, C&& c, std::source_location where = std::source_location::current()) {
    return prepare_all({}, where, std::forward<A>(a), std::forward<B>(b), std::forward<C>(c));
  }
  template <detail::GivenToPrepare A, detail::GivenToPrepare B, detail::GivenToPrepare C, detail::GivenToPrepare D>
  auto prepare(A&& a, B&& b, C&& c, D&& d, std::source_location where = std::source_location::current()) {
    return prepare_all({}, where, std::forward<A>(a), std::forward<B>(b), std::forward<C>(c), std::forward<D>(d));
  }
  /// Five and more: std::source_location cannot follow a parameter pack, so errors do not name the line.
  template <detail::GivenToPrepare... Objects>
  requires(sizeof...(Objects) > 4) auto prepare(Objects&&... objects) {
    return prepare_all({}, {}, std::forward<Objects>(objects)...);
  }
  template <detail::GivenToPrepare... Objects>
  auto prepare(const PrepareOptions& options, Objects&&... objects) {
    return prepare_all(options, options.where, std::forward<Objects>(objects)...);
  }

  /// A module on its device, with the main process's weights, whose gradients are the mean over all processes.
  template <class T>
  auto prepare_model(const T& model, const PrepareModelOptions& options = {},
                     std::source_location where = std::source_location::current()) {
    detail::expect_preparable<T, detail::PreparesModel<T>>();
    if constexpr (!detail::PreparesModel<T>) {
      return detail::NotPrepared();
    } else if constexpr (detail::is_prepared_model<T>::value) {
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
  /// Forgets everything that was prepared, restarts accumulation, and empties the device's caches. Python's `clear` is the
  /// same.
  void free_memory();

 protected:
  /// Reads the environment and joins the processes that were launched with this one.
  explicit Preparation(AcceleratorOptions options);
  ~Preparation();

  // What a DeepSpeed configuration says, or null.
  std::shared_ptr<const detail::DeepSpeedSettings> deepspeed_;
  AcceleratorOptions options_;
  std::shared_ptr<ActiveLoaders> active_loaders_ = std::make_shared<ActiveLoaders>();
  std::shared_ptr<GradientState> gradients_;
  std::shared_ptr<GradScaler> scaler_;
  // Null unless gradients are accumulated in a separate dtype.
  std::shared_ptr<detail::GradientBuffers> buffers_;
  // What was prepared, in this order: what unscale_gradients, schedulers and checkpoints go through.
  std::vector<std::shared_ptr<detail::ModelCore>> models_;
  std::vector<AcceleratedOptimizer> optimizers_;
  std::vector<AcceleratedScheduler> schedulers_;
  std::vector<detail::AnyDataLoader> loaders_;

 private:
  Preparation(AcceleratorOptions options, std::shared_ptr<const detail::DeepSpeedSettings> deepspeed);
  static ProcessState join(AcceleratorOptions& options, std::shared_ptr<const detail::DeepSpeedSettings>& deepspeed);
  void check_batch_size(const detail::AnyDataLoader& loader) const;
  template <class T>
  static constexpr int phase_of() {
    using Object = std::remove_cvref_t<T>;
    return detail::PreparesScheduler<Object> ? 2 : detail::PreparesOptimizer<Object> ? 1 : 0;
  }
  template <class... Objects>
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
    detail::expect_preparable<T, Preparable<T>>();
    if constexpr (!Preparable<T>) {
      return detail::NotPrepared();
    } else if constexpr (detail::PreparesModel<Object>) {
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
  static void check_placements(const PrepareOptions& options, size_t objects);
  std::shared_ptr<detail::ModelCore> model_core(std::shared_ptr<torch::nn::Module> module, const PrepareModelOptions& options,
                                                std::source_location where);
  std::optional<FsdpOptions> fsdp_options() const;
  void keep_model(const std::shared_ptr<detail::ModelCore>& model);
  void note_shared_parameters(detail::ModelCore& model) const;
  detail::AnyDataLoader prepared_loader(const detail::AnyDataLoader& loader, const PlacementOptions& options);
  void shard_optimizer(torch::optim::Optimizer& optimizer);
  AcceleratedOptimizer keep_optimizer(AcceleratedOptimizer optimizer);
  std::vector<torch::optim::Optimizer*> prepared_optimizers() const;
  SchedulerRule scheduler_rule(torch::optim::Optimizer* optimizer) const;
  AcceleratedScheduler keep_scheduler(AcceleratedScheduler scheduler);

  // models_, for optimizers that outlive this.
  std::shared_ptr<std::vector<std::weak_ptr<detail::ModelCore>>> step_models_ =
      std::make_shared<std::vector<std::weak_ptr<detail::ModelCore>>>();
};

}  // namespace accelerate
