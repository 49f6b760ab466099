#pragma once

#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <accelerate/launch/launch_plan.h>
#include "support/run_program.h"

namespace accelerate::testing {

/// `accelerate launch --cpu --num_processes N sh -c script`.
inline std::vector<std::string> launch(int processes, const std::string& script) {
  return {ACCELERATE_CLI, "launch", "--cpu", "--num_processes", std::to_string(processes), "sh", "-c", script};
}

/// The same as a plan, whose ranks are stopped at once when one has failed.
inline LaunchPlan plan_of(int processes, const std::string& script, std::chrono::milliseconds grace = std::chrono::seconds(30)) {
  const MachineFacts facts = {.reserve_port = [](int) { return true; }, .reserve_free_port = [] { return 1; }};
  const LaunchOptions options = {.cpu = true, .num_processes = processes, .command = {"sh", "-c", script}};
  LaunchPlan plan = plan_launch(options, process_environment, facts);
  plan.grace_period = grace;
  plan.last_words = std::chrono::milliseconds(0);
  return plan;
}

/// The letter of a process's state (Z: ended and not reaped), or 'X' when there is none.
inline char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');  // does not throw when the process goes away meanwhile
  const auto name_end = text.rfind(')');
  return name_end == std::string::npos ? 'X' : text.at(name_end + 2);
}

/// True when a process is gone, or only waits to be waited for.
inline bool has_ended(pid_t pid) { return state_of(pid) == 'X' || state_of(pid) == 'Z'; }

/// Numbers that follow `word ` in what a program wrote, one a line.
inline std::vector<pid_t> pids_after(const std::string& word, const std::string& output) {
  std::vector<pid_t> pids;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(word + " ")) pids.push_back(std::stoi(line.substr(word.size() + 1)));
  }
  return pids;
}

inline int lines_in(const std::string& text) { return RunningProgram::occurrences(text, "\n"); }

/// A worker's loop that only a signal ends.
inline constexpr const char* kWaitForever = "echo ready; while :; do sleep 0.05; done";

/// The process id that a script wrote to `path`, once it is there.
inline pid_t pid_in(const std::string& path) {
  pid_t pid = 0;
  wait_until("a process id in " + path, [&] { return static_cast<bool>(std::ifstream(path) >> pid); });
  return pid;
}

}  // namespace accelerate::testing
