// Launches on several machines: a launcher for each, on the loopback interface of this one.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>

#include "support/error_text.h"
#include "support/held_port.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace {

using accelerate::testing::expect_parts;
using accelerate::testing::HeldPort;
using accelerate::testing::ProgramResult;
using accelerate::testing::RunningProgram;
using accelerate::testing::TemporaryFolder;

class MachineLaunches : public ::testing::Test {
 protected:
  /// A launcher of two ranks.
  void start(int machine, int machines, const std::vector<std::string>& program, const std::vector<std::string>& flags = {}) {
    std::vector<std::string> line = {ACCELERATE_CLI,
                                     "launch",
                                     "--cpu",
                                     "--num_cpu_threads_per_process",
                                     "1",
                                     "--num_machines",
                                     std::to_string(machines),
                                     "--machine_rank",
                                     std::to_string(machine),
                                     "--main_process_ip",
                                     "127.0.0.1",
                                     "--main_process_port",
                                     port_.text(),
                                     "--num_processes",
                                     std::to_string(2 * machines)};
    line.insert(line.end(), flags.begin(), flags.end());
    line.insert(line.end(), program.begin(), program.end());
    launchers_.push_back(std::make_unique<RunningProgram>(line));
  }
  /// One that is numbered as it joins; all run the same command.
  void start_numbered(const std::string& machines, const std::vector<std::string>& program,
                      const std::vector<std::string>& flags = {}) {
    std::vector<std::string> line = {ACCELERATE_CLI,
                                     "launch",
                                     "--cpu",
                                     "--num_cpu_threads_per_process",
                                     "1",
                                     "--rdzv_backend",
                                     "c10d",
                                     "--nnodes",
                                     machines,
                                     "--nproc_per_node",
                                     "2",
                                     "--rdzv_endpoint",
                                     "127.0.0.1:" + port_.text(),
                                     "--rdzv_conf",
                                     "last_call_timeout=1,timeout=60"};
    line.insert(line.end(), flags.begin(), flags.end());
    line.insert(line.end(), program.begin(), program.end());
    launchers_.push_back(std::make_unique<RunningProgram>(line));
  }
  void start_all(int machines, const std::vector<std::string>& program, const std::vector<std::string>& flags = {}) {
    for (int machine = 0; machine < machines; ++machine) start(machine, machines, program, flags);
  }
  std::vector<ProgramResult> results() {
    std::vector<ProgramResult> results;
    for (auto& launcher : launchers_) results.push_back(launcher->wait());
    return results;
  }

  const HeldPort port_;
  std::vector<std::unique_ptr<RunningProgram>> launchers_;
};

TEST_F(MachineLaunches, TheFirstFailureEndsAllAndIsNamedOnEachOfThem) {
  start_all(3, {"sh", "-c", "if [ $RANK = 3 ]; then echo up; sleep 0.2; exit 3; fi; sleep 50"});
  for (int machine = 0; const auto& result : results()) {
    EXPECT_EQ(result.exit_code, 3) << result.errors;
    EXPECT_LT(result.seconds, 30);
    if (machine == 1) {
      expect_parts(result.errors, {"rank 3 failed with exit code 3 after", "stopping the other rank"});
    } else {
      expect_parts(result.errors,
                   {"rank 3 on machine 1 (", ") failed with exit code 3 after", "stopping the ranks of this machine"});
    }
    ++machine;
  }
}

TEST_F(MachineLaunches, ARankThatDiesIsBlamedWhereverCollectivesFailed) {
  const TemporaryFolder folder;
  start_all(2, {ACCELERATE_SCENES, "killed_in_a_barrier", folder.name()});
  const auto all = results();
  for (const auto& result : all) EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.errors;
  expect_parts(all[0].errors, {"rank 3 on machine 1 (", "was killed by SIGKILL"});
  expect_parts(all[1].errors, {"rank 3 was killed by SIGKILL"});
}

TEST_F(MachineLaunches, AMachineThatIsKilledIsReplacedAndTheRunIsRestarted) {
  const std::vector<std::string> program = {
      "sh", "-c", "echo rank $RANK restart $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 50"};
  start_all(2, program, {"--max_restarts", "1"});
  for (auto& each : launchers_) each->wait_for_output("restart 0", 2);
  launchers_[1]->signal(SIGKILL);
  start(1, 2, program, {"--max_restarts", "1"});
  const auto all = results();
  EXPECT_EQ(all[0].exit_code, 0) << all[0].errors;
  EXPECT_EQ(all[2].exit_code, 0) << all[2].errors;
  expect_parts(all[0].errors, {"machine 1 (", "was lost", "attempt 2 of 2"});
  expect_parts(all[0].output, {"rank 0 restart 1", "rank 1 restart 1"});
  expect_parts(all[2].output, {"rank 2 restart 1", "rank 3 restart 1"});
}

TEST_F(MachineLaunches, TheLossOfMachine0EndsTheOthers) {
  start_all(2, {"sh", "-c", "echo up; sleep 50"});
  for (auto& each : launchers_) each->wait_for_output("up", 2);
  launchers_[0]->signal(SIGKILL);
  const auto all = results();
  EXPECT_EQ(all[1].exit_code, 1);
  expect_parts(all[1].errors, {"machine 0 (127.0.0.1) was lost", "stopping the ranks of this machine"});
  EXPECT_LT(all[1].seconds, 30);
}

TEST_F(MachineLaunches, ASignalToOneEndsAll) {
  start_all(2, {"sh", "-c", "echo up; sleep 50"});
  for (auto& each : launchers_) each->wait_for_output("up", 2);
  launchers_[1]->signal(SIGTERM);
  const auto all = results();
  for (const auto& result : all) EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.errors;
  expect_parts(all[0].errors, {"machine 1 (", "was stopped by SIGTERM"});
}

TEST_F(MachineLaunches, RanksThatFailAfterThoseOfOtherMachinesHaveEndedAreNoSuccess) {
  start_all(2, {"sh", "-c", "echo up; if [ $RANK = 3 ]; then sleep 0.5; exit 5; fi"});
  const auto all = results();
  for (const auto& result : all) EXPECT_EQ(result.exit_code, 5) << result.errors;
  expect_parts(all[0].errors, {"rank 3 on machine 1 (", "exit code 5"});
}

TEST_F(MachineLaunches, AMachineThatIsMissingIsNamedInBoundedTime) {
  start(0, 2, {"true"}, {"--rdzv_conf", "timeout=1"});
  start(1, 3, {"true"}, {"--rdzv_conf", "timeout=1"});
  const auto all = results();
  EXPECT_EQ(all[0].exit_code, 1);
  expect_parts(all[0].errors, {"machine 1 did not join at 127.0.0.1:" + port_.text()});
  EXPECT_EQ(all[1].exit_code, 1);
  expect_parts(all[1].errors, {"refused by machine 0", "--num_machines 2"});
}

TEST_F(MachineLaunches, TheSameCommandOnAllOfThemNumbersTheirRanks) {
  for (int i = 0; i < 3; ++i) start_numbered("3", {"sh", "-c", "echo rank $RANK of $WORLD_SIZE on $GROUP_RANK"});
  std::string output;
  for (const auto& result : results()) {
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    output += result.output;
  }
  for (int rank = 0; rank < 6; ++rank)
    expect_parts(output, {"rank " + std::to_string(rank) + " of 6 on " + std::to_string(rank / 2)});
}

TEST_F(MachineLaunches, GrowAndShrinkAsMachinesJoinAndLeave) {
  const std::vector<std::string> program = {"sh", "-c",
                                            "echo rank $RANK of $WORLD_SIZE in $TORCHELASTIC_RESTART_COUNT; sleep 50"};
  start_numbered("1:2", program);
  launchers_[0]->wait_for_output("rank 1 of 2 in 0");
  start_numbered("1:2", program);
  launchers_[0]->wait_for_output("rank 1 of 4 in 1");
  launchers_[1]->wait_for_output("rank 3 of 4 in 1");
  launchers_[1]->signal(SIGTERM);
  launchers_[0]->wait_for_output("rank 1 of 2 in 2");
  launchers_[0]->signal(SIGTERM);
  const auto all = results();
  EXPECT_EQ(all[0].exit_code, 128 + SIGTERM);
  EXPECT_EQ(all[1].exit_code, 128 + SIGTERM);
  expect_parts(all[0].errors, {"has joined: all ranks are started again", "was stopped by SIGTERM"});
}

TEST_F(MachineLaunches, AFailedRankEndsThoseThatMayGrowToo) {
  for (int i = 0; i < 2; ++i)
    start_numbered("1:2", {"sh", "-c", "echo up; if [ $RANK = 3 ]; then sleep 0.2; exit 5; fi; sleep 50"},
                   {"--max_restarts", "1"});
  for (const auto& result : results()) {
    EXPECT_EQ(result.exit_code, 5) << result.errors;
    expect_parts(result.errors, {"attempt 2 of 2", "failed with exit code 5"});
  }
}

TEST_F(MachineLaunches, TwoMachinesTrainAsOneDoes) {
  const TemporaryFolder folder;
  const auto line_of = [](const std::string& output) { return output.substr(output.find("tensors "), output.find('\n')); };
  const auto one = accelerate::testing::run_program({ACCELERATE_CLI, "launch", "--cpu", "--num_cpu_threads_per_process", "1",
                                                     "--num_processes", "4", "--main_process_port", "0",
                                                     ACCELERATE_EXAMPLES "/sharded", folder / "one.safetensors"});
  ASSERT_EQ(one.exit_code, 0) << one.errors;
  start_all(2, {ACCELERATE_EXAMPLES "/sharded", folder / "two.safetensors"});
  const auto two = results();
  for (const auto& result : two) EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(line_of(two[0].output), line_of(one.output));
}

}  // namespace
