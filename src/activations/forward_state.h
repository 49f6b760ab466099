#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <optional>
#include <vector>

namespace accelerate::detail {

/// What decides the results of operators besides their arguments: random numbers, autocast, the dispatcher's keys of the thread,
/// and the current device.
class ForwardState {
 public:
  /// That of this thread, now. Without random numbers when they need not be the same.
  explicit ForwardState(bool with_generators);
  /// Forgets generators that have drawn nothing since. They are the whole process's: who need not set one back leaves it alone.
  void drop_unused_generators();

 private:
  friend class ForwardStateScope;
  struct Generator {
    at::Generator generator;
    at::Tensor numbers;
  };
  struct Autocast {
    static Autocast current();
    void apply() const;
    std::array<c10::ScalarType, 9> dtypes;
    bool is_cached;
  };

  std::vector<Generator> generators_;
  Autocast autocast_;
  c10::impl::LocalDispatchKeySet keys_;  // has whether autocast is enabled, for each type of device
  std::optional<c10::Device> device_;
};

/// While it lives, this thread computes as the one did whose state it is given, and records a graph. Its end restores what was
/// before, and drops autocast's casts: they belong to the graph that was made meanwhile.
class ForwardStateScope {
 public:
  explicit ForwardStateScope(const ForwardState& state);
  ~ForwardStateScope();
  ForwardStateScope(const ForwardStateScope&) = delete;
  ForwardStateScope& operator=(const ForwardStateScope&) = delete;

 private:
  std::vector<ForwardState::Generator> generators_before_;
  ForwardState::Autocast autocast_before_;
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::OptionalDeviceGuard device_;
  c10::AutoGradMode recording_{true};
};

}  // namespace accelerate::detail
