#include "launch/remote_launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include <accelerate/core/error.h>
#include "config/default_config.h"
#include "hosts/forwarded_variables.h"
#include "hosts/host_file.h"
#include "launch/launch_flags.h"
#include "launch/place_variables.h"
#include "launch/plan_text.h"
#include "launch/worker_command.h"

namespace accelerate::detail {
namespace {

using Words = std::vector<std::string>;
using namespace std::chrono_literals;

constexpr int kHostFilePort = 29500;
/// The launchers of the hosts end each other after a failure; this one waits a little longer than they do.
constexpr std::chrono::milliseconds kLastWords = 2s, kMoreGrace = 10s;
/// Nobody is asked for a password, since every host has its own connection, and a host that does not answer is a failure.
constexpr const char* kSshOptions[] = {
    "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"};

std::string launcher_of(const LaunchSettings& merged, const MachineFacts& machine) {
  // As DeepSpeed does, but where there is no pdsh.
  const std::string launcher = merged.deepspeed_multinode_launcher.value_or(machine.has_program("pdsh") ? "pdsh" : "ssh");
  if (launcher == "ssh" || launcher == "pdsh") return launcher;
  if (launcher == "slurm") {
    throw UsageError(
        "--deepspeed_multinode_launcher slurm starts no C++ programs: in a Slurm job give `srun ./program` instead, which needs "
        "no "
        "hostfile, or use ssh or pdsh.");
  }
  throw UsageError(
      fmt::format("--deepspeed_multinode_launcher {} starts no C++ programs: with MPI, give --mpirun_hostfile instead of "
                  "--deepspeed_hostfile (and --cpu), or use ssh or pdsh.",
                  launcher));
}

std::vector<Host> read_hosts(const LaunchSettings& merged, const MachineFacts& machine) {
  const std::string& path = *merged.deepspeed_hostfile;
  const auto text = machine.read_file(path);
  if (!text)
    throw UsageError(
        fmt::format("--deepspeed_hostfile is '{}', which cannot be read; give a file of lines 'NAME slots=N'.", path));
  return filter_hosts(parse_host_file(*text, path), merged.deepspeed_inclusion_filter, merged.deepspeed_exclusion_filter);
}

void check_number_of_machines(const LaunchSettings& merged, const std::vector<Host>& hosts) {
  if (merged.min_machines) {
    throw UsageError(fmt::format("--num_machines is {}:{}, but the hostfile says which machines run: leave it out.",
                                 *merged.min_machines, merged.num_machines.value_or(1)));
  }
  const int wanted = merged.num_machines.value_or(1);
  if (wanted <= 1 || static_cast<size_t>(wanted) == hosts.size()) return;
  throw UsageError(
      fmt::format("--num_machines is {}, but the hostfile and its filters give {} host(s): {}. Leave it out, or choose "
                  "hosts with --deepspeed_inclusion_filter.",
                  wanted, hosts.size(), names_of(hosts)));
}

/// How many processes each host is to run, if the line says so, or a config file for several machines.
std::optional<int> wanted_processes(const LaunchArguments& arguments, const LaunchSettings& merged,
                                    const std::vector<Host>& hosts) {
  if (arguments.gave(&LaunchSettings::nproc_per_node) && merged.nproc_per_node != "gpu") {
    const std::string& text = *merged.nproc_per_node;
    int count = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (problem != std::errc() || end != text.data() + text.size() || count < 1)
      throw UsageError(fmt::format("--nproc_per_node is '{}'; give an integer of at least 1, or gpu.", text));
    return count;
  }
  // A file for one machine counts the processes there, and DeepSpeed's filters choose among those of a file.
  const bool filtered = merged.deepspeed_inclusion_filter || merged.deepspeed_exclusion_filter;
  const bool in_file = merged.num_machines.value_or(1) > 1 && !filtered;
  if (!merged.num_processes || !(in_file || arguments.gave(&LaunchSettings::num_processes))) return std::nullopt;
  const int machines = static_cast<int>(hosts.size());
  const auto add = [](int sum, const Host& host) { return sum + static_cast<int>(host.used.size()); };
  if (*merged.num_processes == std::accumulate(hosts.begin(), hosts.end(), 0, add)) return std::nullopt;
  if (*merged.num_processes >= machines && *merged.num_processes % machines == 0) return *merged.num_processes / machines;
  throw UsageError(
      fmt::format("--num_processes is {}, and the hostfile gives {} hosts; it is the total over all hosts, and not "
                  "all of their slots: give a multiple of {}, the same number on each, or leave it out.",
                  *merged.num_processes, machines, machines));
}

/// On each host: its slots, or fewer.
std::vector<int> processes_of_hosts(const LaunchArguments& arguments, const LaunchSettings& merged,
                                    const std::vector<Host>& hosts) {
  const auto wanted = wanted_processes(arguments, merged, hosts);
  std::vector<int> processes;
  for (const Host& host : hosts) {
    const int slots = static_cast<int>(host.used.size());
    if (wanted && *wanted > slots) {
      throw UsageError(
          fmt::format("{} processes on each host are more than the {} slot(s) of host '{}': give fewer processes, or more "
                      "slots.",
                      *wanted, slots, host.name()));
    }
    processes.push_back(wanted.value_or(slots));
  }
  return processes;
}

bool are_different(const std::vector<int>& processes) {
  return std::any_of(processes.begin(), processes.end(), [&](int count) { return count != processes.front(); });
}

/// What all hosts have in common.
struct RemoteLaunch {
  std::string launcher = {};
  std::vector<Host> hosts = {};
  std::vector<int> processes = {};  // on each host
  std::string address = {};
  int port = kHostFilePort;
};

RemoteLaunch remote_launch(const LaunchArguments& arguments, const LaunchSettings& merged, const MachineFacts& machine) {
  RemoteLaunch launch = {.launcher = launcher_of(merged, machine), .hosts = read_hosts(merged, machine)};
  check_number_of_machines(merged, launch.hosts);
  launch.processes = processes_of_hosts(arguments, merged, launch.hosts);
  // Looked up here: a host often takes its own name for 127.0.1.1.
  launch.address = merged.main_process_ip ? *merged.main_process_ip : machine.address_of(launch.hosts.front().name());
  launch.port = merged.main_process_port.value_or(kHostFilePort);
  return launch;
}

void check_remote(const RemoteLaunch& launch, const LaunchArguments& arguments, const LaunchSettings& merged,
                  const Environment& environment) {
  if (merged.mpirun_hostfile) {
    throw UsageError(
        "--mpirun_hostfile and --deepspeed_hostfile cannot be used together: the first has MPI start the processes.");
  }
  if (launch.port < 1 || launch.port > 65535) {
    throw UsageError(fmt::format("--main_process_port is {}; with a hostfile give a port from 1 to 65535 that is free on {}.",
                                 launch.port, launch.hosts.front().name()));
  }
  if (environment("ACCELERATE_RENDEZVOUS_SECRET")) {
    throw ConfigError(
        "ACCELERATE_RENDEZVOUS_SECRET is set, and would have to be in the command lines of ssh, which every user of a host can "
        "read: "
        "put it into a file that all hosts have, and set ACCELERATE_RENDEZVOUS_SECRET_FILE instead.");
  }
  const auto is_filtered = [](const Host& host) { return host.is_filtered(); };
  const bool filtered = std::any_of(launch.hosts.begin(), launch.hosts.end(), is_filtered);
  if (filtered && arguments.gave(&LaunchSettings::gpu_ids)) {
    throw UsageError("--gpu_ids and a filter of slots cannot be used together: the slots are the GPUs.");
  }
}

/// The keys of the flags that this launch answers for the hosts.
std::set<std::string> answered_keys() {
  std::set<std::string> keys;
  for (const SettingMember& member : std::initializer_list<SettingMember>{
           &LaunchSettings::config_file, &LaunchSettings::dry_run, &LaunchSettings::num_processes,
           &LaunchSettings::nproc_per_node, &LaunchSettings::num_machines, &LaunchSettings::machine_rank,
           &LaunchSettings::main_process_ip, &LaunchSettings::main_process_port, &LaunchSettings::rdzv_endpoint,
           &LaunchSettings::heterogeneous, &LaunchSettings::deepspeed_hostfile, &LaunchSettings::deepspeed_inclusion_filter,
           &LaunchSettings::deepspeed_exclusion_filter, &LaunchSettings::deepspeed_multinode_launcher}) {
    keys.insert(key_of(member));
  }
  return keys;
}

std::string flag_text(const PythonValue& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  Words parts;
  for (const auto& part : value) parts.push_back(part.dump());
  return fmt::format("{}", fmt::join(parts, ","));
}

/// The flags of the line that the hosts get as they are.
Words given_flags(const LaunchArguments& arguments) {
  Words words;
  std::set<std::string> done = answered_keys();
  for (const LaunchFlag& flag : launch_flags()) {
    if (!arguments.given.contains(flag.key()) || !done.insert(flag.key()).second) continue;
    const PythonValue value = value_of(arguments.settings, flag);
    if (value.is_null()) continue;
    if (flag.takes_value()) {
      words.push_back(fmt::format("--{}={}", flag.name, flag_text(value)));
    } else if (value == (flag.kind == FlagKind::on)) {
      words.push_back(fmt::format("--{}", flag.name));
    }
  }
  return words;
}

bool is_variable_name(const std::string& name) {
  constexpr const char* rest = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
  return !name.empty() && name.find_first_not_of(rest) == std::string::npos && (name.front() < '0' || name.front() > '9');
}

/// The lines NAME=VALUE of a file such as DeepSpeed's ~/.deepspeed_env.
void take_variable_file(std::map<std::string, std::string>& variables, const std::string& path, const MachineFacts& machine) {
  std::istringstream lines(machine.read_file(path).value_or(""));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos || line.front() == '#') continue;
    const size_t equals = line.find('=');
    if (equals == std::string::npos || !is_variable_name(line.substr(0, equals)))
      throw ConfigError(fmt::format("{}, line {}: '{}' is no variable; write NAME=VALUE.", path, number, line));
    variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
}

std::map<std::string, std::string> variables_of(const Environment& environment, const MachineFacts& machine) {
  std::map<std::string, std::string> variables;
  for (const std::string& name : machine.variable_names()) {
    if (const auto value = environment(name); value && is_forwarded(name)) variables[name] = *value;
  }
  if (const auto home = environment("HOME")) take_variable_file(variables, *home + "/.deepspeed_env", machine);
  if (environment("HOME") != machine.current_folder)
    take_variable_file(variables, machine.current_folder + "/.deepspeed_env", machine);
  variables[kStdinSignalsVariable] = "1";
  return variables;
}

std::string gpu_list(const Host& host, int processes) {
  const std::vector<int> gpus(host.used.begin(), host.used.begin() + processes);
  return fmt::format("{}", fmt::join(gpus, ","));
}

void append_quoted(std::string& line, const Words& words) {
  for (const std::string& word : words) line += " " + posix_quoted(word);
}

/// The command line for a shell of the host at `place`.
std::string host_command(const RemoteLaunch& launch, size_t place, const LaunchArguments& arguments, const LaunchSettings& merged,
                         const std::string& config_path, const MachineFacts& machine,
                         const std::map<std::string, std::string>& variables) {
  const Host& host = launch.hosts[place];
  std::string line = "cd " + posix_quoted(machine.current_folder) + " && exec env";
  for (const auto& [name, value] : variables) append_quoted(line, {name + "=" + value});
  append_quoted(line, {machine.program, "launch"});
  if (!config_path.empty()) append_quoted(line, {"--config_file", config_path});
  append_quoted(line, given_flags(arguments));
  append_quoted(line, {"--num_machines", std::to_string(launch.hosts.size()), "--machine_rank", std::to_string(place),
                       "--main_process_ip", launch.address, "--main_process_port", std::to_string(launch.port),
                       "--nproc_per_node", std::to_string(launch.processes[place])});
  if (are_different(launch.processes)) append_quoted(line, {"--heterogeneous"});
  if (host.is_filtered() && !merged.use_cpu) append_quoted(line, {"--gpu_ids", gpu_list(host, launch.processes[place])});
  append_quoted(line, {"--deepspeed_multinode_launcher", "standard"});
  append_quoted(line, arguments.settings.command);
  return line;
}

/// Where the config file in use is, also for somebody in another folder.
std::string absolute_path(const std::optional<std::string>& named, const Environment& environment, const MachineFacts& machine) {
  const std::string path = named.value_or(default_config_path(environment));
  return path.starts_with('/') ? path : machine.current_folder + "/" + path;
}

/// pdsh replaces %h and the like.
std::string with_doubled_percents(const std::string& text) {
  std::string doubled;
  for (const char c : text) doubled += c == '%' ? std::string("%%") : std::string(1, c);
  return doubled;
}

Words ssh_words(const Host& host, const std::string& line) {
  Words words = {"ssh"};
  words.insert(words.end(), std::begin(kSshOptions), std::end(kSshOptions));
  words.insert(words.end(), {host.login, line});
  return words;
}

/// One pdsh for each host: a single one would go on with the others when it cannot reach one, which then wait for it in vain.
Words pdsh_words(const Host& host, const std::string& line) {
  return {"pdsh", "-S", "-b", "-R", "ssh", "-t", "20", "-w", host.login, with_doubled_percents(line)};
}

/// The place of this host among `hosts`: by its whole name, its address, or its name without the domain.
size_t own_place(const std::vector<Host>& hosts, const MachineFacts& machine) {
  const Words names = machine.own_names();
  const auto short_name = [](const std::string& name) { return name.substr(0, name.find('.')); };
  const auto is_whole = [&](const Host& host) { return std::find(names.begin(), names.end(), host.name()) != names.end(); };
  const auto is_short = [&](const Host& host) {
    return !names.empty() && host.name().find_first_not_of("0123456789.") != std::string::npos &&
           short_name(host.name()) == short_name(names.front());
  };
  auto found = std::find_if(hosts.begin(), hosts.end(), is_whole);
  if (found == hosts.end()) found = std::find_if(hosts.begin(), hosts.end(), is_short);
  if (found != hosts.end()) return static_cast<size_t>(found - hosts.begin());
  throw UsageError(
      fmt::format("This host is {}, which is none of the hosts that the hostfile and its filters give: {}. Give "
                  "--machine_rank, or the names by which the hosts know themselves.",
                  fmt::join(names, ", "), names_of(hosts)));
}

}  // namespace

bool uses_host_file(const LaunchSettings& merged) {
  return merged.deepspeed_hostfile && !is_python(merged) && merged.deepspeed_multinode_launcher != "standard";
}

bool is_remote(const LaunchSettings& merged) { return uses_host_file(merged) && merged.deepspeed_multinode_launcher != "nossh"; }

LaunchArguments with_rank_of_host_file(LaunchArguments arguments, const LaunchSettings& merged, const MachineFacts& machine) {
  const std::vector<Host> hosts = read_hosts(merged, machine);
  check_number_of_machines(merged, hosts);
  const int machines = static_cast<int>(hosts.size());
  const std::vector<int> processes = processes_of_hosts(arguments, merged, hosts);
  LaunchSettings& settings = arguments.settings;
  if (!arguments.gave(&LaunchSettings::machine_rank)) settings.machine_rank = static_cast<int>(own_place(hosts, machine));
  const auto own = static_cast<size_t>(std::clamp(*settings.machine_rank, 0, machines - 1));
  if (hosts[own].is_filtered() && !merged.use_cpu) {
    settings.gpu_ids = gpu_list(hosts[own], processes[own]);
    arguments.given.insert(key_of(&LaunchSettings::gpu_ids));
  }
  settings.num_machines = machines;
  settings.nproc_per_node = std::to_string(processes[own]);
  settings.heterogeneous = settings.heterogeneous || are_different(processes);
  settings.main_process_ip = merged.main_process_ip.value_or(hosts.front().name());
  settings.num_processes.reset();
  arguments.given.erase(key_of(&LaunchSettings::num_processes));
  for (const SettingMember& member :
       std::initializer_list<SettingMember>{&LaunchSettings::machine_rank, &LaunchSettings::num_machines,
                                            &LaunchSettings::nproc_per_node, &LaunchSettings::main_process_ip})
    arguments.given.insert(key_of(member));
  return arguments;
}

LaunchPlan plan_remote_launch(const LaunchArguments& arguments, const LaunchSettings& merged, bool has_config,
                              const Environment& environment, const MachineFacts& machine) {
  const RemoteLaunch launch = remote_launch(arguments, merged, machine);
  check_remote(launch, arguments, merged, environment);
  const auto variables = variables_of(environment, machine);
  const std::string config_path = has_config ? absolute_path(merged.config_file, environment, machine) : "";
  LaunchPlan plan;
  plan.output.quiet = merged.quiet;
  plan.grace_period =
      std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(merged.grace_period)) + kMoreGrace;
  plan.last_words = kLastWords;
  plan.signals_from_stdin = environment(kStdinSignalsVariable) == "1";
  plan.signals_to_stdin = launch.launcher == "ssh";
  for (size_t place = 0; place < launch.hosts.size(); ++place) {
    const Host& host = launch.hosts[place];
    const std::string line = host_command(launch, place, arguments, merged, config_path, machine, variables);
    const int rank = static_cast<int>(place);
    plan.output.ranks.push_back({.rank = rank, .name = host.name()});
    plan.workers.push_back(
        {.rank = rank, .name = host.name(), .argv = plan.signals_to_stdin ? ssh_words(host, line) : pdsh_words(host, line)});
  }
  return plan;
}

}  // namespace accelerate::detail
