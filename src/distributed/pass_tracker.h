#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>

namespace c10d {
class Work;
}

namespace accelerate::detail {

class CollectiveWatch;
class FailurePolicy;

/// Passes over a model, in which collectives run in the background: it numbers and announces them as one call each, and knows
/// from when on this rank only waits.
class PassTracker {
 public:
  explicit PassTracker(FailurePolicy& failures);
  ~PassTracker();
  PassTracker(const PassTracker&) = delete;
  PassTracker& operator=(const PassTracker&) = delete;

  /// Runs `action`, in which collectives run in the background: a pass over a model. When one of them fails, that is reported as
  /// `call` at `where`; what else `action` throws comes out as it is. Written down from when the rank has nothing to do but to
  /// wait.
  void during(const char* call, std::source_location where, const std::function<void()>& action);
  /// Before a collective in the background: writes down, for the first of a pass, which call this rank is in, and raises when
  /// another rank makes another call.
  void announce_pass();
  /// From now on this rank only waits, until the end of what `during` runs.
  void begin_waiting();
  /// The same as soon as the backward pass that runs in this thread has calculated everything. One that `during` does not run is
  /// reported as `backward`, without a source line. `how` must agree between ranks.
  void expect_waiting(const char* how = "");

  /// Waits for a collective of the pass.
  void wait_for_work(c10d::Work& work);
  /// A future that ends as that of a collective of the pass does, or fails when the group is lost.
  c10::intrusive_ptr<c10::ivalue::Future> watched(const c10::intrusive_ptr<c10::ivalue::Future>& future);

 private:
  /// What `during` runs now, or a backward pass that it does not run.
  struct Pass {
    const char* call = "backward";
    std::source_location where = {};
    const char* how = "";
    int64_t number = 0;
    bool waiting = false;
    bool expected = false;
    /// Nobody ends it but the pass itself.
    bool unguided = false;
  };

  void end_pass();
  /// A collective in the background has failed.
  [[noreturn]] void fail_pass(const std::string& reason);
  CollectiveWatch& collective_watch();

  FailurePolicy& failures_;
  std::mutex mutex_;
  std::optional<Pass> pass_;
  std::unique_ptr<CollectiveWatch> collective_watch_;
};

}  // namespace accelerate::detail
