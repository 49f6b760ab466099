#pragma once

#include <accelerate/parallel/model.h>
#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/accelerated_scheduler.h>
#include <accelerate/training/lr_scheduler.h>

#include <source_location>

namespace torch::data {
template <typename Dataset, typename Batch, typename BatchRequest>
class DataLoaderBase;
}

namespace accelerate {

template <class Batch>
class DataLoader;

/// How `prepare` treats the objects it is given.
struct PrepareOptions {
  /// For each object, whether it is moved to the device. Empty: as the accelerator's option.
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
  /// The model is only evaluated: its gradients are not all-reduced.
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

/// What TORCH_MODULE makes: a holder with a shared pointer to its module.
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

namespace detail {

template <class T>
struct is_unique_pointer : std::false_type {};
template <class T, class D>
struct is_unique_pointer<std::unique_ptr<T, D>> : std::true_type {};

/// What torch::data::make_data_loader makes, a unique_ptr to a loader, or that loader.
template <class... T>
void expect_torch_loader(const torch::data::DataLoaderBase<T...>&);
template <class T>
concept TorchLoader = requires(const T& loader) {
  expect_torch_loader(loader);
}
|| requires(const T& loader) { expect_torch_loader(*loader); };

/// What can be given to `prepare`, rightly or not: all but what tells it how and where.
template <class T>
concept GivenToPrepare =
    !std::same_as<std::remove_cvref_t<T>, PrepareOptions> && !std::same_as<std::remove_cvref_t<T>, std::source_location>;

/// Stands for what is made of something that is not Preparable, so that a mistake is reported once.
struct NotPrepared {};

/// Says in one sentence what is wrong with an argument. `taken`: nothing is.
template <class T, bool taken>
constexpr void expect_preparable() {
  using Object = std::remove_cvref_t<T>;
  constexpr bool by_value = !taken && std::derived_from<Object, torch::nn::Module>;
  constexpr bool torch_loader = !taken && TorchLoader<Object>;
  constexpr bool unique = !taken && !torch_loader && is_unique_pointer<Object>::value;
  static_assert(!by_value,
                "prepare was given a module by value: pass the holder or a std::shared_ptr, auto net = std::make_shared<Net>()");
  static_assert(!torch_loader,
                "prepare was given a loader of torch::data: wrap its dataset instead, "
                "accelerate::DataLoader loader(accelerate::torch_dataset(dataset), {.batch_size = 32})");
  static_assert(!unique, "prepare was given a std::unique_ptr, and shares ownership: use a std::shared_ptr");
  static_assert(taken || by_value || torch_loader || unique,
                "prepare takes module holders and shared pointers to modules, optimizers, an accelerate::DataLoader, schedulers, "
                "and what it has prepared: this argument is none of them");
}

}  // namespace detail
}  // namespace accelerate
