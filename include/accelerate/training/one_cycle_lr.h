#pragma once

#include <accelerate/training/lr_scheduler.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace accelerate {

/// One number for all parameter groups, or one for each.
struct PerGroup {
  PerGroup(double for_all) : values{for_all} {}
  PerGroup(std::initializer_list<double> for_each) : values(for_each) {}
  PerGroup(std::vector<double> for_each) : values(std::move(for_each)) {}
  std::vector<double> values;
};

enum class AnnealStrategy { cos, linear };

struct OneCycleLROptions {
  /// The rate at the top of the cycle. Must be given.
  PerGroup max_lr = std::vector<double>();
  /// The length of the cycle: this, or epochs and steps_per_epoch.
  std::optional<int64_t> total_steps = std::nullopt;
  std::optional<int64_t> epochs = std::nullopt;
  std::optional<int64_t> steps_per_epoch = std::nullopt;
  /// The part of the cycle that goes up.
  double pct_start = 0.3;
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;
  /// The momentum (of Adam: the first beta) goes the other way, from max_momentum to base_momentum and back.
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.85;
  PerGroup max_momentum = 0.95;
  /// The cycle begins at max_lr / div_factor ...
  double div_factor = 25;
  /// ... and ends at that / final_div_factor.
  double final_div_factor = 1e4;
  /// Down as far as up, and then to the end; else down to the end at once.
  bool three_phase = false;
};

/// Up to a high rate, then down to a very low one: PyTorch's OneCycleLR. The rates of the optimizer play no part.
/// UsageError when stepped beyond total_steps.
class OneCycleLR final : public LRScheduler {
 public:
  OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options);
  std::optional<int64_t> total_steps() const override { return total_steps_; }
  StateDict group_fields(size_t group) const override;

 private:
  /// A part of the cycle. The ends have the names by which Python saves them.
  struct Phase {
    double end_step;
    std::string start_lr, end_lr, start_momentum, end_momentum;
  };
  /// What the ends stand for in one parameter group.
  struct Bounds {
    double initial_lr, max_lr, min_lr, base_momentum, max_momentum;
    double named(const std::string& name) const;
  };

  void set_phases(double pct_start, bool three_phase);
  void set_bounds(const OneCycleLROptions& options);
  double anneal(double start, double end, double part) const;
  void visit_phases(StateFields& fields);
  std::vector<double> initial_lrs() const;
  std::vector<double> get_lr() override;
  void visit_state(StateFields& fields) override;
  std::vector<double> begin_again(const std::vector<double>& initial) override;

  int64_t total_steps_;
  std::vector<Phase> phases_;
  std::vector<Bounds> bounds_;
  std::string anneal_strategy_;
  bool cycle_momentum_;
  bool use_beta1_ = false;
};

}  // namespace accelerate
