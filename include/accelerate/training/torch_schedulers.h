#pragma once

#include <accelerate/training/lr_scheduler.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

// The schedulers of torch.optim.lr_scheduler that set a rate by a formula. Their options have PyTorch's names and defaults.
namespace accelerate {

/// The rate is base_lrs times a function of the number of steps, one for all groups or one for each.
class LambdaLR : public LRScheduler {
 public:
  using Factor = std::function<double(int64_t step)>;
  LambdaLR(torch::optim::Optimizer& optimizer, Factor lr_lambda);
  LambdaLR(torch::optim::Optimizer& optimizer, std::vector<Factor> lr_lambdas);

 private:
  std::vector<double> get_lr() final;
  void visit_state(StateFields& fields) final;
  std::vector<Factor> lr_lambdas_;
};

/// At each step the rate is multiplied by a function of the number of steps.
class MultiplicativeLR final : public LRScheduler {
 public:
  MultiplicativeLR(torch::optim::Optimizer& optimizer, LambdaLR::Factor lr_lambda);
  MultiplicativeLR(torch::optim::Optimizer& optimizer, std::vector<LambdaLR::Factor> lr_lambdas);

 private:
  std::vector<double> get_lr() override;
  void visit_state(StateFields& fields) override;
  std::vector<LambdaLR::Factor> lr_lambdas_;
};

struct StepLROptions {
  int64_t step_size = 1;
  double gamma = 0.1;
};

/// Times gamma every step_size steps. torch::optim::StepLR does so one step later than Python; this one does not.
class StepLR final : public LRScheduler {
 public:
  StepLR(torch::optim::Optimizer& optimizer, StepLROptions options);

 private:
  std::vector<double> get_lr() override;
  std::vector<double> closed_form_lr() override;
  void visit_state(StateFields& fields) override;
  StepLROptions options_;
};

struct MultiStepLROptions {
  /// In any order; one that is given twice counts twice.
  std::vector<int64_t> milestones;
  double gamma = 0.1;
};

/// Times gamma at each milestone.
class MultiStepLR final : public LRScheduler {
 public:
  MultiStepLR(torch::optim::Optimizer& optimizer, const MultiStepLROptions& options);

 private:
  std::vector<double> get_lr() override;
  std::vector<double> closed_form_lr() override;
  void visit_state(StateFields& fields) override;
  std::map<int64_t, int64_t> milestones_;
  double gamma_;
};

struct ConstantLROptions {
  double factor = 1.0 / 3;
  int64_t total_iters = 5;
};

/// Times factor until total_iters, then back.
class ConstantLR final : public LRScheduler {
 public:
  ConstantLR(torch::optim::Optimizer& optimizer, ConstantLROptions options);

 private:
  std::vector<double> get_lr() override;
  std::vector<double> closed_form_lr() override;
  void visit_state(StateFields& fields) override;
  ConstantLROptions options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  int64_t total_iters = 5;
};

/// From start_factor to end_factor in a line of total_iters steps.
class LinearLR final : public LRScheduler {
 public:
  LinearLR(torch::optim::Optimizer& optimizer, LinearLROptions options);

 private:
  std::vector<double> get_lr() override;
  std::vector<double> closed_form_lr() override;
  void visit_state(StateFields& fields) override;
  LinearLROptions options_;
};

/// Times gamma at every step.
class ExponentialLR final : public LRScheduler {
 public:
  ExponentialLR(torch::optim::Optimizer& optimizer, double gamma);

 private:
  std::vector<double> get_lr() override;
  std::vector<double> closed_form_lr() override;
  void visit_state(StateFields& fields) override;
  double gamma_;
};

struct PolynomialLROptions {
  int64_t total_iters = 5;
  double power = 1.0;
};

/// Down to 0 in total_iters steps along (1 - step / total_iters) ^ power.
class PolynomialLR final : public LRScheduler {
 public:
  PolynomialLR(torch::optim::Optimizer& optimizer, PolynomialLROptions options);

 private:
  std::vector<double> get_lr() override;
  std::vector<double> closed_form_lr() override;
  void visit_state(StateFields& fields) override;
  PolynomialLROptions options_;
};

struct CosineAnnealingLROptions {
  int64_t T_max = 0;
  double eta_min = 0;
};

/// A cosine down to eta_min in T_max steps, up again in T_max more, and so on.
class CosineAnnealingLR final : public LRScheduler {
 public:
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, CosineAnnealingLROptions options);

 private:
  std::vector<double> get_lr() override;
  std::vector<double> closed_form_lr() override;
  void visit_state(StateFields& fields) override;
  CosineAnnealingLROptions options_;
};

struct CosineAnnealingWarmRestartsOptions {
  /// Steps until the first restart.
  int64_t T_0 = 0;
  /// How much longer each cycle is than the one before.
  int64_t T_mult = 1;
  double eta_min = 0;
};

/// A cosine down to eta_min, then at once back up.
class CosineAnnealingWarmRestarts final : public LRScheduler {
 public:
  CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer, CosineAnnealingWarmRestartsOptions options);
  void step() override;
  /// To a point between two epochs: step(epoch + batch / batches).
  void step(double epoch) override;

 private:
  std::vector<double> get_lr() override;
  void visit_state(StateFields& fields) override;
  std::vector<double> begin_again(const std::vector<double>& initial) override;
  void move_to(double cycle_position, int64_t cycle_length, double epoch);
  CosineAnnealingWarmRestartsOptions options_;
  double T_cur_ = -1;
  int64_t T_i_;
};

}  // namespace accelerate
