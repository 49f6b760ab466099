#include "core/slurm_step.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

constexpr size_t kMostHosts = 1 << 16;  // more is a typo, and the list alone would exhaust memory

using Names = std::vector<std::string>;

/// Digits alone. A step's number may be beyond int: that of an interactive one is 2^32 - 6.
std::optional<uint64_t> digits_in(std::string_view text) {
  uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Cuts the part before the first `separator` outside of brackets off the front of `rest`.
std::string_view next_part(std::string_view& rest, char separator) {
  bool inside = false;
  size_t end = 0;
  while (end < rest.size() && (inside || rest[end] != separator)) {
    if (rest[end] == '[' || rest[end] == ']') inside = rest[end] == '[';
    ++end;
  }
  const std::string_view part = rest.substr(0, end);
  rest = rest.substr(std::min(end + 1, rest.size()));
  return part;
}

/// "08-10,12" is 08, 09, 10 and 12.
std::optional<Names> numbers_in(std::string_view list) {
  Names numbers;
  do {
    const std::string_view range = next_part(list, ',');
    const size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash), last = dash == range.npos ? first : range.substr(dash + 1);
    const auto begin = digits_in(first), end = digits_in(last);
    if (!begin || !end || *end < *begin || *end - *begin >= kMostHosts) return std::nullopt;
    for (uint64_t number = *begin; number <= *end; ++number) {
      const std::string text = std::to_string(number);
      numbers.push_back(std::string(first.size() - std::min(first.size(), text.size()), '0') + text);
    }
  } while (!list.empty());
  return numbers;
}

/// Appends `before` with each of the endings that `pattern` stands for. There may be several brackets: rack[1-2]node[1-9].
bool append_hosts(Names& hosts, const std::string& before, std::string_view pattern) {
  const size_t open = pattern.find('['), close = pattern.find(']');
  if (open == pattern.npos) {
    hosts.push_back(before + std::string(pattern));
    return close == pattern.npos && !hosts.back().empty() && hosts.size() <= kMostHosts;
  }
  if (close == pattern.npos || close < open) return false;
  const auto numbers = numbers_in(pattern.substr(open + 1, close - open - 1));
  return numbers && std::all_of(numbers->begin(), numbers->end(), [&](const std::string& number) {
           return append_hosts(hosts, before + std::string(pattern.substr(0, open)) + number, pattern.substr(close + 1));
         });
}

/// "2(x3),1" is 2, 2, 2, 1: the tasks of each node of a step. Those of one node, if it is among them.
std::optional<int> tasks_on_node(std::string_view text, int node) {
  while (!text.empty()) {
    std::string_view item = next_part(text, ',');
    const auto tasks = digits_in(next_part(item, '('));
    uint64_t nodes = 1;
    if (!item.empty()) {
      const auto count = item.starts_with('x') && item.ends_with(')') ? digits_in(item.substr(1, item.size() - 2)) : std::nullopt;
      if (!count) return std::nullopt;
      nodes = *count;
    }
    if (!tasks || *tasks > 0x7fffffff) return std::nullopt;
    if (static_cast<uint64_t>(node) < nodes) return static_cast<int>(*tasks);
    node -= static_cast<int>(nodes);
  }
  return std::nullopt;
}

int port_of(const Environment& environment) {
  const auto number = [&](const char* name) { return digits_in(environment(name).value_or("0")).value_or(0) % 10000; };
  return static_cast<int>(20000 + (number("SLURM_JOB_ID") + number("SLURM_STEP_ID")) % 10000);
}

std::string name_of(const Environment& environment) {
  const auto job = environment("SLURM_JOB_ID");
  if (!job || environment("SLURM_HET_SIZE")) return "";
  return "slurm-" + *job + "." + environment("SLURM_STEP_ID").value_or("");
}

/// A batch script that was submitted from within a step inherits that one's SLURM_STEP_*. What it is told about its own job
/// differs then, unless both have the same shape; in a step the two are the same.
bool is_of_another_job(const Environment& environment) {
  const auto differ = [&](const char* one, const char* other) {
    const auto left = environment(one), right = environment(other);
    return left && right && left != right;
  };
  return differ("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE") || differ("SLURM_NNODES", "SLURM_STEP_NUM_NODES");
}

}  // namespace

std::optional<std::vector<std::string>> expand_host_list(const std::string& list) {
  Names hosts;
  std::string_view rest = list;
  do {
    if (!append_hosts(hosts, "", next_part(rest, ','))) return std::nullopt;
  } while (!rest.empty());
  return hosts;
}

std::optional<SlurmStep> read_slurm_step(const Environment& environment) {
  const auto tasks = integer_from(environment, {"SLURM_STEP_NUM_TASKS"});
  if (!tasks || is_of_another_job(environment)) return std::nullopt;
  SlurmStep step = {.tasks = *tasks,
                    .task = integer_from(environment, {"SLURM_PROCID"}),
                    .local_task = integer_from(environment, {"SLURM_LOCALID"}),
                    .node = integer_from(environment, {"SLURM_NODEID"}).value_or(0),
                    .port = port_of(environment),
                    .name = name_of(environment)};
  if (const auto list = environment("SLURM_STEP_NODELIST")) {
    const auto hosts = expand_host_list(*list);
    if (!hosts) throw ConfigError("SLURM_STEP_NODELIST=" + *list + ": expected a list of hosts, such as gpu[03-05,12],login.");
    step.first_host = hosts->front();
    step.nodes = static_cast<int>(hosts->size());
  }
  step.nodes = integer_from(environment, {"SLURM_STEP_NUM_NODES"}).value_or(step.nodes);
  if (const auto list = environment("SLURM_STEP_TASKS_PER_NODE")) {
    step.local_tasks = tasks_on_node(*list, step.node);
    if (!step.local_tasks)
      throw ConfigError("SLURM_STEP_TASKS_PER_NODE=" + *list + ": expected the number of tasks per node, such as 2(x3),1.");
  }
  return step;
}

}  // namespace accelerate::detail
