#pragma once

#include <accelerate/console/logging.h>
#include <accelerate/console/progress.h>
#include <accelerate/core/format.h>
#include <accelerate/distributed/collectives.h>
#include <accelerate/distributed/format_tensor.h>
#include <accelerate/distributed/point_to_point.h>
#include <accelerate/distributed/random.h>

#include <functional>
#include <optional>
#include <type_traits>

namespace accelerate {

/// Collectives and process control, independent of training. Base of Accelerator.
class ProcessControl {
 public:
  explicit ProcessControl(ProcessState state) : state_(std::move(state)) {}
  ProcessControl(const ProcessControl&) = delete;
  ProcessControl& operator=(const ProcessControl&) = delete;

  // --- Who am I --------------------------------------------------------------------------------------------------------
  const ProcessState& state() const { return state_; }
  int num_processes() const { return state_.num_processes(); }
  int process_index() const { return state_.process_index(); }
  int local_process_index() const { return state_.local_process_index(); }
  c10::Device device() const { return state_.device(); }
  DistributedType distributed_type() const { return state_.distributed_type(); }
  bool is_main_process() const { return state_.is_main_process(); }
  bool is_local_main_process() const { return state_.is_local_main_process(); }
  bool is_last_process() const { return state_.is_last_process(); }
  bool use_distributed() const { return state_.use_distributed(); }

  // --- Collectives: see collectives.h -------------------------------------------------------------------------------------
  template <class T>
  T gather(T data, std::source_location where = std::source_location::current()) const {
    return accelerate::gather(state_, std::move(data), where);
  }
  template <class T>
  T reduce(T data, Reduction reduction = Reduction::sum, std::source_location where = std::source_location::current()) const {
    return accelerate::reduce(state_, std::move(data), reduction, where);
  }
  template <class T>
  T reduce_scatter(T data, Reduction reduction = Reduction::sum,
                   std::source_location where = std::source_location::current()) const {
    return accelerate::reduce_scatter(state_, std::move(data), reduction, where);
  }
  template <class T>
  T all_to_all(T data, std::source_location where = std::source_location::current()) const {
    return accelerate::all_to_all(state_, std::move(data), where);
  }
  template <class T>
  T broadcast(T data, int from_process = 0, std::source_location where = std::source_location::current()) const {
    return accelerate::broadcast(state_, std::move(data), from_process, where);
  }
  template <class T>
  T pad_across_processes(T data, const PadOptions& options = {},
                         std::source_location where = std::source_location::current()) const {
    return accelerate::pad_across_processes(state_, std::move(data), options, where);
  }
  template <class T>
  auto gather_object(const T& objects, std::source_location where = std::source_location::current()) const {
    return accelerate::gather_object(state_, objects, where);
  }
  template <class T>
  void broadcast_object_list(T& objects, int from_process = 0,
                             std::source_location where = std::source_location::current()) const {
    accelerate::broadcast_object_list(state_, objects, from_process, where);
  }
  template <class T>
  T split_between_processes(const T& inputs, const SplitOptions& options = {}) const {
    return accelerate::split_between_processes(state_, inputs, options);
  }

  // --- Between two processes: see point_to_point.h ------------------------------------------------------------------------
  void send(const at::Tensor& tensor, int to_process, std::source_location where = std::source_location::current()) const {
    accelerate::send(state_, tensor, to_process, where);
  }
  at::Tensor recv(int from_process, std::source_location where = std::source_location::current()) const {
    return accelerate::recv(state_, from_process, where);
  }

  // --- Running code on one process -------------------------------------------------------------------------------------
  /// A function that runs on the main process only. Where `function` returns a value the wrapper returns an optional,
  /// empty on the other processes. A single process runs them all, as in Python.
  template <class F>
  auto on_main_process(F function) const {
    return on(is_main_process(), std::move(function));
  }
  template <class F>
  auto on_local_main_process(F function) const {
    return on(is_local_main_process(), std::move(function));
  }
  template <class F>
  auto on_last_process(F function) const {
    return on(is_last_process(), std::move(function));
  }
  template <class F>
  auto on_process(int process_index, F function) const {
    check_index(process_index, "on_process");
    return on(process_index == state_.process_index() || !use_distributed(), std::move(function));
  }
  template <class F>
  auto on_local_process(int local_process_index, F function) const {
    check_index(local_process_index, "on_local_process");
    return on(local_process_index == state_.local_process_index() || !use_distributed(), std::move(function));
  }

  // --- Waiting -----------------------------------------------------------------------------------------------------------
  void wait_for_everyone(std::source_location where = std::source_location::current()) const { state_.wait_for_everyone(where); }
  FirstScope main_process_first(std::source_location where = std::source_location::current()) const {
    return state_.main_process_first(where);
  }
  FirstScope local_main_process_first(std::source_location where = std::source_location::current()) const {
    return state_.local_main_process_first(where);
  }
  /// Raises a flag that every process sees at its next check_trigger.
  void set_trigger() { triggered_ = true; }
  /// True when any process has raised the flag since the last time it was seen; lowers it everywhere. All processes call it.
  bool check_trigger(std::source_location where = std::source_location::current());

  // --- Telling -----------------------------------------------------------------------------------------------------------
  /// Prints a line on the first process of each host: `print("epoch {} loss {:.3f}", epoch, loss)`. Also tensors: one
  /// without dimensions as its number, others as std::cout shows them.
  template <class... Arguments>
  void print(FormatStringFor<Arguments...> pattern, const Arguments&... arguments) const {
    if (is_local_main_process()) print_line(format_arguments(pattern.text(), detail::format_pack(arguments...)));
  }
  /// A loop with a progress bar, shown on the first process of each host.
  [[nodiscard]] ProgressRange<CountRange> progress(int64_t count, ProgressOptions options = {}) const {
    return {CountRange{count}, shown(std::move(options))};
  }
  template <Iterable Range>
  [[nodiscard]] ProgressRange<Range> progress(Range&& range, ProgressOptions options = {}) const {
    return {std::forward<Range>(range), shown(std::move(options))};
  }
  /// A logger that knows this group, so that `in_order` works.
  Logger get_logger(std::string name, std::optional<LogLevel> level = {}) const;

  // --- Random numbers ------------------------------------------------------------------------------------------------------
  void synchronize_rng_states(const std::vector<RngType>& types, std::optional<at::Generator> generator = {},
                              std::source_location where = std::source_location::current()) const {
    accelerate::synchronize_rng_states(state_, types, std::move(generator), where);
  }

 private:
  /// Calls `function` when `here`, and says whether it did by an optional where there is a result.
  template <class F>
  static auto on(bool here, F function) {
    return [here, function = std::move(function)]<class... Arguments>(Arguments&&... arguments) mutable {
      using Result = std::invoke_result_t<F&, Arguments...>;
      if constexpr (std::is_void_v<Result>) {
        if (here) std::invoke(function, std::forward<Arguments>(arguments)...);
      } else {
        using Kept = std::remove_cvref_t<Result>;
        return here ? std::optional<Kept>(std::invoke(function, std::forward<Arguments>(arguments)...)) : std::optional<Kept>();
      }
    };
  }
  static void check_index(int index, const char* call);
  static void print_line(std::string text);
  ProgressOptions shown(ProgressOptions options) const;

  ProcessState state_;
  bool triggered_ = false;
};

}  // namespace accelerate
