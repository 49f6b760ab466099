#pragma once

#include <accelerate/accelerator/options.h>
#include <accelerate/core/format.h>
#include <accelerate/core/logging.h>
#include <accelerate/core/progress.h>
#include <accelerate/distributed/collectives.h>
#include <accelerate/distributed/random.h>
#include <accelerate/parallel/model.h>

#include <functional>
#include <optional>
#include <type_traits>

namespace accelerate {
namespace detail {

/// What TORCH_MODULE makes: a holder that gives its module away as a shared pointer.
template <class H>
concept ModuleHolder = requires(const H& holder) {
  { *holder.ptr() } -> std::convertible_to<const torch::nn::Module&>;
};

}  // namespace detail

/// The class users meet first. It joins the others and decides nothing itself.
///
///   accelerate::Accelerator accelerator;
///   auto model = accelerator.prepare(net);
///   accelerator.print("{} processes", accelerator.num_processes());
class Accelerator {
 public:
  /// Reads the environment and joins the processes that were launched with this one. See ProcessState for the errors.
  explicit Accelerator(AcceleratorOptions options = {});
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

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
  Precision mixed_precision() const { return mixed_precision_; }
  int gradient_accumulation_steps() const { return gradient_accumulation_steps_; }
  /// As Python prints its state.
  friend std::string to_string(const Accelerator& accelerator);

  // --- Exchanging: see collectives.h -------------------------------------------------------------------------------------
  template <Nested T>
  T gather(T data, std::source_location where = std::source_location::current()) const {
    return accelerate::gather(state_, std::move(data), where);
  }
  template <Nested T>
  T reduce(T data, Reduction reduction = Reduction::sum, std::source_location where = std::source_location::current()) const {
    return accelerate::reduce(state_, std::move(data), reduction, where);
  }
  template <Nested T>
  T broadcast(T data, int from_process = 0, std::source_location where = std::source_location::current()) const {
    return accelerate::broadcast(state_, std::move(data), from_process, where);
  }
  template <Nested T>
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
  /// Prints a line on the first process of each machine: `print("epoch {} loss {:.3f}", epoch, loss)`.
  template <Formattable... Arguments>
  void print(std::string_view pattern, const Arguments&... arguments) const {
    if (is_local_main_process())
      print_line(format_arguments(pattern, std::array<FormatArgument, sizeof...(Arguments)>{FormatArgument(arguments)...}));
  }
  /// A loop with a progress bar, shown on the first process of each machine.
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

  // --- Models ------------------------------------------------------------------------------------------------------------
  /// A module on its device, with the main process's weights on every process. The module must outlive what is returned.
  template <detail::ModuleHolder Holder>
  auto prepare(const Holder& holder, std::source_location where = std::source_location::current()) const {
    return prepare(holder.ptr(), where);
  }
  template <ModuleType M>
  Model<M> prepare(std::shared_ptr<M> module, std::source_location where = std::source_location::current()) const {
    check_can_prepare_model();
    return Model<M>(std::move(module), state_, {.place = device_placement_}, where);
  }
  /// The module that was prepared.
  template <ModuleType M>
  std::shared_ptr<M> unwrap_model(const Model<M>& model) const {
    return model.module();
  }
  template <detail::ModuleHolder Holder>
  auto unwrap_model(const Holder& holder) const {
    return holder.ptr();
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
  void check_can_prepare_model() const;
  static void print_line(std::string text);
  ProgressOptions shown(ProgressOptions options) const;

  // What can be wrong here is found out before the others are joined.
  Precision mixed_precision_;
  int gradient_accumulation_steps_;
  bool device_placement_;
  ProcessState state_;
  bool triggered_ = false;
};

}  // namespace accelerate
