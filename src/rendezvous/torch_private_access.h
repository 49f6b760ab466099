#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
class DispatchKeySet;
struct TensorImpl;
}  // namespace c10
namespace c10d {
class Reducer;
}
namespace torch {
template <typename Key, typename Value>
class OrderedDict;
}
namespace torch::nn {
class AnyModule;
struct AnyModulePlaceholder;
class Module;
}  // namespace torch::nn
namespace torch::optim {
class LRScheduler;
class Optimizer;
class OptimizerOptions;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

/// All that this library uses of LibTorch's private and protected members, and nowhere else: a new release is checked against
/// this file and c10d_compat.h. It stands in the lowest folder that knows torch, for those above it.
namespace accelerate::torch_private {

// --- Tensors, modules and optimizers.

/// The dispatch keys of a tensor.
c10::DispatchKeySet& key_set_of(c10::TensorImpl& tensor);
/// The parameters that a module itself has registered.
torch::OrderedDict<std::string, at::Tensor>& own_parameters_of(torch::nn::Module& module);
/// The module that an AnyModule holds, with its type erased.
std::unique_ptr<torch::nn::AnyModulePlaceholder>& content_of(torch::nn::AnyModule& module);
/// What new groups get; null in an optimizer that was moved from.
std::unique_ptr<torch::optim::OptimizerOptions>& defaults_of(torch::optim::Optimizer& optimizer);

// --- Schedulers, which keep to themselves how far they are. A run that is resumed needs it.

/// How many steps were taken.
unsigned& step_count_of(torch::optim::LRScheduler& scheduler);
/// The present rates of its optimizer.
std::vector<double> current_lrs_of(const torch::optim::LRScheduler& scheduler);

/// What changes in a ReduceLROnPlateauScheduler from step to step.
struct PlateauProgress {
  float& best;
  int& cooldown_counter;
  int& num_bad_epochs;
  int& last_epoch;
};
PlateauProgress progress_of(torch::optim::ReduceLROnPlateauScheduler& scheduler);

/// Whether the scheduler sets the rates of `optimizer`. Nothing is changed when it returns.
bool sets_rates_of(const torch::optim::LRScheduler& scheduler, torch::optim::Optimizer& optimizer);
bool sets_rates_of(torch::optim::ReduceLROnPlateauScheduler& scheduler, torch::optim::Optimizer& optimizer);

// --- c10d's reducer of gradients.

c10::Device device_of(const c10d::Reducer& reducer);
/// The next backward pass all-reduces gradients.
bool expects_gradients(const c10d::Reducer& reducer);
/// The next forward pass rebuilds the buckets, in the order in which gradients came: a collective.
bool will_rebuild(const c10d::Reducer& reducer);
/// The order in which gradients came, which buckets are made of, by the numbers of parameters; empty when it is not known yet.
std::vector<size_t> gradient_order(const c10d::Reducer& reducer);
/// Gradients are known to come in this order: the next forward pass makes buckets of it, unless it has been done.
void expect_order(c10d::Reducer& reducer, const std::vector<size_t>& order);
/// Gradients are added up on the current stream from now on; before, on the one that was current when the reducer was made.
void use_current_stream(c10d::Reducer& reducer);
/// The next backward pass shows the static graph. Passes that were not to be all-reduced have been counted as such.
void forget_graph(c10d::Reducer& reducer);
/// A backward pass ended in the middle: the next forward pass does not ask for its gradients.
void forget_pass(c10d::Reducer& reducer);
/// Whether a backward pass has reached parameters since the last call without being all-reduced. The reducer notes the first
/// hook of every pass, and forgets it when it has reduced that pass.
bool take_unreduced_pass(c10d::Reducer& reducer);
/// c10::Error when a backward pass has reached some parameters and others not, so that nothing is reduced yet.
void ensure_prior_reduction_finished(c10d::Reducer& reducer);

}  // namespace accelerate::torch_private
