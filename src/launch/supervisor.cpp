#include <accelerate/launch/supervisor.h>

#include <signal.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <span>

#include <accelerate/core/error.h>
#include "core/program_path.h"
#include "launch/host_connection.h"
#include "launch/worker_supervisor.h"

namespace accelerate {

using namespace detail;
namespace {

constexpr std::array kNotifications = {SIGUSR1, SIGUSR2};

std::string search_path() {
  if (const char* path = std::getenv("PATH")) return path;
  return "/bin:/usr/bin";  // execvp's default when PATH is not set
}

}  // namespace

int run_launch(const LaunchPlan& plan) {
  if (plan.workers.empty() || plan.workers.front().argv.empty()) throw UsageError("The launch plan has no program to run.");
  const ProgramPath program = find_program(plan.workers.front().argv.front(), search_path());
  if (program.exit_code != 0) {
    if (!plan.output.quiet) std::fprintf(stderr, "accelerate launch: %s\n", program.problem.c_str());
    return program.exit_code;
  }
  WorkerSupervisor* supervisor = nullptr;
  const auto start = [&](const WorkerPlan& worker, const WorkerStart& how) {
    // Notifications cannot reach the hosts of pdsh, which they would end.
    const bool is_pdsh = worker.argv.front() == "pdsh" && !worker.name.empty();
    const auto ignored = is_pdsh ? std::span<const int>(kNotifications) : std::span<const int>();
    if (!plan.signals_to_stdin) return start_program(worker, program.path, plan.removed_variables, how, ignored);
    return start_host_connection(worker, program.path, plan.removed_variables, how, [&] { supervisor->release_in_child(); });
  };
  WorkerSupervisor supervised(plan, start);
  supervisor = &supervised;
  return supervised.run().exit_code;
}

}  // namespace accelerate
