// What a launcher makes of a scheduler's variables. Those of Slurm are as Slurm 22.05 sets them; what means nothing here is left
// out.
#include "elastic/cluster_place.h"

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <accelerate/core/error.h>

#include <map>

#include "config/config_file.h"
#include "launch/command_plan.h"
#include "support/error_text.h"
#include "support/run_program.h"

namespace accelerate::testing {

using namespace detail;
namespace {

using SchedulerTable = std::map<std::string, std::string>;
using Line = std::vector<std::string>;

/// `text` has NAME=VALUE words.
SchedulerTable variables_in(const std::string& text, const SchedulerTable& instead = {}) {
  SchedulerTable table = instead;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size()), equals = text.find('=', begin);
    table.insert({text.substr(begin, equals - begin), text.substr(equals + 1, end - equals - 1)});
    begin = end + 1;
  }
  return table;
}

// srun --nodes=2 --ntasks-per-node=1 --gpus-per-node=2, on the second node.
const std::string kLauncherOfANode =
    "CUDA_VISIBLE_DEVICES=0,1 SLURM_GPUS_ON_NODE=2 SLURM_JOB_ID=1234 SLURM_JOB_NODELIST=node[1-2] SLURM_JOB_NUM_NODES=2 "
    "SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=1 SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=1 SLURM_PROCID=1 SLURM_STEPID=0 "
    "SLURM_STEP_GPUS=0,1 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 "
    "SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_TASKS_PER_NODE=1(x2)";
// srun --nodes=2 --ntasks=3, the second task of the first node.
const std::string kTask =
    "SLURM_CPUS_ON_NODE=6 SLURM_JOB_ID=1234 SLURM_JOB_NODELIST=node[1-2] SLURM_JOB_NUM_NODES=2 SLURM_LOCALID=1 SLURM_NNODES=2 "
    "SLURM_NODEID=0 "
    "SLURM_NTASKS=3 SLURM_PROCID=1 SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[1-2] SLURM_STEP_NUM_NODES=2 "
    "SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1 SLURM_TASKS_PER_NODE=2,1";
// srun --nodes=1 --ntasks=2 --gpus-per-task=1, the second task.
const std::string kTaskWithItsGpu =
    "CUDA_VISIBLE_DEVICES=1 SLURM_GPUS_ON_NODE=2 SLURM_JOB_ID=2 SLURM_JOB_NODELIST=node1 SLURM_JOB_NUM_NODES=1 SLURM_LOCALID=1 "
    "SLURM_NNODES=1 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_STEPID=0 SLURM_STEP_GPUS=1 SLURM_STEP_ID=0 "
    "SLURM_STEP_NODELIST=node1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_TASKS_PER_NODE=2";
// sbatch --nodes=2 --ntasks-per-node=1 --cpus-per-task=2 --gpus-per-node=1, in the script.
const std::string kBatchScript =
    "SLURM_CPUS_PER_TASK=2 SLURM_GPUS_ON_NODE=1 SLURM_GPUS_PER_NODE=1 SLURM_JOB_ID=4 SLURM_JOB_NODELIST=node[1-2] "
    "SLURM_JOB_NUM_NODES=2 SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=1 SLURM_PROCID=0 "
    "SLURM_TASKS_PER_NODE=1(x2)";
// sbatch --nodes=1, called in a step of four tasks on two nodes: the script.
const std::string kBatchScriptOfAStep =
    "SLURM_CPUS_PER_TASK=1 SLURM_JOB_ID=9 SLURM_JOB_NODELIST=node1 SLURM_JOB_NUM_NODES=1 SLURM_LOCALID=0 SLURM_NNODES=1 "
    "SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_NTASKS_PER_NODE=2 SLURM_PROCID=0 SLURM_STEPID=0 SLURM_STEP_ID=0 "
    "SLURM_STEP_NODELIST=node[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) "
    "SLURM_TASKS_PER_NODE=1";
// salloc --nodes=2.
const std::string kShellOfSalloc =
    "SLURM_JOB_ID=5 SLURM_JOB_NODELIST=node[1-2] SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_TASKS_PER_NODE=1(x2)";
// The same with LaunchParameters=use_interactive_step.
const std::string kInteractiveStep =
    "SLURM_JOB_ID=1 SLURM_JOB_NODELIST=node[1-2] SLURM_JOB_NUM_NODES=2 SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=0 "
    "SLURM_PROCID=0 SLURM_PTY_PORT=40739 SLURM_STEPID=4294967290 SLURM_STEP_ID=4294967290 SLURM_STEP_NODELIST=node1 "
    "SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_TASKS_PER_NODE=1(x2)";
// srun --nodes=2 --pty, the task with the terminal.
const std::string kTerminal =
    "SLURM_JOB_ID=6 SLURM_JOB_NODELIST=node[1-2] SLURM_JOB_NUM_NODES=2 SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=0 "
    "SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_PTY_PORT=39775 SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[1-2] "
    "SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_TASKS_PER_NODE=1(x2)";
// srun --nodes=1 --ntasks=1 in a batch script of two nodes.
const std::string kStepOfOneNode =
    "SLURM_CPUS_PER_TASK=2 SLURM_GPUS_ON_NODE=1 SLURM_JOB_ID=4 SLURM_JOB_NODELIST=node[1-2] SLURM_JOB_NUM_NODES=2 "
    "SLURM_LOCALID=0 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_STEPID=0 SLURM_STEP_ID=0 "
    "SLURM_STEP_NODELIST=node1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_TASKS_PER_NODE=1";

LaunchPlan placed(const SchedulerTable& table, const Line& line, const std::string& config = {}, int gpus = 0) {
  MachineFacts facts;
  facts.gpus = gpus;
  facts.physical_cores = 16;
  facts.reserve_port = [](int) { return true; };
  facts.reserve_free_port = [] { return 41234; };
  const Environment environment = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = table.find(name);
    return found == table.end() ? std::nullopt : std::optional(found->second);
  };
  const Config file = config.empty() ? Config{} : parse_config(config, "config.yaml");
  return plan_command(parse_launch_arguments(line), config.empty() ? nullptr : &file.fields, environment, facts);
}

std::string told_of(const LaunchPlan& plan) {
  std::string text;
  for (const std::string& note : plan.notes) text += note + "\n";
  return text;
}

std::string place_refusal(const SchedulerTable& table, const Line& line, const std::string& config = {}) {
  return message_of<Error>([&] { placed(table, line, config); });
}

/// "rank/world local/local node/nodes" of each worker, or "alone".
std::string ranks_of(const LaunchPlan& plan) {
  std::string text;
  for (const WorkerPlan& worker : plan.workers) {
    const auto value = [&](const char* name) { return worker.variables.contains(name) ? worker.variables.at(name) : "none"; };
    if (!text.empty()) text += ", ";
    text += value("RANK") + "/" + value("WORLD_SIZE") + " " + value("LOCAL_RANK") + "/" + value("LOCAL_WORLD_SIZE") + " " +
            value("GROUP_RANK") + "/" + value("GROUP_WORLD_SIZE");
  }
  return text;
}

TEST(ClusterPlace, ALauncherOfAStepKnowsItsNodes) {
  const LaunchPlan plan = placed(variables_in(kLauncherOfANode), {"--nproc_per_node", "2", "train"});
  EXPECT_EQ(ranks_of(plan), "2/4 0/2 1/2, 3/4 1/2 1/2");
  ASSERT_TRUE(plan.machines);
  EXPECT_EQ(plan.machines->rank, 1);
  EXPECT_EQ(plan.machines->count, 2);
  EXPECT_EQ(plan.machines->address, "node1");
  EXPECT_EQ(plan.machines->port, 21234);
  EXPECT_EQ(plan.machines->job, "slurm-1234.0");
  EXPECT_EQ(plan.workers.front().variables.at("ACCELERATE_RUN_ID"), "slurm-1234.0") << "ranks of another job are refused too";
  EXPECT_EQ(plan.workers.front().variables.at("TORCHELASTIC_RUN_ID"), "none");
  EXPECT_EQ(told_of(plan), "");
  const LaunchPlan of_user = placed(variables_in(kLauncherOfANode, {{"ACCELERATE_RUN_ID", "mine"}}), {"train"});
  EXPECT_EQ(of_user.machines->job, "mine");
  EXPECT_FALSE(of_user.workers.front().variables.contains("ACCELERATE_RUN_ID")) << "they inherit it";
}

TEST(ClusterPlace, ItHasAProcessForEachGpuOfTheAllocation) {
  EXPECT_EQ(ranks_of(placed(variables_in(kLauncherOfANode), {"train"}, {}, 2)), "2/4 0/2 1/2, 3/4 1/2 1/2");
  EXPECT_EQ(ranks_of(placed(variables_in(kLauncherOfANode), {"train"}, {}, 8)), "2/4 0/2 1/2, 3/4 1/2 1/2")
      << "not for those of others";
  EXPECT_EQ(ranks_of(placed(variables_in(kLauncherOfANode), {"--cpu", "train"}, {}, 2)), "1/2 0/1 1/2");
  EXPECT_EQ(ranks_of(placed(variables_in(kLauncherOfANode), {"train"})), "1/2 0/1 1/2");
}

TEST(ClusterPlace, TheCommandLineComesBeforeTheAllocationAndThatBeforeTheFile) {
  const std::string file =
      "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 8\nnum_machines: 2\nmachine_rank: 0\nmain_process_ip: "
      "elsewhere\nmain_process_port: 4000\n";
  const LaunchPlan plan = placed(variables_in(kLauncherOfANode), {"train"}, file);
  EXPECT_EQ(plan.workers.size(), 4U) << "of a file for as many machines, as it is";
  EXPECT_EQ(plan.machines->rank, 1);
  EXPECT_EQ(plan.machines->address, "node1");
  EXPECT_EQ(plan.machines->port, 21234);
  const LaunchPlan by_line = placed(
      variables_in(kLauncherOfANode),
      {"--main_process_ip", "10.0.0.1", "--main_process_port", "5000", "--machine_rank", "0", "--num_processes", "2", "train"},
      file);
  EXPECT_EQ(ranks_of(by_line), "0/2 0/1 0/2");
  EXPECT_EQ(by_line.machines->address, "10.0.0.1");
  EXPECT_EQ(by_line.machines->port, 5000);
  EXPECT_EQ(placed(variables_in(kLauncherOfANode), {"train"}, file + "rdzv_backend: c10d\n").machines->rank, 1)
      << "Slurm numbers the machines";
  EXPECT_EQ(placed(variables_in(kLauncherOfANode), {"--rdzv_backend", "c10d", "train"}, file).machines->rank, std::nullopt);
}

TEST(ClusterPlace, ACountOfTheFileFollowsTheNumberOfMachines) {
  const std::string file = "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 4\n";
  const LaunchPlan plan = placed(variables_in(kLauncherOfANode), {"train"}, file);
  EXPECT_EQ(plan.workers.size(), 4U);
  EXPECT_EQ(plan.workers.front().variables.at("WORLD_SIZE"), "8");
  expect_parts(told_of(plan),
               {"the config file has num_processes 4 for num_machines 1: the 2 machines of Slurm step 1234.0 start 4 "
                "each, 8 in all."});
  const LaunchPlan smaller = placed(variables_in(kStepOfOneNode), {"train"}, file + "num_machines: 2\nmain_process_ip: a\n");
  EXPECT_EQ(ranks_of(smaller), "0/2 0/2 0/1, 1/2 1/2 0/1");
  expect_parts(told_of(smaller), {"the one machine of Slurm step 4.0 starts 2 each, 2 in all."});
}

TEST(ClusterPlace, MachinesThatContradictTheStepAreRefused) {
  const SchedulerTable table = variables_in(kLauncherOfANode);
  expect_parts(place_refusal(table, {"--num_machines", "3", "train"}),
               {"--num_machines is 3, but Slurm step 1234.0 has 2 nodes: leave it out"});
  EXPECT_EQ(ranks_of(placed(table, {"--cpu", "--num_machines", "2", "train"})), "1/2 0/1 1/2");
  EXPECT_EQ(ranks_of(placed(table, {"--cpu", "--num_machines", "4", "--machine_rank", "3", "--main_process_ip", "a", "train"})),
            "3/4 0/1 3/4")
      << "who says all of it knows better";
  EXPECT_FALSE(placed(table, {"--cpu", "--num_machines", "1", "train"}).machines);
  EXPECT_FALSE(placed(table, {"--cpu", "--standalone", "train"}).machines);
  EXPECT_EQ(ranks_of(placed(variables_in(kStepOfOneNode),
                            {"--cpu", "--num_machines", "2", "--machine_rank", "1", "--main_process_ip", "a", "train"})),
            "1/2 0/1 1/2")
      << "a step of its own for each launcher";
}

TEST(ClusterPlace, ATaskStartsItsOneProcess) {
  const LaunchPlan plan = placed(variables_in(kTask), {"--cpu", "train"});
  EXPECT_EQ(ranks_of(plan), "1/3 1/2 0/2");
  EXPECT_EQ(plan.machines->count, 3) << "launchers";
  EXPECT_EQ(plan.machines->rank, 1);
  EXPECT_EQ(plan.machines->address, "node1");
  EXPECT_EQ(plan.machines->port, 21234);
  EXPECT_EQ(plan.workers.front().variables.at("OMP_NUM_THREADS"), "3") << "half of 6 CPUs";
  const LaunchPlan one_node = placed(variables_in(kTaskWithItsGpu), {"train"}, {}, 1);
  EXPECT_EQ(ranks_of(one_node), "1/2 1/2 0/1");
  EXPECT_EQ(one_node.machines->address, "127.0.0.1") << "its own node, whatever it is called";
  EXPECT_EQ(ranks_of(placed(variables_in(kTask), {"--cpu", "--num_processes", "3", "--num_machines", "2", "train"})),
            "1/3 1/2 0/2");
  EXPECT_EQ(ranks_of(placed(variables_in(kTask), {"--cpu", "--nproc_per_node", "2", "train"})), "1/3 1/2 0/2");
  EXPECT_EQ(ranks_of(placed(variables_in(kTask), {"train"}, "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 8\n")),
            "1/3 1/2 0/2");
  EXPECT_FALSE(placed(variables_in(kTask), {"--cpu", "--standalone", "--num_processes", "4", "train"}).machines);
}

TEST(ClusterPlace, CountsThatContradictTheTasksAreRefusedWithTheLineToWrite) {
  expect_parts(place_refusal(variables_in(kTask), {"--cpu", "--num_processes", "4", "train"}),
               {"--num_processes is 4, but Slurm step 1234.0 has 3 tasks, and each starts one process",
                "`srun --ntasks-per-node=1 accelerate launch --num_processes 4 ...`"});
  expect_parts(place_refusal(variables_in(kTask), {"--cpu", "--nproc_per_node", "4", "train"}),
               {"--nproc_per_node is 4, but Slurm step 1234.0 has 2 tasks on this node",
                "`srun --ntasks-per-node=1 accelerate launch --nproc_per_node 4 ...`"});
}

TEST(ClusterPlace, OutsideOfStepsALaunchIsOnOneMachine) {
  struct Case {
    std::string variables, note;
  };
  const std::vector<Case> cases = {
      {kBatchScript, "this Slurm job has 2 nodes, and this launch is on one of them: `srun --ntasks-per-node=1 accelerate"},
      {kBatchScriptOfAStep, ""},
      {kInteractiveStep, "this Slurm job has 2 nodes, and this launch is on one of them"},
      {kTerminal, "this Slurm job has 2 nodes, and this launch is on one of them"},
      {kShellOfSalloc, "this shell has the Slurm allocation 5 (2 nodes), but may run on another host: `srun"},
  };
  const std::string file = "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 4\nnum_machines: 2\nmain_process_ip: a\n";
  for (const Case& each : cases) {
    const LaunchPlan plan = placed(variables_in(each.variables), {"--cpu", "--num_processes", "2", "train"});
    EXPECT_EQ(ranks_of(plan), "0/2 0/2 0/1, 1/2 1/2 0/1") << each.variables;
    EXPECT_FALSE(plan.machines);
    EXPECT_EQ(told_of(plan).substr(0, each.note.size()), each.note) << each.variables;
    EXPECT_FALSE(placed(variables_in(each.variables), {"train"}, file).machines) << "the other machine has no launcher";
    const LaunchPlan by_hand =
        placed(variables_in(each.variables), {"--cpu", "--num_machines", "2", "--main_process_ip", "a", "train"});
    EXPECT_TRUE(by_hand.machines) << "as with pdsh";
    EXPECT_EQ(told_of(by_hand), "");
  }
  EXPECT_EQ(told_of(placed(variables_in(kStepOfOneNode), {"--cpu", "train"})), "") << "somebody has chosen one node";
  EXPECT_EQ(placed(variables_in(kBatchScript), {"train"}, {}, 8).workers.size(), 1U) << "one GPU is given to the job";
}

TEST(ClusterPlace, ALaunchThatIsAPartOfAnotherStandsAlone) {
  EXPECT_FALSE(placed(variables_in(kLauncherOfANode, {{"ACCELERATE_LAUNCH_ID", "1f"}}), {"--cpu", "train"}).machines)
      << "made by a rank";
  // The agents of mpirun are a step of one task a node.
  EXPECT_FALSE(
      placed(variables_in(kLauncherOfANode, {{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}}), {"--cpu", "train"})
          .machines);
  EXPECT_TRUE(placed(variables_in(kLauncherOfANode, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), {"--cpu", "train"}).machines)
      << "srun --mpi=pmi2";
}

TEST(ClusterPlace, DeepSpeedsOwnLauncherIsNotNeededInAStep) {
  const LaunchPlan plan =
      placed(variables_in(kLauncherOfANode), {"--use_deepspeed", "--zero_stage", "2", "--num_processes", "4", "train.py"});
  EXPECT_EQ(plan.workers.front().argv.front(), "python3");
  EXPECT_EQ(ranks_of(plan), "2/4 0/2 1/2, 3/4 1/2 1/2");
}

TEST(ClusterPlace, TorchrunsVariablesAreDefaults) {
  const SchedulerTable table = {{"PET_NNODES", "2"},       {"PET_NODE_RANK", "1"},       {"PET_NPROC_PER_NODE", "2"},
                                {"PET_MASTER_ADDR", "w0"}, {"PET_MASTER_PORT", "23456"}, {"PET_MAX_RESTARTS", "3"},
                                {"PET_RDZV_ID", "job"}};
  const LaunchPlan plan = placed(table, {"--cpu", "train"});
  EXPECT_EQ(ranks_of(plan), "2/4 0/2 1/2, 3/4 1/2 1/2");
  EXPECT_EQ(plan.machines->address, "w0");
  EXPECT_EQ(plan.machines->port, 23456);
  EXPECT_EQ(plan.machines->job, "job");
  EXPECT_EQ(plan.max_restarts, 3);
  EXPECT_EQ(ranks_of(placed(table, {"--cpu", "--num_processes", "2", "--machine_rank", "0", "train"})), "0/2 0/1 0/2");
  const SchedulerTable elastic = {{"PET_NNODES", "1:2"},
                                  {"PET_RDZV_BACKEND", "c10d"},
                                  {"PET_RDZV_ENDPOINT", "[fe80::1]:2000"},
                                  {"PET_NPROC_PER_NODE", "auto"},
                                  {"PET_RDZV_ID", "none"}};
  const LaunchPlan at_endpoint = placed(elastic, {"--cpu", "train"});
  ASSERT_TRUE(at_endpoint.machines);
  EXPECT_EQ(at_endpoint.machines->rank, std::nullopt) << "machines are numbered as they join";
  EXPECT_EQ(at_endpoint.machines->least, 1);
  EXPECT_EQ(at_endpoint.machines->count, 2);
  EXPECT_EQ(at_endpoint.machines->job, "train");
  EXPECT_EQ(at_endpoint.machines->address, "fe80::1");
  EXPECT_EQ(at_endpoint.machines->port, 2000);
}

TEST(ClusterPlace, AnIndexedJobGivesTheRankOfTheMachine) {
  const SchedulerTable table = {{"JOB_COMPLETION_INDEX", "2"}};
  EXPECT_EQ(ranks_of(placed(table, {"--cpu", "--num_machines", "3", "--main_process_ip", "a", "train"})), "2/3 0/1 2/3");
  EXPECT_EQ(ranks_of(placed(table, {"--cpu", "--num_machines", "3", "--machine_rank", "1", "--main_process_ip", "a", "train"})),
            "1/3 0/1 1/3");
  EXPECT_FALSE(placed(table, {"--cpu", "train"}).machines) << "an array of jobs of one machine each";
}

/// The words behind `accelerate launch` in the container of a manifest in examples/clusters.
Line line_of_manifest(const std::string& name) {
  for (const YAML::Node& document : YAML::LoadAllFromFile(ACCELERATE_TEST_GOLDEN "/../../examples/clusters/" + name)) {
    const YAML::Node spec = document["spec"];
    const YAML::Node pod = spec["pytorchReplicaSpecs"] ? spec["pytorchReplicaSpecs"]["Worker"]["template"] : spec["template"];
    if (!pod) continue;
    auto command = pod["spec"]["containers"][0]["command"].as<Line>();
    EXPECT_EQ(Line(command.begin(), command.begin() + 2), (Line{"accelerate", "launch"})) << name;
    return {command.begin() + 2, command.end()};
  }
  ADD_FAILURE() << name << " has no container";
  return {};
}

TEST(ClusterManifests, AreLaunchesOnMachinesOfEightGpus) {
  const LaunchPlan indexed = placed({{"JOB_COMPLETION_INDEX", "2"}}, line_of_manifest("indexed_job.yaml"), {}, 8);
  ASSERT_EQ(indexed.workers.size(), 8u);
  EXPECT_EQ(indexed.workers[3].rank, 19);
  EXPECT_EQ(indexed.machines->rank, 2);
  EXPECT_EQ(indexed.machines->address, "train-0.train");
  // As the operator sets them for the manifest's elasticPolicy.
  const SchedulerTable operators = {{"PET_NNODES", "2:4"},
                                    {"PET_NPROC_PER_NODE", "8"},
                                    {"PET_RDZV_BACKEND", "c10d"},
                                    {"PET_RDZV_ENDPOINT", "train-worker-0:23456"},
                                    {"PET_MAX_RESTARTS", "3"},
                                    {"MASTER_ADDR", "train-worker-0"},
                                    {"MASTER_PORT", "23456"},
                                    {"WORLD_SIZE", "4"},
                                    {"RANK", "1"},
                                    {"PYTHONUNBUFFERED", "0"}};
  const LaunchPlan elastic = placed(operators, line_of_manifest("pytorch_job.yaml"), {}, 8);
  ASSERT_EQ(elastic.workers.size(), 8u);
  EXPECT_FALSE(elastic.machines->rank);
  EXPECT_EQ(elastic.machines->fewest(), 2);
  EXPECT_EQ(elastic.machines->count, 4);
  EXPECT_EQ(elastic.machines->address, "train-worker-0");
  EXPECT_EQ(elastic.max_restarts, 3);
}

TEST(ClusterPlace, WhatCannotBeUnderstoodIsNamed) {
  expect_parts(place_refusal({{"PET_NNODES", "1:x"}}, {"--cpu", "train"}), {"PET_NNODES=x: expected an integer"});
  expect_parts(place_refusal({{"PET_NNODES", "two"}}, {"--cpu", "train"}), {"PET_NNODES=two: expected an integer"});
  expect_parts(place_refusal({{"PET_NNODES", "2"}, {"PET_MASTER_ADDR", "a"}}, {"--cpu", "train"}),
               {"nothing says which of them this is: set PET_NODE_RANK, or give --machine_rank"});
  expect_parts(place_refusal({{"PET_RDZV_ENDPOINT", "a:x"}}, {"--cpu", "train"}), {"'a:x'; give HOST:PORT"});
  expect_parts(place_refusal({{"PET_NNODES", "0"}}, {"--cpu", "train"}), {"PET_NNODES=0: expected a number of nodes"});
  expect_parts(place_refusal({{"JOB_COMPLETION_INDEX", "x"}}, {"--cpu", "train"}), {"JOB_COMPLETION_INDEX=x"});
  expect_parts(place_refusal(variables_in(kLauncherOfANode, {{"SLURM_STEP_NODELIST", "node[1-"}}), {"--cpu", "train"}),
               {"SLURM_STEP_NODELIST=node[1-: expected a list of hosts"});
}

TEST(ClusterPlace, TheCommandLineReadsItFromItsEnvironment) {
  std::map<std::string, std::optional<std::string>> environment;
  for (const auto& [name, value] : variables_in(kLauncherOfANode, {{"SLURM_STEP_NODELIST", "localhost,other"}}))
    environment[name] = value;
  const ProgramResult result =
      run_program({ACCELERATE_CLI, "launch", "--cpu", "--dry_run", "train"}, {.environment = environment});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  expect_parts(result.output, {"# machine 1 of 2: all begin when they have joined at localhost:21234", "WORLD_SIZE=2"});
}

}  // namespace
}  // namespace accelerate::testing
