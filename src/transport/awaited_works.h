#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>

namespace c10d {
class Work;
}

namespace accelerate::detail {

/// Waits for works of gloo's send and receive. A wait with a limit on one of them closes every connection of the group when
/// the limit passes, so threads of its own wait without, and whoever must look around meanwhile waits for what this returns.
class AwaitedWorks {
 public:
  AwaitedWorks();
  /// Waits for what was given to it.
  ~AwaitedWorks();
  AwaitedWorks(const AwaitedWorks&) = delete;
  AwaitedWorks& operator=(const AwaitedWorks&) = delete;

  /// A work that ends as `work` does, and may be waited for with a limit.
  c10::intrusive_ptr<c10d::Work> await(c10::intrusive_ptr<c10d::Work> work);

 private:
  class Threads;
  std::unique_ptr<Threads> threads_;
};

}  // namespace accelerate::detail
