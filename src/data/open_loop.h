#pragma once

#include <memory>
#include <optional>
#include <source_location>
#include <vector>

namespace accelerate::detail {

/// A loop over a data loader, known to its thread while it lives: what a training step may ask is whether the batch in hand came
/// from a prepared loader.
class OpenLoop {
 public:
  OpenLoop(bool prepared, std::source_location where);

  /// Where the innermost loop of this thread began, if its loader was not prepared.
  static std::optional<std::source_location> innermost_unprepared();

 private:
  struct Entry {
    bool prepared;
    std::source_location where;
  };
  static std::vector<std::weak_ptr<const Entry>>& of_this_thread();

  // The thread only refers to it: a loop may end in another one.
  std::shared_ptr<const Entry> entry_;
};

}  // namespace accelerate::detail
