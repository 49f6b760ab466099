#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include <gtest/gtest.h>

#include <map>

#include "support/error_text.h"

namespace {

using accelerate::ConfigError;
using accelerate::LaunchEnvironment;
using accelerate::testing::message_of;

LaunchEnvironment read(std::map<std::string, std::string> table) {
  return accelerate::read_launch_environment([table = std::move(table)](const std::string& name) -> std::optional<std::string> {
    const auto found = table.find(name);
    return found == table.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string told(std::map<std::string, std::string> table) {
  return message_of<ConfigError>([&] { read(std::move(table)); });
}

TEST(LaunchEnvironment, NothingSetIsASingleProcess) {
  const auto me = read({});
  EXPECT_FALSE(me.launched);
  EXPECT_EQ(me.num_processes, 1);
  EXPECT_EQ(me.launcher, "none");
  EXPECT_FALSE(me.machine.empty());
}

TEST(LaunchEnvironment, TorchrunComesBeforeTheSchedulerItRunsUnder) {
  const auto me = read({{"RANK", "1"},
                        {"WORLD_SIZE", "2"},
                        {"LOCAL_RANK", "1"},
                        {"LOCAL_WORLD_SIZE", "2"},
                        {"SLURM_PROCID", "0"},
                        {"SLURM_STEP_NUM_TASKS", "1"}});
  EXPECT_EQ(me.launcher, "torchrun");
  EXPECT_EQ(me.process_index, 1);
  EXPECT_EQ(me.num_processes, 2);
}

TEST(LaunchEnvironment, OnlyTorchrunsOwnAgentHostsTheStore) {
  std::map<std::string, std::string> table = {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RESTART_COUNT", "3"}};
  EXPECT_FALSE(read(table).agent_hosts_store);
  EXPECT_EQ(read(table).restart_count, 3);
  table["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(read(table).agent_hosts_store);
  table["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_TRUE(read(table).agent_hosts_store);
}

TEST(LaunchEnvironment, ASlurmStepIsReadAndABatchScriptIsNot) {
  std::map<std::string, std::string> table = {
      {"SLURM_PROCID", "4"}, {"SLURM_NTASKS", "6"}, {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "123456"}};
  EXPECT_FALSE(read(table).launched) << "SLURM_NTASKS alone describes the allocation, not this process";
  table["SLURM_STEP_NUM_TASKS"] = "6";
  table["SLURM_NODEID"] = "2";
  table["SLURM_STEP_TASKS_PER_NODE"] = "2(x2),1,1";
  table["SLURM_STEP_NODELIST"] = "gpu[03-05,12],login";
  EXPECT_NE(told(table).find("local rank 1 of 1"), std::string::npos);
  table["SLURM_NODEID"] = "1";
  const auto me = read(table);
  EXPECT_EQ(me.launcher, "Slurm");
  EXPECT_EQ(me.local_num_processes, 2);
  EXPECT_EQ(me.master_address, "gpu03");
  EXPECT_EQ(me.master_port, 20000 + 3456);
  EXPECT_EQ(me.machine, "node1");
  table["SLURM_STEP_ID"] = "4294967290";
  EXPECT_EQ(read(table).master_port, 20000 + (3456 + 7290) % 10000) << "an interactive step, whose number is beyond int";
  table.erase("SLURM_STEP_ID");
  table["SLURM_STEP_NODELIST"] = "alpha,beta[1-2]";
  EXPECT_EQ(read(table).master_address, "alpha");
  table["MASTER_ADDR"] = "10.0.0.1";
  table["MASTER_PORT"] = "1234";
  EXPECT_EQ(read(table).master_address, "10.0.0.1");
  EXPECT_EQ(read(table).master_port, 1234);
  table["SLURM_STEP_TASKS_PER_NODE"] = "two";
  EXPECT_NE(told(table).find("SLURM_STEP_TASKS_PER_NODE=two"), std::string::npos);
}

TEST(LaunchEnvironment, SrunWithAPmiPluginStillKnowsThePlaceOnTheMachine) {
  const std::map<std::string, std::string> table = {{"PMI_RANK", "3"},
                                                    {"PMI_SIZE", "4"},
                                                    {"SLURM_JOB_ID", "12"},
                                                    {"SLURM_STEP_ID", "1"},
                                                    {"SLURM_PROCID", "3"},
                                                    {"SLURM_STEP_NUM_TASKS", "4"},
                                                    {"SLURM_LOCALID", "1"},
                                                    {"SLURM_NODEID", "1"},
                                                    {"SLURM_STEP_NODELIST", "gpu[3-4]"},
                                                    {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
  const auto me = read(table);
  EXPECT_EQ(me.master_address, "gpu3");
  EXPECT_EQ(me.master_port, 20013);
  EXPECT_EQ(me.run_id, "slurm-12.1");
  auto of_mpirun = table;
  of_mpirun["PMI_SIZE"] = "8";
  EXPECT_NE(told(of_mpirun).find("MASTER_ADDR is not set"), std::string::npos) << "whose agents are a step";
  EXPECT_EQ(me.process_index, 3);
  EXPECT_EQ(me.local_process_index, 1);
  EXPECT_EQ(me.local_num_processes, 2);
}

TEST(LaunchEnvironment, OnlyTheLauncherThatIsUsedMustBeComplete) {
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"PMI_RANK", "3"}}).launcher, "torchrun");
  EXPECT_NE(told({{"PMI_RANK", "3"}}).find("PMI_RANK is set but PMI_SIZE is not"), std::string::npos);
  EXPECT_FALSE(read({{"WORLD_SIZE", "1"}}).launched);
}

TEST(LaunchEnvironment, MinusOneMeansNotSetAsInPython) {
  EXPECT_FALSE(read({{"RANK", "-1"}, {"WORLD_SIZE", "-1"}, {"LOCAL_RANK", "-1"}}).launched);
}

TEST(LaunchEnvironment, SeveralMachinesNeedAnAddress) {
  EXPECT_NE(told({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}})
                .find("MASTER_ADDR is not set, but only 2 of the 4"),
            std::string::npos);
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}).master_address,
            "127.0.0.1");
}

TEST(LaunchEnvironment, AJobIsNamedByItsUserThenTorchrunThenSlurm) {
  const auto name = [](std::map<std::string, std::string> more) {
    more.insert({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
    return read(more).run_id;
  };
  EXPECT_EQ(name({}), "");
  EXPECT_EQ(name({{"TORCHELASTIC_RUN_ID", "none"}}), "") << "the name that torchrun gives to those without one";
  EXPECT_EQ(name({{"TORCHELASTIC_RUN_ID", "7"}}), "7");
  EXPECT_EQ(name({{"TORCHELASTIC_RUN_ID", "7"}, {"ACCELERATE_RUN_ID", "mine"}}), "mine");
  EXPECT_EQ(name({{"SLURM_JOB_ID", "5"}}), "") << "the job around a launcher of its own";
  const std::map<std::string, std::string> step = {
      {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_JOB_ID", "5"}, {"SLURM_STEP_ID", "2"}};
  EXPECT_EQ(read(step).run_id, "slurm-5.2");
  auto heterogeneous = step;
  heterogeneous["SLURM_HET_SIZE"] = "2";
  EXPECT_EQ(read(heterogeneous).run_id, "") << "its parts have different numbers";
}

}  // namespace
