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

struct Best {
  using Pointer = float Plateau::*;
  friend constexpr Pointer pointer_to(Best);
};
struct CooldownCounter {
  using Pointer = int Plateau::*;
  friend constexpr Pointer pointer_to(CooldownCounter);
};
struct NumBadEpochs {
  using Pointer = int Plateau::*;
  friend constexpr Pointer pointer_to(NumBadEpochs);
};
struct LastEpoch {
  using Pointer = int Plateau::*;
  friend constexpr Pointer pointer_to(LastEpoch);
};
struct ReduceBy {
  using Pointer = float Plateau::*;
  friend constexpr Pointer pointer_to(ReduceBy);
};
struct MinLrs {
  using Pointer = std::vector<float> Plateau::*;
  friend constexpr Pointer pointer_to(MinLrs);
};
struct LeastChange {
  using Pointer = double Plateau::*;
  friend constexpr Pointer pointer_to(LeastChange);
};
struct Verbose {
  using Pointer = bool Plateau::*;
  friend constexpr Pointer pointer_to(Verbose);
};
struct ReduceLr {
  using Pointer = void (Plateau::*)(int);
  friend constexpr Pointer pointer_to(ReduceLr);
};

template struct PlateauMember<Best, &Plateau::best>;
template struct PlateauMember<CooldownCounter, &Plateau::cooldown_counter>;
template struct PlateauMember<NumBadEpochs, &Plateau::num_bad_epochs>;
template struct PlateauMember<LastEpoch, &Plateau::last_epoch>;
template struct PlateauMember<ReduceBy, &Plateau::factor>;
template struct PlateauMember<MinLrs, &Plateau::min_lrs>;
template struct PlateauMember<LeastChange, &Plateau::eps>;
template struct PlateauMember<Verbose, &Plateau::verbose>;
template struct PlateauMember<ReduceLr, &Plateau::reduce_lr>;

/// Another value for the length of a scope.
template <class T>
class Lent {
 public:
  Lent(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~Lent() { variable_ = std::move(before_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

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
  return {scheduler.*pointer_to(Best()), scheduler.*pointer_to(CooldownCounter()), scheduler.*pointer_to(NumBadEpochs()),
          scheduler.*pointer_to(LastEpoch())};
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
  auto& least = scheduler.*pointer_to(MinLrs());
  const Lent factor(scheduler.*pointer_to(ReduceBy()), 1.0F);
  const Lent least_change(scheduler.*pointer_to(LeastChange()), -10.0);
  const Lent silent(scheduler.*pointer_to(Verbose()), false);
  // Groups may have been added since, and it looks up the least rate of each without asking whether there is one.
  const Lent zeros(least, std::vector<float>(std::max(least.size(), optimizer.param_groups().size()) + 1000, 0.0F));
  const LentRate rate(optimizer, -1);
  (scheduler.*pointer_to(ReduceLr()))(0);
  return rate.now() != -1;
}

}  // namespace accelerate
