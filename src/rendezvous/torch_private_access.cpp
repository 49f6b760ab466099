#include "rendezvous/torch_private_access.h"

#include <c10/core/TensorImpl.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>

namespace accelerate::torch_private {
namespace {

// A derived class may name the protected members of its base, and a pointer to one fits every object of that base.
struct TensorMembers : c10::TensorImpl {
  static constexpr auto key_set() { return &TensorMembers::key_set_; }
};
struct ModuleMembers : torch::nn::Module {
  static constexpr auto parameters() { return &ModuleMembers::parameters_; }
};
struct OptimizerMembers : torch::optim::Optimizer {
  static constexpr auto defaults() { return &OptimizerMembers::defaults_; }
};
struct SchedulerMembers : torch::optim::LRScheduler {
  static constexpr auto step_count() { return &SchedulerMembers::step_count_; }
  static constexpr auto current_lrs() { return &SchedulerMembers::get_current_lrs; }
};
struct ReducerMembers : c10d::Reducer {
  static constexpr auto parameters() { return &ReducerMembers::params_; }
  static constexpr auto grad_accumulators() { return &ReducerMembers::grad_accumulators_; }
  static constexpr auto expects_hooks() { return &ReducerMembers::expect_autograd_hooks_; }
  static constexpr auto requires_finalize() { return &ReducerMembers::require_finalize_; }
  static constexpr auto buckets() { return &ReducerMembers::buckets_; }
  static constexpr auto backward_calls() { return &ReducerMembers::num_bwd_calls_; }
  static constexpr auto first_hook_called() { return &ReducerMembers::first_autograd_hook_called_; }
  static constexpr auto uses() { return &ReducerMembers::numGradHooksTriggeredMap_; }
  static constexpr auto has_rebuilt() { return &ReducerMembers::has_rebuilt_bucket_; }
  static constexpr auto rebuilt_parameters() { return &ReducerMembers::rebuilt_params_; }
  static constexpr auto rebuilt_indices() { return &ReducerMembers::rebuilt_param_indices_; }
  static constexpr auto push_rebuilt() { return &ReducerMembers::push_rebuilt_params; }
  static constexpr auto ensure_finished() { return &ReducerMembers::ensure_prior_reduction_finished; }
};

using Plateau = torch::optim::ReduceLROnPlateauScheduler;

struct PlateauMembers {
  float Plateau::*best;
  int Plateau::*cooldown_counter;
  int Plateau::*num_bad_epochs;
  int Plateau::*last_epoch;
  float Plateau::*factor;
  std::vector<float> Plateau::*min_lrs;
  double Plateau::*eps;
  bool Plateau::*verbose;
  void (Plateau::*reduce_lr)(int);
};
constexpr PlateauMembers plateau_members();

// Private members may be named in an explicit instantiation, and only there ([temp.spec.general]): it defines the function that
// hands the pointers on.
template <auto... members>
struct PlateauInstantiation {
  friend constexpr PlateauMembers plateau_members() { return {members...}; }
};
template struct PlateauInstantiation<&Plateau::best, &Plateau::cooldown_counter, &Plateau::num_bad_epochs, &Plateau::last_epoch,
                                     &Plateau::factor, &Plateau::min_lrs, &Plateau::eps, &Plateau::verbose, &Plateau::reduce_lr>;

using AnyContent = std::unique_ptr<torch::nn::AnyModulePlaceholder>;
constexpr AnyContent torch::nn::AnyModule::*any_content();
template <AnyContent torch::nn::AnyModule::*member>
struct AnyModuleInstantiation {
  friend constexpr AnyContent torch::nn::AnyModule::*any_content() { return member; }
};
template struct AnyModuleInstantiation<&torch::nn::AnyModule::content_>;

/// Another value for the length of a scope.
template <class T>
class LentValue {
 public:
  LentValue(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~LentValue() { variable_ = std::move(before_); }
  LentValue(const LentValue&) = delete;
  LentValue& operator=(const LentValue&) = delete;

 private:
  T& variable_;
  T before_;
};

/// Another rate of the first group for the length of a scope.
class LentRate {
 public:
  LentRate(torch::optim::Optimizer& optimizer, double rate)
      : options_(optimizer.param_groups().front().options()), before_(options_.get_lr()) {
    options_.set_lr(rate);
  }
  ~LentRate() { options_.set_lr(before_); }
  LentRate(const LentRate&) = delete;
  LentRate& operator=(const LentRate&) = delete;
  double now() const { return options_.get_lr(); }

 private:
  torch::optim::OptimizerOptions& options_;
  double before_;
};

}  // namespace

c10::DispatchKeySet& key_set_of(c10::TensorImpl& tensor) { return tensor.*TensorMembers::key_set(); }

torch::OrderedDict<std::string, at::Tensor>& own_parameters_of(torch::nn::Module& module) {
  return module.*ModuleMembers::parameters();
}

std::unique_ptr<torch::nn::AnyModulePlaceholder>& content_of(torch::nn::AnyModule& module) { return module.*any_content(); }

std::unique_ptr<torch::optim::OptimizerOptions>& defaults_of(torch::optim::Optimizer& optimizer) {
  return optimizer.*OptimizerMembers::defaults();
}

unsigned& step_count_of(torch::optim::LRScheduler& scheduler) { return scheduler.*SchedulerMembers::step_count(); }

std::vector<double> current_lrs_of(const torch::optim::LRScheduler& scheduler) {
  return (scheduler.*SchedulerMembers::current_lrs())();
}

PlateauProgress progress_of(Plateau& scheduler) {
  constexpr auto members = plateau_members();
  return {scheduler.*members.best, scheduler.*members.cooldown_counter, scheduler.*members.num_bad_epochs,
          scheduler.*members.last_epoch};
}

bool sets_rates_of(const torch::optim::LRScheduler& scheduler, torch::optim::Optimizer& optimizer) {
  if (optimizer.param_groups().empty()) return false;
  constexpr double kNobodysRate = -1;
  const LentRate rate(optimizer, kNobodysRate);
  const auto seen = current_lrs_of(scheduler);
  return !seen.empty() && seen.front() == kNobodysRate;
}

bool sets_rates_of(Plateau& scheduler, torch::optim::Optimizer& optimizer) {
  if (optimizer.param_groups().empty()) return false;
  constexpr auto members = plateau_members();
  // It never reads rates but to reduce them. Reduced by a factor of 1 and not below 0, all stay as they are but one of -1.
  auto& least = scheduler.*members.min_lrs;
  const LentValue factor(scheduler.*members.factor, 1.0F);
  const LentValue least_change(scheduler.*members.eps, -10.0);
  const LentValue silent(scheduler.*members.verbose, false);
  // Groups may have been added since, and it looks up the least rate of each without asking whether there is one.
  const LentValue zeros(least, std::vector<float>(std::max(least.size(), optimizer.param_groups().size()) + 1000, 0.0F));
  const LentRate rate(optimizer, -1);
  (scheduler.*members.reduce_lr)(0);
  return rate.now() != -1;
}

c10::Device device_of(const c10d::Reducer& reducer) { return (reducer.*ReducerMembers::parameters()).front().device(); }

bool expects_gradients(const c10d::Reducer& reducer) { return reducer.*ReducerMembers::expects_hooks(); }

bool will_rebuild(const c10d::Reducer& reducer) {
  return reducer.should_rebuild_buckets() && !(reducer.*ReducerMembers::rebuilt_parameters()).empty();
}

std::vector<size_t> gradient_order(const c10d::Reducer& reducer) {
  const auto& rebuilt = reducer.*ReducerMembers::rebuilt_indices();
  if (!(reducer.*ReducerMembers::has_rebuilt())) return {rebuilt.begin(), rebuilt.end()};
  std::vector<size_t> order;
  for (const auto& bucket : reducer.*ReducerMembers::buckets())
    order.insert(order.end(), bucket.variable_indices.begin(), bucket.variable_indices.end());
  return order;
}

void expect_order(c10d::Reducer& reducer, const std::vector<size_t>& order) {
  if (!reducer.should_rebuild_buckets()) return;
  (reducer.*ReducerMembers::rebuilt_parameters()).clear();
  (reducer.*ReducerMembers::rebuilt_indices()).clear();
  for (const size_t number : order) (reducer.*ReducerMembers::push_rebuilt())(number);
}

void use_current_stream(c10d::Reducer& reducer) {
  const auto& parameters = reducer.*ReducerMembers::parameters();
  const auto& accumulators = reducer.*ReducerMembers::grad_accumulators();
  for (size_t i = 0; i < parameters.size(); ++i) {
    accumulators[i]->clear_input_metadata();
    accumulators[i]->add_input_metadata(parameters[i]);
  }
}

void forget_graph(c10d::Reducer& reducer) {
  reducer.*ReducerMembers::backward_calls() = 0;
  reducer.*ReducerMembers::first_hook_called() = false;
  for (auto& [parameter, uses] : reducer.*ReducerMembers::uses()) uses = 0;
}

void forget_pass(c10d::Reducer& reducer) {
  reducer.*ReducerMembers::requires_finalize() = false;
  reducer.*ReducerMembers::first_hook_called() = false;
}

bool take_unreduced_pass(c10d::Reducer& reducer) {
  return !expects_gradients(reducer) && std::exchange(reducer.*ReducerMembers::first_hook_called(), false);
}

void ensure_prior_reduction_finished(c10d::Reducer& reducer) { (reducer.*ReducerMembers::ensure_finished())(); }

}  // namespace accelerate::torch_private
