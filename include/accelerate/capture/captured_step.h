#pragma once

#include <accelerate/distributed/nested.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace accelerate {

namespace detail {

class GraphDevice;
/// Makes the recorder of a device; null where there is none.
using GraphDeviceMaker = std::unique_ptr<GraphDevice> (*)(c10::Device);

}  // namespace detail

/// How a step is captured.
struct CaptureOptions {
  /// Calls of a kind that run eagerly before it is recorded: in them LibTorch and its libraries choose their kernels.
  int warmup_steps = 3;
  /// Kinds of calls that are recorded at most; those beyond run eagerly. Each keeps memory for what it computes.
  int max_graphs = 8;
  /// The recorder; null: the device's graphs of LibTorch. Tests have one for the CPU.
  detail::GraphDeviceMaker graph_device = nullptr;
};

/// How the calls of a captured step ran.
struct CaptureReport {
  int64_t eager = 0, recorded = 0, replayed = 0;
  /// Why calls run eagerly, other than to warm up; each reason once.
  std::vector<std::string> reasons;
};

namespace detail {

class StepCapture;

/// One call of a step. `body` leaves its result where the caller finds it.
struct StepCall {
  Leaves inputs;
  /// The type of a result in which tensors cannot be found, or null.
  const char* opaque_result = nullptr;
  std::function<void()> body;
};

/// Runs a call, or replays on the device what was recorded of one like it. Which recording it was, or nothing when the body
/// ran as it is; where the body has run and there is a recording, it has just been made.
std::optional<size_t> run_step(StepCapture& capture, const StepCall& call);
CaptureReport report_of(const StepCapture& capture);
void detach_results(const Leaves& results);

}  // namespace detail

/// A step that is launched as one graph: see Accelerator::capture. Copies are the same step.
template <class F>
class CapturedStep {
 public:
  CapturedStep(F step, std::shared_ptr<detail::StepCapture> capture)
      : step_(std::make_shared<F>(std::move(step))),
        capture_(std::move(capture)),
        results_(std::make_shared<std::vector<std::shared_ptr<void>>>()) {}

  /// Calls the step, or replays it. Tensors that it returns are detached, and hold until the next call.
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    using Result = std::invoke_result_t<F&, std::remove_cvref_t<Arguments>&...>;
    // What is const or passes away is copied: handles, not elements.
    std::tuple<std::conditional_t<is_lasting<Arguments>, std::remove_cvref_t<Arguments>&, std::remove_cvref_t<Arguments>>...>
    held(std::forward<Arguments>(arguments)...);
    detail::StepCall call;
    call.inputs.outline = typeid(std::tuple<std::remove_cvref_t<Arguments>...>).name();
    std::apply([&](auto&... each) { (collect_from(each, call.inputs), ...); }, held);
    if constexpr (std::is_void_v<Result>) {
      call.body = [&] { std::apply(*step_, held); };
      detail::run_step(*capture_, call);
    } else {
      std::shared_ptr<Result> result;
      if constexpr (!detail::Searchable<Result>) call.opaque_result = typeid(Result).name();
      call.body = [&] {
        result = std::make_shared<Result>(std::apply(*step_, held));
        if constexpr (detail::Searchable<Result>) detail::detach_results(detail::leaves_of(*result));
      };
      const auto recording = detail::run_step(*capture_, call);
      if (!recording) return Result(std::move(*result));
      if (result) {
        results_->resize(std::max(results_->size(), *recording + 1));
        (*results_)[*recording] = result;
      }
      return Result(*std::static_pointer_cast<Result>((*results_)[*recording]));
    }
  }

  /// How often it ran eagerly and was replayed so far, and why not more often.
  CaptureReport report() const { return detail::report_of(*capture_); }

 private:
  template <class T>
  static constexpr bool is_lasting = std::is_lvalue_reference_v<T> && !std::is_const_v<std::remove_reference_t<T>>;

  template <class T>
  static void collect_from(T& argument, detail::Leaves& leaves) {
    if constexpr (detail::Searchable<T>) {
      detail::collect(argument, leaves);
    } else {
      detail::collect_other(leaves, typeid(T).name());
    }
  }

  std::shared_ptr<F> step_;
  std::shared_ptr<detail::StepCapture> capture_;
  // Of each recording what its call returned: a replay computes it again, in the same memory.
  std::shared_ptr<std::vector<std::shared_ptr<void>>> results_;
};

}  // namespace accelerate
