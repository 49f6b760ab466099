#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <accelerate/accelerator/notebook_launcher.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/process_state.h>
#include <accelerate/launch/launch_plan.h>
#include <accelerate/launch/port_reservation.h>
#include <dirent.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <string_view>
#include <thread>

#include "config/default_config.h"
#include "launch/function_launch.h"
#include "launch/signal_scope.h"

namespace accelerate::detail {
namespace {

constexpr const char* kPrecisionVariable = "ACCELERATE_MIXED_PRECISION";

/// Sets a variable of this process for a while.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name), before_(process_environment(name)) {
    ::setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// Whether the CUDA driver runs in this process. Asking CUDA itself would start it, and after that no copy could use it.
bool uses_cuda() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return false;
  bool found = false;
  while (const dirent* entry = ::readdir(folder)) {
    char target[64] = {};
    const ssize_t length = ::readlinkat(::dirfd(folder), entry->d_name, target, sizeof(target) - 1);
    found = found || (length > 0 && std::string_view(target).starts_with("/dev/nvidia"));
  }
  ::closedir(folder);
  return found;
}

void check_can_fork(const char* launcher) {
  if (living_process_states() > 0) {
    throw UsageError(
        fmt::format("{}: this process already has an Accelerator or ProcessState, whose threads and connections forked workers "
                    "do not inherit. Construct it inside the function.",
                    launcher));
  }
  if (uses_cuda()) {
    throw UsageError(
        fmt::format("{}: this process has initialized CUDA, which forked workers cannot use then. Use CUDA inside the function "
                    "only; a backward pass on the CPU counts too, since it starts a thread for every GPU.",
                    launcher));
  }
}

int count_processes(const NotebookLauncherOptions& options, const MachineFacts& machine, const char* launcher) {
  if (options.num_processes) return *options.num_processes;
  // The stored number is for all nodes together.
  if (const auto configured = configured_num_processes(process_environment))
    return std::max(1, *configured / std::max(1, options.num_nodes));
  if (machine.gpus > 0) return machine.gpus;
  throw UsageError(fmt::format(
      "{} does not know how many processes to start: give num_processes, or store it with `accelerate config`.", launcher));
}

void check(const NotebookLauncherOptions& options, int processes, const char* launcher) {
  if (processes < 1) throw UsageError(fmt::format("{}: num_processes is {}; at least 1 is needed.", launcher, processes));
  if (options.num_nodes < 1)
    throw UsageError(fmt::format("{}: num_nodes is {}; at least 1 is needed.", launcher, options.num_nodes));
  if (options.node_rank < 0 || options.node_rank >= options.num_nodes) {
    throw UsageError(fmt::format("{}: node_rank is {}, but there are {} nodes, numbered from 0.", launcher, options.node_rank,
                                 options.num_nodes));
  }
}

std::string precision_of(const NotebookLauncherOptions& options) {
  if (options.mixed_precision) return to_string(*options.mixed_precision);
  return process_environment(kPrecisionVariable).value_or("no");
}

/// The launcher's share of the cores.
int process_threads() { return std::max(1, integer_from(process_environment, {"OMP_NUM_THREADS"}).value_or(1)); }

/// A parallel operator of this program has left a pool of threads behind that a copy of it does not have, and the copy would wait
/// for them for ever. The pool belongs to the thread that used it, so the copy does its work in a new one.
void run_as_worker(const std::function<void()>& function) {
  std::exception_ptr thrown;
  const at::ThreadLocalState settings;  // no_grad, autocast ... of who launches
  std::thread([&] {
    try {
      const at::ThreadLocalStateGuard as_there(settings);
      // The count that this program was given would be used by each copy.
      at::set_num_threads(process_threads());
      function();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
}

[[noreturn]] void throw_as_error(const LaunchFailure& failure) {
  const std::string who = failure.rank < 0 ? "The launch" : fmt::format("Rank {}", failure.rank);
  const std::string after = failure.rank < 0 ? "" : fmt::format(" after {:.1f} s", failure.seconds);
  if (failure.signal != 0)
    throw WorkerError(fmt::format("{} was killed by {}{}.", who, signal_name(failure.signal), after), failure.rank,
                      failure.signal);
  if (failure.message.empty())
    throw WorkerError(fmt::format("{} ended with exit code {}{}.", who, failure.exit_code, after), failure.rank);
  throw WorkerError(fmt::format("{} failed{}: {}", who, after, failure.message), failure.rank);
}

void run_here(const std::function<void()>& function, const NotebookLauncherOptions& options) {
  const ScopedVariable precision(kPrecisionVariable, precision_of(options));
  try {
    function();
  } catch (const std::exception& error) {
    std::throw_with_nested(WorkerError(std::string("Rank 0 failed: ") + error.what(), 0));
  } catch (...) {
    std::throw_with_nested(WorkerError("Rank 0 failed: unknown exception", 0));
  }
}

}  // namespace

void launch_functions(const std::function<void()>& function, const NotebookLauncherOptions& options, const char* launcher,
                      bool cpu) {
  PortReservation port;  // until all have ended
  const MachineFacts machine = read_machine_facts(port);
  const int processes = count_processes(options, machine, launcher);
  check(options, processes, launcher);
  if (processes * options.num_nodes == 1) return run_here(function, options);
  check_can_fork(launcher);
  LaunchOptions launch = {.cpu = cpu || machine.gpus == 0,
                          .num_processes = processes * options.num_nodes,
                          .num_machines = options.num_nodes,
                          .machine_rank = options.node_rank,
                          .main_process_ip = options.master_addr,
                          .main_process_port = options.use_port,
                          .mixed_precision = precision_of(options),
                          .max_restarts = options.max_restarts,
                          .grace_period = options.grace_period,
                          .command = {launcher}};
  LaunchPlan plan = plan_launch(launch, process_environment, machine);
  plan.notes.clear();  // they speak of flags
  const auto failure = run_functions(plan, [&](int) {
    port.release();  // this process's copy: one that a worker leaves behind must not keep the port
    run_as_worker(function);
  });
  if (failure) throw_as_error(*failure);
}

}  // namespace accelerate::detail
