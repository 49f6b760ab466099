#pragma once

#include <accelerate/core/error.h>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "config/config_file.h"
#include "launch/command_plan.h"
#include "launch/launch_flags.h"
#include "launch/plan_text.h"

namespace accelerate::testing {

using namespace detail;

/// A machine that has a bit of everything.
inline MachineFacts machine_for_any_input() {
  MachineFacts machine;
  machine.gpus = 2;
  machine.physical_cores = 8;
  machine.tpu = true;
  machine.current_folder = "/";
  machine.reserve_port = [](int port) { return port % 2 == 0; };
  machine.reserve_free_port = [] { return 1; };
  machine.has_fp8 = [] { return true; };
  machine.find_mpi = [] { return MpiLauncher{}; };
  machine.cpu_topology = [] { return CpuTopology{.nodes = {{0, {0, 1}}, {1, {2}}}, .gpu_nodes = {1, -1}}; };
  return machine;
}

/// Plans the launch that `input` describes: words of a command line, one a line, then, after an empty line, a config file. The
/// only exceptions that may leave the planning are our own, with something to say; a plan has workers with a command each.
inline void try_launch_input(const std::string& input) {
  const size_t end = input.find("\n\n");
  std::vector<std::string> line;
  std::istringstream words(input.substr(0, end));
  for (std::string word; std::getline(words, word);) line.push_back(word);
  try {
    if (const auto asked = asked_help(line); asked && launch_help(*asked).empty()) throw std::logic_error("no help");
    const LaunchArguments arguments = parse_launch_arguments(line);
    const Config config = end == std::string::npos ? Config{} : parse_config(input.substr(end + 2), "fuzz.yaml");
    const Environment nothing = [](const std::string&) { return std::optional<std::string>(); };
    const LaunchPlan plan =
        plan_command(arguments, end == std::string::npos ? nullptr : &config.fields, nothing, machine_for_any_input());
    if (plan.workers.empty() || plan.workers.front().argv.empty()) throw std::logic_error("nothing to start");
    if (plan_text(plan, nothing).empty()) throw std::logic_error("nothing to show");
  } catch (const Error& error) {
    if (std::string(error.what()).empty()) throw std::logic_error("an error without a word");
  }
}

}  // namespace accelerate::testing
