#include "training/torch_scheduler_access.h"

#include <algorithm>
#include <utility>

namespace accelerate {

namespace {

using Plateau = torch::optim::ReduceLROnPlateauScheduler;

/// A derived class may name the protected members of its base, and a pointer to one fits every object of that base.
struct TorchSchedulerMembers : torch::optim::LRScheduler {
  static constexpr auto step_count() { return &TorchSchedulerMembers::step_count_; }
  static constexpr auto current_lrs() { return &TorchSchedulerMembers::get_current_lrs; }
};

// Private members may be named in an explicit instantiation, and only there ([temp.spec.general]): each defines the friend
// function that hands the pointer on.
template <class Tag, typename Tag::Pointer member>
struct PlateauMember {
  friend constexpr typename Tag::Pointer pointer_to(Tag) { return member; }
};

struct PlateauBest {
  using Pointer = float Plateau::*;
  friend constexpr Pointer pointer_to(PlateauBest);
};
struct PlateauCooldownCounter {
  using Pointer = int Plateau::*;
  friend constexpr Pointer pointer_to(PlateauCooldownCounter);
};
struct PlateauNumBadEpochs {
  using Pointer = int Plateau::*;
  friend constexpr Pointer pointer_to(PlateauNumBadEpochs);
};
struct PlateauLastEpoch {
  using Pointer = int Plateau::*;
  friend constexpr Pointer pointer_to(PlateauLastEpoch);
};
struct PlateauReduceBy {
  using Pointer = float Plateau::*;
  friend constexpr Pointer pointer_to(PlateauReduceBy);
};
struct PlateauMinLrs {
  using Pointer = std::vector<float> Plateau::*;
  friend constexpr Pointer pointer_to(PlateauMinLrs);
};
struct PlateauLeastChange {
  using Pointer = double Plateau::*;
  friend constexpr Pointer pointer_to(PlateauLeastChange);
};
struct PlateauVerbose {
  using Pointer = bool Plateau::*;
  friend constexpr Pointer pointer_to(PlateauVerbose);
};
struct PlateauReduceLr {
  using Pointer = void (Plateau::*)(int);
  friend constexpr Pointer pointer_to(PlateauReduceLr);
};

template struct PlateauMember<PlateauBest, &Plateau::best>;
template struct PlateauMember<PlateauCooldownCounter, &Plateau::cooldown_counter>;
template struct PlateauMember<PlateauNumBadEpochs, &Plateau::num_bad_epochs>;
template struct PlateauMember<PlateauLastEpoch, &Plateau::last_epoch>;
template struct PlateauMember<PlateauReduceBy, &Plateau::factor>;
template struct PlateauMember<PlateauMinLrs, &Plateau::min_lrs>;
template struct PlateauMember<PlateauLeastChange, &Plateau::eps>;
template struct PlateauMember<PlateauVerbose, &Plateau::verbose>;
template struct PlateauMember<PlateauReduceLr, &Plateau::reduce_lr>;

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

unsigned& step_count_of(torch::optim::LRScheduler& scheduler) { return scheduler.*TorchSchedulerMembers::step_count(); }

std::vector<double> current_lrs_of(const torch::optim::LRScheduler& scheduler) {
  return (scheduler.*TorchSchedulerMembers::current_lrs())();
}

PlateauProgress progress_of(Plateau& scheduler) {
  return {scheduler.*pointer_to(PlateauBest()), scheduler.*pointer_to(PlateauCooldownCounter()),
          scheduler.*pointer_to(PlateauNumBadEpochs()), scheduler.*pointer_to(PlateauLastEpoch())};
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
  // It never reads rates but to reduce them. Reduced by a factor of 1 and not below 0, all stay as they are but one of -1.
  auto& least = scheduler.*pointer_to(PlateauMinLrs());
  const LentValue factor(scheduler.*pointer_to(PlateauReduceBy()), 1.0F);
  const LentValue least_change(scheduler.*pointer_to(PlateauLeastChange()), -10.0);
  const LentValue silent(scheduler.*pointer_to(PlateauVerbose()), false);
  // Groups may have been added since, and it looks up the least rate of each without asking whether there is one.
  const LentValue zeros(least, std::vector<float>(std::max(least.size(), optimizer.param_groups().size()) + 1000, 0.0F));
  const LentRate rate(optimizer, -1);
  (scheduler.*pointer_to(PlateauReduceLr()))(0);
  return rate.now() != -1;
}

}  // namespace accelerate
