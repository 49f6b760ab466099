#pragma once

#include <accelerate/training/precision.h>

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <tuple>

namespace accelerate {

/// How `notebook_launcher` starts its processes.
struct NotebookLauncherOptions {
  /// On this host. Default: what `accelerate config` stored, else one for each GPU.
  std::optional<int> num_processes = {};
  /// ACCELERATE_MIXED_PRECISION of the processes: the default of an Accelerator in them. Default: as it is here.
  std::optional<Precision> mixed_precision = {};
  /// Port of the rendezvous store; 0: any free port. Default: 29500, or a free one when that is in use.
  std::optional<int> use_port = {};
  /// Address of node 0, as the others reach it.
  std::string master_addr = "127.0.0.1";
  /// Rank of this node, and how many there are. Each runs the launcher.
  int node_rank = 0;
  int num_nodes = 1;
  /// How often all processes are restarted after one has failed.
  int max_restarts = 0;
  /// Seconds that the others may take to end after one has failed, before they are killed.
  double grace_period = 30;
};

namespace detail {
void launch_functions(const std::function<void()>& function, const NotebookLauncherOptions& options, const char* launcher,
                      bool cpu);
}  // namespace detail

/// Runs `function(arguments...)` on several processes and waits for them. The processes are forks of this one: they share
/// its memory, copy-on-write. A single process is this one itself.
/// WorkerError, with rank and message, when `function` throws on one of them or a signal ends it; the others are ended then.
/// UsageError when this process cannot be forked: it has initialized CUDA, or has an accelerator.
template <class Function, class... Arguments>
requires std::invocable<Function&, Arguments&...>
void notebook_launcher(Function&& function, std::tuple<Arguments...> arguments = {},
                       const NotebookLauncherOptions& options = {}) {
  detail::launch_functions([&] { std::apply(function, arguments); }, options, "notebook_launcher", false);
}

/// The same on the CPU, for tests and debugging on any host.
template <class Function, class... Arguments>
requires std::invocable<Function&, Arguments&...>
void debug_launcher(Function&& function, std::tuple<Arguments...> arguments = {}, int num_processes = 2) {
  detail::launch_functions([&] { std::apply(function, arguments); }, {.num_processes = num_processes, .use_port = 0},
                           "debug_launcher", true);
}

}  // namespace accelerate
