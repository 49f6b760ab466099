#include "launch/plan_text.h"

#include <fmt/format.h>

#include <accelerate/launch/cpu_topology.h>
#include "core/escaped.h"

namespace accelerate::detail {
namespace {

std::string worker_text(const WorkerPlan& worker, const LaunchPlan& plan, const Environment& environment) {
  std::string text = "env";
  for (const std::string& name : plan.removed_variables) text += " \\\n  -u " + shell_quoted(name);
  for (const auto& [name, value] : worker.variables) {
    if (environment(name) != value) text += " \\\n  " + shell_quoted(name + "=" + value);
  }
  text += " \\\n ";
  if (!worker.cpus.empty()) text += " taskset -c " + cpu_list_text(worker.cpus);
  for (const std::string& word : worker.argv) text += " " + shell_quoted(word);
  return text + "\n";
}

/// `text` in the ANSI-C quoting of bash and zsh ($'\e[2J'), free of bytes that control a terminal.
std::string ansi_c_quoted(std::string_view text) {
  std::string quoted = "$'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      quoted += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    }
  }
  return quoted + "'";
}

std::string machines_text(const MachineSettings& machines) {
  const std::string place = fmt::format("{}:{}", escaped(machines.address), machines.port);
  if (machines.rank)
    return fmt::format("# machine {} of {}: all begin when they have joined at {}; machine 0 then chooses MASTER_PORT\n",
                       *machines.rank, machines.count, place);
  return fmt::format(
      "# one of {} machines that join at {}; the ranks below are those of machine 0, which chooses MASTER_PORT\n",
      machines.is_elastic() ? fmt::format("{} to {}", machines.fewest(), machines.count) : std::to_string(machines.count), place);
}

}  // namespace

std::string plan_text(const LaunchPlan& plan, const Environment& environment) {
  std::string text;
  for (const std::string& note : plan.notes) text += fmt::format("# {}\n", escaped(note));
  if (plan.machines) text += machines_text(*plan.machines);
  for (const WorkerPlan& worker : plan.workers) {
    const std::string name = worker.name.empty() ? fmt::format("rank {}", worker.rank) : escaped(worker.name);
    text += fmt::format("{}# {}\n{}", text.empty() ? "" : "\n", name, worker_text(worker, plan, environment));
  }
  return text;
}

std::string posix_quoted(const std::string& text) {
  constexpr const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  if (!text.empty() && text.find_first_not_of(plain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string shell_quoted(const std::string& text) { return escaped(text) != text ? ansi_c_quoted(text) : posix_quoted(text); }

}  // namespace accelerate::detail
