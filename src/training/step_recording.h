#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <stdexcept>
#include <unordered_set>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Why a step cannot be recorded. It never reaches users: the step runs eagerly, and the reason is logged.
class NotRecordable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What a step does on the host while its work for the device is recorded: to be done again at every replay. Optimizers and
/// schedulers that find themselves in a recording do what is for the device, and leave what is for the host to their actions.
class StepRecording {
 public:
  struct Action {
    /// Whether what the device has recorded is still true of the host; nothing: always.
    std::function<bool()> fits = {};
    std::function<void()> run = {};
    /// It needs to know how the step ends.
    bool asks_for_result = false;
  };

  /// A step is recorded by this thread while it lives.
  class Scope {
   public:
    explicit Scope(StepRecording& recording);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };
  /// The one that this thread is in, or null.
  static StepRecording* current();

  void add(Action action);
  /// From now on how the step ends is decided on the device.
  void decided_on_device() { decided_on_device_ = true; }

  /// Notes whose weights are stepped, for the detection of other changes.
  void note_step(const torch::optim::Optimizer& optimizer);
  bool has_stepped(const torch::optim::Optimizer& optimizer) const { return stepped_.contains(&optimizer); }
  /// The gradients from before the step, and whether an operator has run in it: one that is dropped before any has, and could
  /// have looked at it, does not matter.
  void begin_with(const std::vector<at::Tensor>& gradients, std::function<bool()> has_run);
  void note_drop(const at::Tensor& gradient);
  bool mattered(const at::Tensor& gradient) const { return !unseen_.contains(gradient.unsafeGetTensorImpl()); }

  bool fits() const;
  /// What can be done before the replay, and what has to wait for it to be under way.
  void run_before() const;
  void run_after() const;

 private:
  std::vector<Action> before_, after_;
  bool decided_on_device_ = false;
  std::unordered_set<const torch::optim::Optimizer*> stepped_;
  std::unordered_set<const c10::TensorImpl*> before_step_, unseen_;
  std::function<bool()> has_run_;
};

}  // namespace accelerate::detail
