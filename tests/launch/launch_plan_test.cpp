#include <accelerate/launch/launch_plan.h>

#include <gtest/gtest.h>

#include <set>

#include <accelerate/core/error.h>

#include "support/error_text.h"

namespace accelerate {
namespace {

using testing::expect_parts;
using testing::message_of;

using Variables = std::map<std::string, std::string>;

constexpr int kFreePort = 41234;

Environment table(Variables variables = {}) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

MachineFacts machine(int gpus = 0, std::set<int> busy = {}) {
  return {.gpus = gpus,
          .physical_cores = 16,
          .reserve_port = [busy](int port) { return !busy.contains(port); },
          .reserve_free_port = [] { return kFreePort; }};
}

LaunchPlan plan(LaunchOptions options, const MachineFacts& facts = machine(), const Environment& environment = table()) {
  if (options.command.empty()) options.command = {"train"};
  return plan_launch(options, environment, facts);
}

std::string variable(const LaunchPlan& plan, const std::string& name, size_t rank = 0) {
  const auto& variables = plan.workers.at(rank).variables;
  const auto found = variables.find(name);
  return found == variables.end() ? "(none)" : found->second;
}

std::string plan_refusal(LaunchOptions options) {
  return message_of<UsageError>([&] { plan(std::move(options)); });
}

TEST(LaunchPlan, StartsAsManyProcessesAsAsked) {
  EXPECT_EQ(plan({.cpu = true, .num_processes = 4}).workers.size(), 4u);
  EXPECT_EQ(plan({.num_processes = 3}).workers.size(), 3u);
  EXPECT_EQ(plan({.num_processes = 1}, machine(8)).workers.size(), 1u);
}

TEST(LaunchPlan, StartsOneProcessForEachGpuByDefault) {
  EXPECT_EQ(plan({}, machine(8)).workers.size(), 8u);
  EXPECT_EQ(plan({}, machine(1)).workers.size(), 1u);
}

TEST(LaunchPlan, StartsOneProcessByDefaultOnTheCpu) {
  EXPECT_EQ(plan({}).workers.size(), 1u);
  EXPECT_EQ(plan({.cpu = true}, machine(8)).workers.size(), 1u);
}

TEST(LaunchPlan, NumbersTheWorkersAndGivesEachTheWholeCommand) {
  const LaunchPlan result = plan({.num_processes = 2, .command = {"train", "--lr", "0.1 ", "--", "--cpu"}});
  for (int rank = 0; rank < 2; ++rank) {
    const WorkerPlan& worker = result.workers.at(static_cast<size_t>(rank));
    EXPECT_EQ(worker.rank, rank);
    EXPECT_EQ(worker.variables.at("RANK"), std::to_string(rank));
    EXPECT_EQ(worker.variables.at("LOCAL_RANK"), std::to_string(rank));
    EXPECT_EQ(worker.argv, (std::vector<std::string>{"train", "--lr", "0.1 ", "--", "--cpu"}));
  }
}

TEST(LaunchPlan, WrongValuesAreErrorsThatNameTheFlag) {
  EXPECT_NE(plan_refusal({.num_processes = 0}).find("--num_processes is 0"), std::string::npos);
  EXPECT_NE(plan_refusal({.num_processes = -2}).find("--num_processes is -2"), std::string::npos);
  EXPECT_NE(plan_refusal({.main_process_port = -1}).find("--main_process_port is -1"), std::string::npos);
  EXPECT_NE(plan_refusal({.main_process_port = 65536}).find("--main_process_port is 65536"), std::string::npos);
  EXPECT_NE(plan_refusal({.num_cpu_threads_per_process = 0}).find("--num_cpu_threads_per_process is 0"), std::string::npos);
  EXPECT_NE(plan_refusal({.mixed_precision = "int8"}).find("--mixed_precision is 'int8'"), std::string::npos);
  EXPECT_NE(plan_refusal({.max_restarts = -1}).find("--max_restarts is -1"), std::string::npos);
  EXPECT_NE(plan_refusal({.grace_period = -0.5}).find("--grace_period is -0.5"), std::string::npos);
  EXPECT_NE(plan_refusal({.num_machines = 0}).find("--num_machines is 0"), std::string::npos);
  EXPECT_NE(plan_refusal({.num_machines = 2, .machine_rank = 2}).find("--machine_rank is 2"), std::string::npos);
}

TEST(LaunchPlan, UsesPort29500WhenItIsFree) {
  const LaunchPlan result = plan({.num_processes = 2});
  EXPECT_EQ(variable(result, "MASTER_PORT"), "29500");
  EXPECT_EQ(variable(result, "MASTER_PORT", 1), "29500");
  EXPECT_TRUE(result.notes.empty());
}

TEST(LaunchPlan, UsesAFreePortWhen29500IsBusyWithoutANote) {
  const LaunchPlan result = plan({.num_processes = 2}, machine(0, {29500}));
  EXPECT_EQ(variable(result, "MASTER_PORT"), std::to_string(kFreePort));
  EXPECT_TRUE(result.notes.empty());
}

TEST(LaunchPlan, PortZeroAlwaysMeansAFreePort) {
  const LaunchPlan result = plan({.num_processes = 2, .main_process_port = 0});
  EXPECT_EQ(variable(result, "MASTER_PORT"), std::to_string(kFreePort));
  EXPECT_TRUE(result.notes.empty());
}

TEST(LaunchPlan, UsesThePortThatWasAskedFor) {
  EXPECT_EQ(variable(plan({.num_processes = 2, .main_process_port = 5000}), "MASTER_PORT"), "5000");
}

TEST(LaunchPlan, ABusyPortThatWasAskedForIsReplacedWithANote) {
  const LaunchPlan result = plan({.num_processes = 2, .main_process_port = 5000}, machine(0, {5000}));
  EXPECT_EQ(variable(result, "MASTER_PORT"), std::to_string(kFreePort));
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_NE(result.notes[0].find("5000"), std::string::npos);
  EXPECT_NE(result.notes[0].find(std::to_string(kFreePort)), std::string::npos);
}

TEST(LaunchPlan, ASingleProcessNeedsNoPort) {
  const LaunchPlan result = plan({.main_process_port = 5000}, machine(0, {5000}));
  EXPECT_EQ(variable(result, "MASTER_PORT"), "(none)");
  EXPECT_TRUE(result.notes.empty());
}

TEST(LaunchPlan, ThreadsAreThoseAskedFor) {
  EXPECT_EQ(variable(plan({.num_cpu_threads_per_process = 5}, machine(), table({{"OMP_NUM_THREADS", "7"}})), "OMP_NUM_THREADS"),
            "5");
}

TEST(LaunchPlan, ThreadsOfTheEnvironmentComeBeforeAShareOfTheCores) {
  EXPECT_EQ(variable(plan({.cpu = true, .num_processes = 4}, machine(), table({{"OMP_NUM_THREADS", "7"}})), "OMP_NUM_THREADS"),
            "7");
}

TEST(LaunchPlan, CpuProcessesShareThePhysicalCoresAndSaySo) {
  const LaunchPlan four = plan({.cpu = true, .num_processes = 4});
  EXPECT_EQ(variable(four, "OMP_NUM_THREADS"), "4");
  EXPECT_EQ(four.notes.size(), 1u);
  EXPECT_EQ(variable(plan({.cpu = true, .num_processes = 1}), "OMP_NUM_THREADS"), "16");
  EXPECT_EQ(variable(plan({.cpu = true, .num_processes = 4}, machine(), table({{"OMP_NUM_THREADS", "0"}})), "OMP_NUM_THREADS"),
            "4");
}

TEST(LaunchPlan, MoreCpuProcessesThanCoresGetOneThreadEach) {
  const LaunchPlan result = plan({.cpu = true, .num_processes = 17});
  EXPECT_EQ(variable(result, "OMP_NUM_THREADS"), "1");
  EXPECT_TRUE(result.notes.empty());
}

TEST(LaunchPlan, UnderMpiTheCoresAreSharedAmongItsLocalRanks) {
  const auto environment = table({{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(variable(plan({.cpu = true, .num_processes = 4}, machine(), environment), "OMP_NUM_THREADS"), "8");
}

TEST(LaunchPlan, WithoutACountOrWithoutCpuThereIsOneThread) {
  EXPECT_EQ(variable(plan({.cpu = true}), "OMP_NUM_THREADS"), "1");
  EXPECT_EQ(variable(plan({.num_processes = 2}, machine(2)), "OMP_NUM_THREADS"), "1");
}

TEST(LaunchPlan, ThreadsThatAreNoNumberAreAnErrorThatNamesTheVariable) {
  expect_parts(message_of<ConfigError>([&] { plan({}, machine(), table({{"OMP_NUM_THREADS", "many"}})); }), {"OMP_NUM_THREADS"});
}

TEST(LaunchPlan, OnlyALoneProcessIsToldThatItIsNotBoundToTheCpu) {
  EXPECT_EQ(variable(plan({}, machine(1)), "ACCELERATE_USE_CPU"), "False");
  EXPECT_EQ(variable(plan({}, machine(2)), "ACCELERATE_USE_CPU"), "(none)");
  EXPECT_EQ(variable(plan({.cpu = true, .num_processes = 2}), "ACCELERATE_USE_CPU"), "True");
}

TEST(LaunchPlan, PassesThePrecisionOn) {
  EXPECT_EQ(variable(plan({.mixed_precision = "bf16"}), "ACCELERATE_MIXED_PRECISION"), "bf16");
  EXPECT_EQ(variable(plan({}), "ACCELERATE_MIXED_PRECISION"), "no");
}

TEST(LaunchPlan, KeepsNcclErrorHandlingThatTheUserChose) {
  const auto environment = table({{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}});
  EXPECT_EQ(variable(plan({.num_processes = 2}, machine(2), environment), "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "(none)");
  EXPECT_EQ(variable(plan({.num_processes = 2}, machine(2)), "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "1");
}

TEST(LaunchPlan, ALoneProcessInheritsNoPlaceFromAnotherLaunch) {
  const auto environment = table({{"RANK", "1"},
                                  {"WORLD_SIZE", "2"},
                                  {"LOCAL_RANK", "1"},
                                  {"LOCAL_WORLD_SIZE", "2"},
                                  {"MASTER_PORT", "1"},
                                  {"TORCHELASTIC_RUN_ID", "none"},
                                  {"OMP_NUM_THREADS", "3"},
                                  {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}});
  const LaunchPlan result = plan({.cpu = true}, machine(), environment);
  const std::set<std::string> removed(result.removed_variables.begin(), result.removed_variables.end());
  EXPECT_EQ(removed, (std::set<std::string>{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT",
                                            "TORCHELASTIC_RUN_ID"}));
}

TEST(LaunchPlan, SeveralProcessesReplaceThePlaceOfAnotherLaunch) {
  const auto environment = table({{"RANK", "7"}, {"WORLD_SIZE", "9"}, {"TORCHELASTIC_ERROR_FILE", "/tmp/error.json"}});
  const LaunchPlan result = plan({.num_processes = 2}, machine(), environment);
  EXPECT_EQ(variable(result, "RANK", 1), "1");
  EXPECT_EQ(result.removed_variables, std::vector<std::string>{"TORCHELASTIC_ERROR_FILE"});
}

LaunchOptions on_two_machines(int machine_rank, int num_processes = 4) {
  return {.num_processes = num_processes, .num_machines = 2, .machine_rank = machine_rank, .main_process_ip = "10.0.0.1"};
}

TEST(LaunchPlan, EachOfSeveralMachinesStartsItsShareOfTheRanks) {
  for (int machine_rank : {0, 1}) {
    const LaunchPlan result = plan(on_two_machines(machine_rank));
    ASSERT_EQ(result.workers.size(), 2u);
    for (int local = 0; local < 2; ++local) {
      const WorkerPlan& worker = result.workers.at(static_cast<size_t>(local));
      EXPECT_EQ(worker.rank, 2 * machine_rank + local);
      EXPECT_EQ(worker.variables.at("RANK"), std::to_string(worker.rank));
      EXPECT_EQ(worker.variables.at("ROLE_RANK"), std::to_string(worker.rank));
      EXPECT_EQ(worker.variables.at("LOCAL_RANK"), std::to_string(local));
      EXPECT_EQ(worker.variables.at("WORLD_SIZE"), "4");
      EXPECT_EQ(worker.variables.at("ROLE_WORLD_SIZE"), "4");
      EXPECT_EQ(worker.variables.at("LOCAL_WORLD_SIZE"), "2");
      EXPECT_EQ(worker.variables.at("GROUP_RANK"), std::to_string(machine_rank));
      EXPECT_EQ(worker.variables.at("GROUP_WORLD_SIZE"), "2");
      EXPECT_EQ(worker.variables.at("MASTER_ADDR"), "10.0.0.1");
      EXPECT_EQ(worker.variables.at("MASTER_PORT"), "29500");
    }
  }
}

TEST(LaunchPlan, OneProcessOnEachOfTwoMachinesHasAPlace) {
  EXPECT_EQ(variable(plan(on_two_machines(1, 2)), "RANK"), "1");
  EXPECT_EQ(variable(plan(on_two_machines(1, 2)), "ACCELERATE_USE_CPU"), "(none)");
}

TEST(LaunchPlan, SeveralMachinesHaveAllTheirGpusByDefault) {
  LaunchOptions options = on_two_machines(1);
  options.num_processes.reset();
  const LaunchPlan result = plan(options, machine(8));
  EXPECT_EQ(result.workers.size(), 8u);
  EXPECT_EQ(variable(result, "WORLD_SIZE"), "16");
}

TEST(LaunchPlan, ProcessesThatMachinesCannotShareAreAnErrorThatNamesBoth) {
  const std::string message = plan_refusal(on_two_machines(0, 3));
  EXPECT_NE(message.find("--num_processes is 3"), std::string::npos) << message;
  EXPECT_NE(message.find("--num_machines 2"), std::string::npos) << message;
}

TEST(LaunchPlan, SeveralMachinesNeedTheAddressOfTheFirst) {
  LaunchOptions options = on_two_machines(0);
  options.main_process_ip.reset();
  EXPECT_NE(plan_refusal(options).find("--main_process_ip"), std::string::npos);
}

TEST(LaunchPlan, SeveralMachinesCannotChooseAPortEach) {
  LaunchOptions options = on_two_machines(1);
  options.main_process_port = 0;
  EXPECT_NE(plan_refusal(options).find("--main_process_port is 0"), std::string::npos);
}

TEST(LaunchPlan, ABusyPortIsAnErrorOnTheFirstOfSeveralMachinesAndNothingToTheOthers) {
  for (std::optional<int> port : {std::optional<int>(), std::optional(5000)}) {
    LaunchOptions options = on_two_machines(0);
    options.main_process_port = port;
    const std::string number = std::to_string(port.value_or(29500));
    expect_parts(message_of<UsageError>([&] { plan(options, machine(0, {5000, 29500})); }), {"Port " + number});
    options.machine_rank = 1;
    EXPECT_EQ(variable(plan(options, machine(0, {5000, 29500})), "MASTER_PORT"), number);
  }
}

TEST(LaunchPlan, CoresOfAMachineAreSharedByItsOwnProcesses) {
  LaunchOptions options = on_two_machines(0, 8);
  options.cpu = true;
  EXPECT_EQ(variable(plan(options), "OMP_NUM_THREADS"), "4");
}

TEST(LaunchPlan, WorkersAreToldHowOftenTheyMayBeStartedAgain) {
  for (int processes : {1, 2}) {
    const LaunchPlan result = plan({.num_processes = processes, .max_restarts = 3});
    EXPECT_EQ(result.max_restarts, 3);
    EXPECT_EQ(variable(result, "TORCHELASTIC_MAX_RESTARTS"), "3");
    EXPECT_EQ(variable(result, "TORCHELASTIC_RESTART_COUNT"), "0");
  }
}

TEST(LaunchPlan, DebugReachesTheWorkers) {
  EXPECT_EQ(variable(plan({.debug = true}), "ACCELERATE_DEBUG_MODE"), "true");
  EXPECT_EQ(variable(plan({}), "ACCELERATE_DEBUG_MODE"), "(none)");
}

TEST(LaunchPlan, TheGracePeriodMayBeAFractionOfASecond) {
  EXPECT_EQ(plan({.grace_period = 0.25}).grace_period, std::chrono::milliseconds(250));
  EXPECT_EQ(plan({.grace_period = 0}).grace_period, std::chrono::milliseconds(0));
}

TEST(LaunchPlan, GivesWorkersThirtySecondsToStop) { EXPECT_EQ(plan({}).grace_period, std::chrono::seconds(30)); }

}  // namespace
}  // namespace accelerate
