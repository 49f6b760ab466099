#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <vector>

#include "core/slurm_step.h"

namespace accelerate {

using namespace detail;
namespace {

/// The variables by which a launcher gives ranks and sizes.
struct LauncherVariables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr std::array<LauncherVariables, 4> kLaunchers = {{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
}};

/// The values from one launcher. Those that it does not set are empty.
struct Layout {
  std::string launcher, rank_name, size_name;
  std::optional<int> rank, size, local_rank, local_size;
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// Like Python's int(): surrounding whitespace and a sign are accepted, "" and "1.5" are not.
std::optional<long long> parse_integer(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  long long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

[[noreturn]] void missing(const std::string& absent, const std::string& present, const Layout& layout) {
  throw ConfigError(present + " is set but " + absent + " is not: " + layout.launcher +
                    " sets both. Start the program with `accelerate launch`, torchrun, "
                    "mpirun or srun, set " +
                    absent + " as well, or unset " + present + " to run a single process.");
}

Layout slurm_layout(const Environment& environment) {
  const auto step = read_slurm_step(environment);
  if (!step) return {};
  return {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", step->task, step->tasks, step->local_task, step->local_tasks};
}

Layout layout_of(const LauncherVariables& names, const Environment& environment) {
  return {names.launcher,
          names.rank,
          names.size,
          integer_from(environment, {names.rank}),
          integer_from(environment, {names.size}),
          integer_from(environment, {names.local_rank}),
          integer_from(environment, {names.local_size})};
}

/// The launchers that set variables for this process, in the order of kLaunchers, Slurm last.
std::vector<Layout> known_layouts(const Environment& environment) {
  std::vector<Layout> layouts;
  for (const auto& names : kLaunchers) {
    auto layout = layout_of(names, environment);
    // A size of 1 alone is ignored: many shells set it. torchrun never sets a local rank alone, so the rest is missing.
    const bool local_alone = layout.local_rank && std::string_view(names.launcher) == "torchrun";
    if (layout.rank || layout.size.value_or(1) > 1 || local_alone) layouts.push_back(std::move(layout));
  }
  if (auto slurm = slurm_layout(environment); slurm.size) layouts.push_back(std::move(slurm));
  return layouts;
}

void check_layout(const Layout& layout) {
  if (!layout.rank) missing(layout.rank_name, layout.size ? layout.size_name : "LOCAL_RANK", layout);
  if (!layout.size) missing(layout.size_name, layout.rank_name, layout);
  if (*layout.rank < *layout.size) return;
  throw ConfigError(layout.rank_name + "=" + std::to_string(*layout.rank) + " is not below " + layout.size_name + "=" +
                    std::to_string(*layout.size) +
                    ": ranks count from 0. Give every process a unique rank below the number of processes.");
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

int master_port(const Environment& environment, const std::optional<SlurmStep>& step) {
  if (const auto text = environment("MASTER_PORT")) {
    const auto port = parse_integer(*text);
    if (!port || *port < 1 || *port > 65535) throw ConfigError("MASTER_PORT=" + *text + ": expected a port from 1 to 65535.");
    return static_cast<int>(*port);
  }
  // Several jobs and steps may share a node: each gets its own port, the same on all ranks.
  return step ? step->port : 29500;
}

/// The Slurm step that has started this rank. srun with a PMI plug-in gives the variables of MPICH too.
std::optional<SlurmStep> step_of(const LaunchEnvironment& me, const Environment& environment) {
  if (me.launcher == "Slurm") return read_slurm_step(environment);
  auto step = me.launcher == "MPICH" ? read_slurm_step(environment) : std::nullopt;
  return step && step->task == me.process_index && step->tasks == me.num_processes ? step : std::nullopt;
}

void fill_master(LaunchEnvironment& me, const Environment& environment, const std::optional<SlurmStep>& step) {
  me.master_port = master_port(environment, step);
  if (const auto address = environment("MASTER_ADDR"); address && !address->empty()) {
    me.master_address = *address;
  } else if (step && !step->first_host.empty()) {
    me.master_address = step->first_host;
  } else if (me.num_processes != me.local_num_processes) {
    throw ConfigError("MASTER_ADDR is not set, but only " + std::to_string(me.local_num_processes) + " of the " +
                      std::to_string(me.num_processes) +
                      " processes run on this host. Set MASTER_ADDR to the address of the host that runs rank 0" +
                      (me.launcher == "Open MPI" ? ", and have it exported: mpirun -x MASTER_ADDR." : "."));
  }
}

/// Only what is the same on all ranks of a job by construction.
std::string run_id_of(const Environment& environment, const std::optional<SlurmStep>& step) {
  if (const auto id = environment("ACCELERATE_RUN_ID"); id && !id->empty()) return *id;
  if (const auto id = environment("TORCHELASTIC_RUN_ID"); id && !id->empty() && *id != "none") return *id;
  return step ? step->name : "";
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

bool parse_flag(const std::string& text, const std::string& what) {
  static constexpr std::array kTrue = {"y", "yes", "t", "true", "on", "1"};
  static constexpr std::array kFalse = {"n", "no", "f", "false", "off", "0"};
  const auto is_text = [value = lower(text)](const char* candidate) { return value == candidate; };
  if (std::any_of(kTrue.begin(), kTrue.end(), is_text)) return true;
  if (std::any_of(kFalse.begin(), kFalse.end(), is_text)) return false;
  throw ConfigError(what + "=" + text + ": expected one of y yes t true on 1, or n no f false off 0.");
}

bool flag_from(const Environment& environment, const std::string& name, bool fallback) {
  const auto text = environment(name);
  return text ? parse_flag(*text, name) : fallback;
}

std::optional<int> integer_from(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto text = environment(name);
    if (!text) continue;
    const auto value = parse_integer(*text);
    if (!value) throw ConfigError(std::string(name) + "=" + *text + ": expected an integer.");
    if (*value > 0x7fffffff) throw ConfigError(std::string(name) + "=" + *text + ": too large.");
    if (*value >= 0) return static_cast<int>(*value);
  }
  return std::nullopt;
}

LaunchEnvironment read_launch_environment(const Environment& environment) {
  LaunchEnvironment me;
  const auto layouts = known_layouts(environment);
  if (!layouts.empty()) {
    const Layout& first = layouts.front();
    check_layout(first);
    me.launched = true;
    me.launcher = first.launcher;
    me.process_index = *first.rank;
    me.num_processes = *first.size;
    // srun with a PMI plug-in gives rank and size twice but the local rank only once: take it from whichever launcher agrees
    // on the rest.
    for (const auto& layout : layouts) {
      if (layout.rank != first.rank || layout.size != first.size || !(layout.local_rank || layout.local_size)) continue;
      me.local_process_index = layout.local_rank.value_or(0);
      me.local_num_processes = layout.local_size.value_or(1);
      if (layout.local_size && me.local_process_index >= me.local_num_processes) {
        throw ConfigError(layout.launcher + " gives this process the local rank " + std::to_string(me.local_process_index) +
                          " of " + std::to_string(me.local_num_processes) +
                          " on this host: local ranks count from 0. Check LOCAL_RANK and LOCAL_WORLD_SIZE.");
      }
      break;
    }
  }
  const auto step = step_of(me, environment);
  if (me.launched) fill_master(me, environment, step);
  me.agent_hosts_store = me.launcher == "torchrun" && flag_from(environment, "TORCHELASTIC_USE_AGENT_STORE", false);
  me.restart_count = integer_from(environment, {"TORCHELASTIC_RESTART_COUNT"}).value_or(0);
  me.run_id = run_id_of(environment, step);
  // Simulated nodes share a host name, so the launcher's node rank takes precedence.
  if (const auto node = integer_from(environment, {"GROUP_RANK", "SLURM_NODEID"})) {
    me.machine = "node" + std::to_string(*node);
  } else {
    me.machine = host_name();
  }
  return me;
}

}  // namespace accelerate
