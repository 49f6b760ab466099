#include <gtest/gtest.h>

#include <accelerate/core/error.h>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "config/config_file.h"
#include "launch/command_plan.h"

// What Python Accelerate starts for a command line, a config file, an environment and a machine, and what is started here.
namespace accelerate {

using namespace detail;
namespace {

using Json = nlohmann::json;
using GoldenVariables = std::map<std::string, std::string>;

/// What a case must give, in our terms.
struct GoldenLaunch {
  bool fails = false;
  std::vector<std::string> argv = {};
  /// Of each worker of this machine: what differs from the environment it was started from.
  std::vector<GoldenVariables> variables = {};
  bool operator==(const GoldenLaunch&) const = default;
};

std::ostream& operator<<(std::ostream& out, const GoldenLaunch& launch) {
  if (launch.fails) return out << "an error";
  return out << Json(launch.argv) << " as " << launch.variables.size() << ": " << Json(launch.variables).dump();
}

GoldenVariables base_environment(const Json& golden, const Json& test) {
  GoldenVariables base = golden.at("base_env");
  for (const auto& [name, value] : test.at("base_env").items()) base[name] = value;
  return base;
}

MachineFacts machine_of(const Json& test) {
  const Json& facts = test.at("machine");
  const std::set<int> busy = facts.at("busy_ports");
  MachineFacts machine;
  machine.gpus = facts.at("cuda");
  machine.physical_cores = facts.at("cores");
  machine.bf16 = facts.at("bf16");
  machine.tpu = facts.at("tpu");
  machine.current_folder = "<cwd>";
  machine.reserve_port = [busy](int port) { return !busy.contains(port); };
  machine.reserve_free_port = [port = facts.at("free_port").get<int>()] { return port; };
  machine.has_fp8 = [has = facts.at("fp8").get<bool>()] { return has; };
  machine.find_mpi = [mpi = facts.at("mpi")]() -> std::optional<MpiLauncher> {
    if (mpi.is_null()) return std::nullopt;
    return MpiLauncher{.program = "mpirun", .open_mpi = mpi == "openmpi"};
  };
  return machine;
}

GoldenLaunch launch_of(const Json& golden, const Json& test) {
  const GoldenVariables base = base_environment(golden, test);
  const Environment environment = [&base](const std::string& name) -> std::optional<std::string> {
    const auto found = base.find(name);
    return found == base.end() ? std::nullopt : std::optional(found->second);
  };
  try {
    const LaunchArguments arguments = parse_launch_arguments(test.at("line"));
    std::optional<Config> config;
    if (arguments.settings.config_file) {
      config = parse_config(test.at("config").get<std::string>(), "config.yaml");
    } else if (!test.at("default_config").is_null() && uses_default_config(arguments.settings)) {
      config = parse_config(test.at("default_config").get<std::string>(), "default_config.yaml");
    }
    const LaunchPlan plan = plan_command(arguments, config ? &config->fields : nullptr, environment, machine_of(test));
    GoldenLaunch launch = {.argv = plan.workers.front().argv};
    for (const WorkerPlan& worker : plan.workers) {
      EXPECT_EQ(worker.argv, launch.argv);
      GoldenVariables changed;
      for (const auto& [name, value] : worker.variables) {
        if (environment(name) != value) changed[name] = value;
      }
      launch.variables.push_back(std::move(changed));
    }
    return launch;
  } catch (const Error&) {
    return {.fails = true};
  }
}

// What torchrun adds for each worker of this machine, with the store hosted by rank 0 (a listed difference).
GoldenVariables place_of(int local_rank, int local_size, int machine_rank, int machines, const GoldenVariables& settings) {
  const std::string rank = std::to_string(machine_rank * local_size + local_rank);
  const std::string size = std::to_string(machines * local_size);
  GoldenVariables place = {{"RANK", rank},
                           {"ROLE_RANK", rank},
                           {"LOCAL_RANK", std::to_string(local_rank)},
                           {"GROUP_RANK", std::to_string(machine_rank)},
                           {"WORLD_SIZE", size},
                           {"ROLE_WORLD_SIZE", size},
                           {"LOCAL_WORLD_SIZE", std::to_string(local_size)},
                           {"GROUP_WORLD_SIZE", std::to_string(machines)},
                           {"TORCHELASTIC_RESTART_COUNT", "0"},
                           {"TORCHELASTIC_RUN_ID", "none"},
                           {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                           {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}};
  place.insert(settings.begin(), settings.end());
  return place;
}

std::string text_at(const Json& object, const char* key, const std::string& fallback) {
  const Json value = object.value(key, Json());
  return value.is_null() ? fallback : value.is_string() ? value.get<std::string>() : value.dump();
}

GoldenVariables settings_of(const Json& torchrun, const Json& test) {
  std::string address = text_at(torchrun, "master_addr", "127.0.0.1");
  std::string port = text_at(torchrun, "master_port", "29500");
  if (const std::string endpoint = text_at(torchrun, "rdzv_endpoint", ""); !endpoint.empty()) {
    address = endpoint.substr(0, endpoint.find(':'));
    port = endpoint.substr(endpoint.find(':') + 1);
  }
  // A port of torchrun's own choice.
  if (torchrun.contains("standalone")) port = test.at("machine").at("free_port").dump();
  return {{"MASTER_ADDR", address},
          {"MASTER_PORT", port},
          {"ROLE_NAME", text_at(torchrun, "role", "default")},
          {"TORCHELASTIC_MAX_RESTARTS", text_at(torchrun, "max_restarts", "0")}};
}

std::vector<std::string> torchrun_command(const Json& torchrun) {
  std::vector<std::string> command = {"python3", "-u"};
  if (torchrun.value("no_python", Json()) == true) command.clear();
  if (torchrun.value("module", Json()) == true) command.emplace_back("-m");
  command.push_back(torchrun.at("training_script"));
  for (const std::string argument : torchrun.at("training_script_args")) command.push_back(argument);
  return command;
}

GoldenLaunch under_torchrun(const Json& test, const GoldenVariables& base) {
  const Json& torchrun = test.at("result").at("torchrun");
  GoldenLaunch launch = {.argv = torchrun_command(torchrun)};
  const int machines = std::stoi(torchrun.at("nnodes").get<std::string>());
  const int processes = std::stoi(torchrun.at("nproc_per_node").get<std::string>());
  const int machine_rank = torchrun.value("node_rank", 0);
  for (int local_rank = 0; local_rank < processes; ++local_rank) {
    GoldenVariables variables = test.at("result").at("env");
    variables.merge(place_of(local_rank, processes, machine_rank, machines, settings_of(torchrun, test)));
    if (processes > 1 && !base.contains("OMP_NUM_THREADS")) variables.emplace("OMP_NUM_THREADS", "1");
    launch.variables.push_back(std::move(variables));
  }
  return launch;
}

// What Python does, in our terms.
GoldenLaunch python_launch_of(const Json& test, const GoldenVariables& base) {
  const Json& result = test.at("result");
  if (!result.contains("launcher")) return {.fails = true};
  if (result.contains("torchrun") && result.at("command").is_null()) return under_torchrun(test, base);
  GoldenLaunch launch = {.variables = {result.at("env")}};
  if (result.at("launcher") == "tpu") {
    // Python imports the script instead; the script itself is what runs here.
    launch.argv = {"python3", "train.py", "--lr", "0.1", "--flag"};
    return launch;
  }
  for (const std::string word : result.at("command")) launch.argv.push_back(word == "<python>" ? "python3" : word);
  return launch;
}

// --- The differences, each with what it makes of Python's launch. See docs/python_to_cpp.md. ------------------------------

int number_of(const Json& test, const char* key, int fallback) {
  const Json value = test.at("result").value("args", Json::object()).value(key, Json());
  return value.is_number_integer() ? value.get<int>() : fallback;
}

bool has_word(const Json& test, const char* word) {
  const std::vector<std::string> line = test.at("line");
  return std::find(line.begin(), line.end(), word) != line.end();
}

std::string word_after(const Json& test, const char* flag, const std::string& fallback) {
  const std::vector<std::string> line = test.at("line");
  const auto found = std::find(line.begin(), line.end(), flag);
  return found == line.end() ? fallback : *(found + 1);
}

// Nothing more than that many processes are to be started, by a launcher that starts one.
void start_all(const Json& test, GoldenLaunch& launch) {
  if (launch.fails || test.at("result").at("launcher") != "simple" || launch.argv.front() == "mpirun") return;
  const bool counted = has_word(test, "--num_processes") || has_word(test, "--config_file");
  const int machines = number_of(test, "num_machines", 1);
  const int processes = number_of(test, "num_processes", 0) / machines;
  if (!counted || processes * machines < 2) return;
  const GoldenVariables python = launch.variables.front();
  const GoldenVariables settings = {{"ROLE_NAME", "default"},
                                    {"TORCHELASTIC_MAX_RESTARTS", std::to_string(number_of(test, "max_restarts", 0))}};
  launch.variables.clear();
  for (int rank = 0; rank < processes; ++rank) {
    launch.variables.push_back(python);
    launch.variables.back().merge(place_of(rank, processes, number_of(test, "machine_rank", 0), machines, settings));
  }
  if (launch.argv.front() == "python3") launch.argv.insert(launch.argv.begin() + 1, "-u");
}

// --cpu without a count: one process, also where there are GPUs to count.
void start_one_on_the_cpu(const Json& test, GoldenLaunch& launch) {
  if (launch.fails || !has_word(test, "--cpu") || has_word(test, "--num_processes") || has_word(test, "--config_file")) return;
  if (number_of(test, "num_processes", 0) < 2) return;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) launch.variables.front().erase(name);
  launch.variables.front()["OMP_NUM_THREADS"] = "1";
}

void refuse_a_rest(const Json& test, GoldenLaunch& launch) {
  const int machines = std::stoi(word_after(test, "--num_machines", "1"));
  if (!launch.fails && std::stoi(word_after(test, "--num_processes", "0")) % machines != 0) launch = {.fails = true};
}

void give_several_machines_a_port(const Json& test, GoldenLaunch& launch) {
  const Json& result = test.at("result");
  if (result.value("error", "") != "AssertionError" || result.at("message").get<std::string>().find("port") == std::string::npos)
    return;
  const int processes = std::stoi(word_after(test, "--num_processes", "0"));
  const int machines = std::stoi(word_after(test, "--num_machines", "1"));
  if (processes % machines != 0) return;
  launch = {.fails = false};  // what is started is not compared
}

void obey_affinity_of_the_file(const Json& test, GoldenLaunch& launch) {
  if (launch.fails || test.at("config").is_null() || has_word(test, "--enable_cpu_affinity")) return;
  if (test.at("config").get<std::string>().find("enable_cpu_affinity: true") == std::string::npos) return;
  for (auto& variables : launch.variables) variables["ACCELERATE_CPU_AFFINITY"] = "1";
}

void spell_fp8_backends_as_readers_do(const Json&, GoldenLaunch& launch) {
  for (auto& variables : launch.variables) {
    const auto backend = variables.find("ACCELERATE_FP8_BACKEND");
    if (backend == variables.end()) continue;
    for (char& c : backend->second) c = static_cast<char>(std::toupper(c));
  }
}

// YAML reads a bare NO as false, which Python takes for another type without a number of processes.
void read_a_bare_no(const Json& test, GoldenLaunch& launch) {
  if (!launch.fails || test.at("config").is_null() || has_word(test, "--num_processes")) return;
  const std::string config = test.at("config");
  if (config.find("distributed_type: NO") == std::string::npos || config.find("num_processes") != std::string::npos) return;
  launch = {.fails = false};  // what is started is not compared
}

// Open MPI gives ranks on other hosts only the variables that it is told of.
void name_variables_to_open_mpi(const Json&, GoldenLaunch& launch) {
  const auto last = std::find(launch.argv.begin(), launch.argv.end(), "--bind-to");
  if (launch.fails || last == launch.argv.end()) return;
  std::vector<std::string> named;
  for (const auto& [name, value] : launch.variables.front()) named.insert(named.end(), {"-x", name});
  launch.argv.insert(last + 2, named.begin(), named.end());
}

struct Difference {
  const char* what;
  void (*apply)(const Json& test, GoldenLaunch& launch);
};

constexpr Difference kDifferences[] = {
    {"as many processes are started as were asked for", start_all},
    {"--cpu without a count is one process", start_one_on_the_cpu},
    {"processes that the machines cannot share are an error", refuse_a_rest},
    {"several machines have a port without naming one", give_several_machines_a_port},
    {"a bare NO in a config file is NO", read_a_bare_no},
    {"enable_cpu_affinity in a config file counts", obey_affinity_of_the_file},
    {"fp8 backends are spelled as their readers expect", spell_fp8_backends_as_readers_do},
    {"Open MPI is told which variables ranks on other hosts need", name_variables_to_open_mpi},
};

Json golden_launches() {
  const char* folder = std::getenv("ACCELERATE_GOLDEN_DIR");
  std::ifstream file(std::string(folder != nullptr ? folder : ACCELERATE_TEST_GOLDEN) + "/launch_env.json");
  return Json::parse(file);
}

TEST(LaunchCommandGolden, EveryCommandLineStartsWhatPythonStartsOrDiffersAsListed) {
  const Json golden = golden_launches();
  std::map<std::string, int> differences;
  int number = -1;
  for (const Json& test : golden.at("cases")) {
    ++number;
    SCOPED_TRACE("case " + std::to_string(number) + ": " + test.at("line").dump());
    const GoldenVariables base = base_environment(golden, test);
    GoldenLaunch expected = python_launch_of(test, base);
    const GoldenLaunch python = expected;
    for (const Difference& difference : kDifferences) {
      const GoldenLaunch before = expected;
      difference.apply(test, expected);
      if (!(expected == before)) ++differences[difference.what];
    }
    const GoldenLaunch found = launch_of(golden, test);
    if (!expected.fails && expected.argv.empty()) {
      EXPECT_FALSE(found.fails);
      continue;
    }
    EXPECT_EQ(found, expected);
    // A difference that is none must be taken off the list.
    if (!(expected == python)) {
      EXPECT_FALSE(found == python);
    }
  }
  for (const auto& [what, count] : differences) std::cout << "launch_env: " << count << " cases: " << what << "\n";
  for (const Difference& difference : kDifferences) EXPECT_TRUE(differences.contains(difference.what)) << difference.what;
  std::cout << "launch_env: " << golden.at("cases").size() << " cases compared\n";
}

}  // namespace
}  // namespace accelerate
