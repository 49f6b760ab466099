#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/distributed/value.h>

#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace accelerate {

/// How the scale of a GradScaler changes.
struct GradScalerOptions {
  double init_scale = 65536;
  /// Times this after `growth_interval` steps in a row that were taken. More than 1.
  double growth_factor = 2;
  /// Times this after a step that was skipped. Less than 1.
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  /// Off: losses stay as they are and every step is taken.
  bool enabled = true;

  bool operator==(const GradScalerOptions&) const = default;
};

/// Keeps small gradients of float16 from vanishing: multiplies losses by a factor, divides gradients by it before a step, and
/// skips steps whose gradients are inf or NaN. The factor grows while steps succeed. Works on any device.
///
///   scaler.scale(loss).backward();
///   scaler.step(optimizer);
///   scaler.update();
class GradScaler {
 public:
  /// UsageError when a factor is out of its range.
  explicit GradScaler(GradScalerOptions options = {});

  /// The loss times the factor.
  at::Tensor scale(const at::Tensor& loss);

  /// Divides the gradients of the optimizer by the factor that the last loss was multiplied by, and notes whether all are
  /// finite. Once before a step: UsageError otherwise, and for gradients of float16. `step` does it where it was not called.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// The same for gradients that their step divides itself: notes `found_inf`, which is not 0 when one of them is not finite, and
  /// returns the factor.
  at::Tensor unscale_in_step(torch::optim::Optimizer& optimizer, const at::Tensor& found_inf);
  /// Whether unscale_ was called for this optimizer, and neither a step nor another loss followed.
  bool is_unscaled(const torch::optim::Optimizer& optimizer) const;

  /// Gradients of this optimizer are sharded: `reduce` is given whether those of this process are finite (0), and makes it what
  /// all processes found.
  void reduce_found_inf(const torch::optim::Optimizer& optimizer, std::function<void(at::Tensor&)> reduce);

  /// The gradients of this optimizer are gone, and what unscale_ found with them: later ones must be unscaled again.
  void forget(const torch::optim::Optimizer& optimizer);

  /// Steps the optimizer unless a gradient is inf or NaN; returns whether it did. UsageError for a second step
  /// before an update.
  bool step(torch::optim::Optimizer& optimizer);
  /// Likewise, with `take_step` instead of the optimizer's own step.
  bool step(torch::optim::Optimizer& optimizer, const std::function<void()>& take_step);

  /// The first half of a step, for callers that leave the decision to the device: gradients are unscaled where they are not yet.
  /// For each device that has some a tensor that is 1 when one of them is not finite, else 0.
  /// `are_unchanged`: they are those that unscale_in_step was told of, whatever losses were scaled since.
  std::vector<at::Tensor> begin_step(torch::optim::Optimizer& optimizer, bool are_unchanged = false);
  /// The second half: the step was taken, or not.
  void end_step(torch::optim::Optimizer& optimizer);

  /// Moves the factor by what the steps since the last update found, or sets it. Resets all optimizers.
  void update(std::optional<double> new_scale = {});
  /// Moves the factor by what the step of this optimizer found. Others keep what is known of their gradients.
  void update_after(const torch::optim::Optimizer& optimizer);

  /// The factor; 1 when not enabled. Waits for the device.
  double get_scale() const;
  bool is_enabled() const { return options_.enabled; }
  const GradScalerOptions& options() const { return options_; }
  /// Whether gradients were unscaled that no step has followed yet.
  bool awaits_step() const;
  /// Whether gradients of any optimizer were ever unscaled.
  bool has_unscaled() const { return has_unscaled_; }
  /// Steps that were taken in a row since the factor moved. Waits for the device.
  int64_t growth_tracker() const;

  /// As Python's: scale, growth_factor, backoff_factor, growth_interval and _growth_tracker; empty when not enabled.
  StateDict state_dict() const;
  /// UsageError when an entry is missing; nothing happens when not enabled.
  void load_state_dict(const StateDict& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct Progress {
    Stage stage = Stage::ready;
    /// One for each device that has gradients: not 0 when one of them is not finite.
    std::vector<at::Tensor> found_inf;
    /// Another loss was scaled after unscale_: there may be gradients that are not unscaled.
    bool outdated = false;
    /// The recording of a step in which that was, if any.
    const void* recording = nullptr;
  };

  void note_scaled(const at::Tensor& scale, const void* recording);
  void check_scaled(const char* call) const;
  Progress& begin_unscaling(torch::optim::Optimizer& optimizer);
  void move_scale(const std::vector<at::Tensor>& found_inf);

  GradScalerOptions options_;
  int64_t init_growth_tracker_ = 0;
  bool has_unscaled_ = false;
  // Made on the device of the first loss.
  at::Tensor scale_, growth_tracker_;
  // The factor of the last loss: with several optimizers one may step, and move the factor, before another has unscaled.
  at::Tensor applied_scale_;
  // The recording of a step in which that was, if any.
  const void* applied_in_ = nullptr;
  std::map<const torch::optim::Optimizer*, Progress> progress_;
  std::map<const torch::optim::Optimizer*, std::function<void(at::Tensor&)>> reductions_;
};

}  // namespace accelerate
