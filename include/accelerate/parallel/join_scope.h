#pragma once

#include <memory>
#include <source_location>
#include <vector>

namespace accelerate {
namespace detail {
class Join;
class ModelCore;
}  // namespace detail

/// While it lives, processes may have different numbers of batches for its models: one that has no more takes part in the
/// collectives of the others, with gradients of zero, until none has any. Gradients are divided by the number of all processes,
/// as always. Only collectives of its models are joined: make no others in the loop.
class [[nodiscard]] JoinScope {
 public:
  /// No effect.
  JoinScope();
  /// All processes make it, with the same models in the same order, and none has a round open. `where` names its collectives.
  explicit JoinScope(const std::vector<std::shared_ptr<detail::ModelCore>>& models,
                     std::source_location where = std::source_location::current());
  JoinScope(JoinScope&& other) noexcept;
  JoinScope& operator=(JoinScope&& other) = delete;
  /// Does not wait: left before `finish`, as by an exception, the others get an error that this process has failed.
  ~JoinScope();

  /// This process has no more batches. Returns when no process has any; then all have the weights of the last one to end, and a
  /// new round may begin.
  void finish();

 private:
  std::unique_ptr<detail::Join> join_;
};

}  // namespace accelerate
