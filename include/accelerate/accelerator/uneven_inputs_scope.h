#pragma once

#include <accelerate/data/active_loaders.h>
#include <accelerate/data/any_data_loader.h>
#include <accelerate/parallel/join_scope.h>

#include <memory>
#include <optional>
#include <source_location>
#include <vector>

namespace accelerate {

struct JoinUnevenInputsOptions {
  /// What prepared map-style loaders do with their last batches within the scope. Not given: as they were prepared.
  std::optional<bool> even_batches = {};
  /// Where errors say that the scope began.
  std::source_location where = std::source_location::current();
};

/// What `join_uneven_inputs` returns. While it lives, a process whose data have ended takes part in the collectives of the others
/// until theirs have too. It does so at the end of the loop over a prepared loader; after any other loop call `finish`.
class [[nodiscard]] UnevenInputsScope {
 public:
  /// UsageError when `active` has such a scope already: name all models in one.
  UnevenInputsScope(JoinScope join, std::shared_ptr<ActiveLoaders> active, const std::vector<detail::AnyDataLoader>& loaders,
                    std::optional<bool> even_batches);
  UnevenInputsScope(UnevenInputsScope&&) noexcept = default;
  UnevenInputsScope& operator=(UnevenInputsScope&&) = delete;
  ~UnevenInputsScope();

  /// This process has no more batches. Returns when no process has any.
  void finish() { join_->finish(); }

 private:
  std::unique_ptr<JoinScope> join_;  // where it is must not change: the end of data calls it
  std::shared_ptr<ActiveLoaders> active_;
  std::vector<std::pair<detail::AnyDataLoader, bool>> even_before_;
};

}  // namespace accelerate
