#pragma once

#include <accelerate/data/data_loader.h>
#include <accelerate/parallel/model.h>
#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/accelerated_scheduler.h>
#include <accelerate/training/lr_scheduler.h>

#include <source_location>

namespace accelerate {

/// How `prepare` treats the objects it is given.
struct PrepareOptions {
  /// For each object, whether it is moved to the device. Empty: as the accelerator was told.
  std::vector<bool> device_placement = {};
  /// Where errors say that it was called.
  std::source_location where = std::source_location::current();
};

/// The same for a single object.
struct PlacementOptions {
  std::optional<bool> device_placement = {};
};

struct PrepareModelOptions {
  std::optional<bool> device_placement = {};
  /// The model is only evaluated: its gradients are not exchanged.
  bool evaluation_mode = false;
};

namespace detail {

template <class T>
struct is_prepared_model : std::false_type {};
template <class M>
struct is_prepared_model<Model<M>> : std::true_type {};
template <class T>
struct is_data_loader : std::false_type {};
template <class B>
struct is_data_loader<DataLoader<B>> : std::true_type {};
template <class T>
struct pointee {
  using type = void;
};
template <class T>
struct pointee<std::shared_ptr<T>> {
  using type = T;
};

/// T is, or is a shared pointer to, something derived from Base.
template <class T, class Base>
concept IsOrPointsTo = std::derived_from<T, Base> || std::derived_from<typename pointee<T>::type, Base>;

/// What TORCH_MODULE makes: a holder that gives its module away as a shared pointer.
template <class H>
concept ModuleHolder = requires(const H& holder) {
  { *holder.ptr() } -> std::convertible_to<const torch::nn::Module&>;
};

template <class T>
concept PreparesModel =
    ModuleHolder<T> || std::derived_from<typename pointee<T>::type, torch::nn::Module> || is_prepared_model<T>::value;
template <class T>
concept PreparesLoader = is_data_loader<T>::value;
template <class T>
concept PreparesOptimizer = IsOrPointsTo<T, torch::optim::Optimizer> || std::same_as<T, AcceleratedOptimizer>;
template <class T>
concept PreparesScheduler = IsOrPointsTo<T, LRScheduler> || IsOrPointsTo<T, torch::optim::LRScheduler> ||
    IsOrPointsTo<T, torch::optim::ReduceLROnPlateauScheduler> || std::same_as<T, AcceleratedScheduler>;

}  // namespace detail

/// What `prepare` takes: module holders and shared pointers to modules, optimizers, loaders, schedulers, and what it has
/// prepared before. Optimizers and schedulers are taken by reference and must outlive what is made of them, or by shared_ptr.
template <class T>
concept Preparable = detail::PreparesModel<std::remove_cvref_t<T>> || detail::PreparesLoader<std::remove_cvref_t<T>> ||
    detail::PreparesOptimizer<std::remove_cvref_t<T>> || detail::PreparesScheduler<std::remove_cvref_t<T>>;

}  // namespace accelerate
