#pragma once

#include <memory>
#include <optional>
#include <vector>

namespace accelerate {
namespace detail {
class ModelCore;

/// Restores at its end whether models all-reduced gradients at its beginning.
class SyncScope {
 public:
  SyncScope() = default;
  SyncScope(SyncScope&& other) noexcept = default;
  SyncScope& operator=(SyncScope&& other) = delete;
  ~SyncScope();

 protected:
  enum class Restores { gradients, gradients_and_buffers };
  SyncScope(const std::vector<std::shared_ptr<ModelCore>>& models, Restores restores);

 private:
  struct Before {
    std::shared_ptr<ModelCore> model;
    bool gradients;
    std::optional<bool> buffers;
  };
  std::vector<Before> before_;
};

}  // namespace detail

/// While it lives, forward passes of its models are not followed by an all-reduce of gradients: see Model::no_sync.
class [[nodiscard]] NoSyncScope : public detail::SyncScope {
 public:
  NoSyncScope() = default;
  explicit NoSyncScope(const std::vector<std::shared_ptr<detail::ModelCore>>& models);
};

/// While it lives, the next backward pass all-reduces gradients, although its forward pass was made under no_sync: for several
/// forward passes that are followed by several backward passes, of which the last one synchronises.
class [[nodiscard]] TriggerSyncScope : public detail::SyncScope {
 public:
  TriggerSyncScope() = default;
  /// UsageError when the model looks for unused parameters: it would have to know the outputs.
  explicit TriggerSyncScope(const std::shared_ptr<detail::ModelCore>& model);
};

}  // namespace accelerate
