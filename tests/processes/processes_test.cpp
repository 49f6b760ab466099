// Whole processes, started the ways people start them. Torch-free: the programs under test are what links torch.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>

#include "support/held_port.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace {

using accelerate::testing::HeldPort;
using accelerate::testing::ProgramResult;
using accelerate::testing::run_program;
using accelerate::testing::RunningProgram;
using accelerate::testing::TemporaryFolder;
using Variables = std::map<std::string, std::optional<std::string>>;

/// Listens on a port as long as it lives, as some other program might.
class Occupied {
 public:
  Occupied() {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    socklen_t size = sizeof(address);
    ::bind(socket_, reinterpret_cast<sockaddr*>(&address), size);
    ::listen(socket_, 16);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin6_port);
  }
  ~Occupied() { ::close(socket_); }
  std::string port() const { return std::to_string(port_); }

 private:
  int socket_ = ::socket(AF_INET6, SOCK_STREAM, 0);
  int port_ = 0;
};

/// On the CPU also where there is a GPU, unless the table says otherwise.
Variables on_cpu(Variables variables) {
  variables.emplace("ACCELERATE_USE_CPU", "true");
  return variables;
}

ProgramResult probe(const std::string& wish, Variables variables = {}) {
  return run_program({ACCELERATE_PROBE, wish}, {.environment = on_cpu(std::move(variables))});
}

ProgramResult launch(int processes, const std::vector<std::string>& program, Variables variables = {}) {
  std::vector<std::string> command = {ACCELERATE_CLI,           "launch", "--cpu", "--main_process_port", "0", "--num_processes",
                                      std::to_string(processes)};
  command.insert(command.end(), program.begin(), program.end());
  return run_program(command, {.environment = std::move(variables), .limit = std::chrono::seconds(100)});
}

int count(const std::string& text, const std::string& part) { return RunningProgram::occurrences(text, part); }

/// Starts one process per table, as a launcher that only sets variables would, and waits for all.
std::vector<ProgramResult> probes(const std::string& wish, const std::vector<Variables>& tables) {
  std::vector<std::unique_ptr<RunningProgram>> running;
  for (const auto& table : tables) {
    running.push_back(std::make_unique<RunningProgram>(std::vector<std::string>{ACCELERATE_PROBE, wish},
                                                       accelerate::testing::RunOptions{.environment = on_cpu(table)}));
  }
  std::vector<ProgramResult> results;
  for (auto& program : running) results.push_back(program->wait());
  return results;
}

void expect_sum(const std::vector<ProgramResult>& results, const std::string& local_of_last) {
  const int size = static_cast<int>(results.size());
  for (int rank = 0; rank < size; ++rank) {
    const auto& result = results[static_cast<size_t>(rank)];
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    EXPECT_NE(result.output.find("rank " + std::to_string(rank) + " of " + std::to_string(size)), std::string::npos)
        << result.output;
    EXPECT_NE(result.output.find(" sum " + std::to_string(size * (size + 1) / 2)), std::string::npos) << result.output;
  }
  EXPECT_NE(results.back().output.find("local " + local_of_last), std::string::npos) << results.back().output;
}

TEST(Starting, WithoutALauncherAProcessIsAlone) {
  const auto result = probe("state");
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(result.output,
            "Distributed environment: DistributedType.NO\nNum processes: 1\nProcess index: 0\nLocal process index: 0\nDevice: "
            "cpu\n\nMixed precision type: no\n\n");
}

TEST(Starting, UnderOurLauncherOneToFourProcessesFindEachOther) {
  for (int n = 1; n <= 4; ++n) {
    const auto result = launch(n, {ACCELERATE_PROBE, "sum"});
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    EXPECT_EQ(count(result.output, " sum " + std::to_string(n * (n + 1) / 2) + "\n"), n) << result.output;
  }
}

TEST(Starting, UnderOpenMpiMpichAndMvapichVariablesProcessesFindEachOther) {
  const std::vector<std::array<std::string, 4>> launchers = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
      {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"}};
  for (const auto& names : launchers) {
    const HeldPort port;
    std::vector<Variables> tables;
    for (const char* rank : {"0", "1"})
      tables.push_back({{names[0], rank}, {names[1], "2"}, {names[2], rank}, {names[3], "2"}, {"MASTER_PORT", port.text()}});
    expect_sum(probes("sum", tables), "1");
  }
}

TEST(Starting, AProgramStartedBySrunJustWorks) {
  // Three tasks on two nodes, as Slurm describes them; here both nodes are this machine.
  std::vector<Variables> tables;
  const HeldPort port;
  for (int rank = 0; rank < 3; ++rank) {
    tables.push_back({{"SLURM_PROCID", std::to_string(rank)},
                      {"SLURM_STEP_NUM_TASKS", "3"},
                      {"SLURM_LOCALID", rank == 2 ? "0" : std::to_string(rank)},
                      {"SLURM_NODEID", rank == 2 ? "1" : "0"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
                      {"SLURM_STEP_NODELIST", "localhost,elsewhere[1-2]"},
                      {"MASTER_PORT", port.text()},
                      {"GLOO_SOCKET_IFNAME", "lo"}});
  }
  expect_sum(probes("sum", tables), "0");
}

TEST(Starting, UnderTheRealTorchrunItsAgentHostsTheStore) {
  const auto result = run_program({ACCELERATE_PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port",
                                   HeldPort().text(), "--no_python", ACCELERATE_PROBE, "sum"},
                                  {.environment = {{"ACCELERATE_USE_CPU", "true"}}, .limit = std::chrono::seconds(120)});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_EQ(count(result.output, " sum 3\n"), 2) << result.output << result.errors;
}

TEST(Starting, RanksMayBeThreadsOfOneProcess) {
  const auto result = probe("threads", {{"MASTER_PORT", HeldPort().text()}});
  EXPECT_EQ(result.output, "right 18\n") << result.errors;
}

TEST(Starting, AHalfEnvironmentIsToldByTheNameThatIsMissing) {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{{"RANK", "0"}}, "RANK is set but WORLD_SIZE is not"},
      {{{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set but RANK is not"},
      {{{"LOCAL_RANK", "0"}}, "LOCAL_RANK is set but RANK is not"},
      {{{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_SIZE is set but OMPI_COMM_WORLD_RANK is not"},
      {{{"SLURM_STEP_NUM_TASKS", "2"}}, "SLURM_STEP_NUM_TASKS is set but SLURM_PROCID is not"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2 is not below WORLD_SIZE=2"},
      {{{"SLURM_PROCID", "5"}, {"SLURM_STEP_NUM_TASKS", "2"}}, "SLURM_PROCID=5 is not below SLURM_STEP_NUM_TASKS=2"},
      {{{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK=x: expected an integer"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "2"}}, "local rank 3 of 2"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not set"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", "99999"}},
       "MASTER_PORT=99999: expected a port"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "no.such.host.invalid"}},
       "MASTER_ADDR=no.such.host.invalid cannot be resolved"},
      {{{"ACCELERATE_MIXED_PRECISION", "bf17"}}, "ACCELERATE_MIXED_PRECISION=bf17: expected one of no, fp16, bf16, fp8"},
      {{{"ACCELERATE_USE_CPU", "maybe"}}, "ACCELERATE_USE_CPU=maybe: expected one of"},
      {{{"ACCELERATE_TORCH_DEVICE", "meta"}, {"ACCELERATE_USE_CPU", "false"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}},
       "no backend for meta tensors"},
      {{{"ACCELERATE_TORCH_DEVICE", "toaster"}, {"ACCELERATE_USE_CPU", "false"}},
       "ACCELERATE_TORCH_DEVICE=toaster: expected a device"},
      {{{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "0"}}, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=0: expected"}};
  for (const auto& [variables, expected] : cases) {
    const auto result = probe("state", variables);
    EXPECT_EQ(result.exit_code, 3) << expected;
    EXPECT_NE(result.output.find(expected), std::string::npos)
        << "expected " << expected << ", got " << result.output << result.errors;
    EXPECT_LT(result.seconds, 30) << expected;
  }
}

TEST(Starting, APortInUseIsToldAtOnce) {
  const Occupied occupied;
  const auto result =
      probe("state", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", occupied.port()}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.output.find("MASTER_PORT=" + occupied.port() + " is already in use"), std::string::npos)
      << result.output << result.errors;
}

TEST(Starting, APeerThatNeverComesIsToldAfterTheTimeout) {
  for (const std::string rank : {"0", "1"}) {
    const auto result = probe("nobody_comes", {{"RANK", rank},
                                               {"WORLD_SIZE", "2"},
                                               {"LOCAL_WORLD_SIZE", "2"},
                                               {"LOCAL_RANK", rank},
                                               {"MASTER_PORT", HeldPort().text()}});
    EXPECT_EQ(result.exit_code, 3) << result.output << result.errors;
    const std::string expected =
        rank == "0" ? "these ranks did not join within 0 s: 1." : "Rank 1 of 2 did not find rank 0 at 127.0.0.1:";
    EXPECT_NE(result.output.find(expected), std::string::npos) << result.output;
    EXPECT_LT(result.seconds, 30);
  }
}

TEST(Starting, AnUnrelatedProcessOnThePortIsNotWaitedForLongerThanTheTimeout) {
  const Occupied occupied;
  const auto result = probe(
      "nobody_comes",
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_PORT", occupied.port()}});
  EXPECT_EQ(result.exit_code, 3) << result.output << result.errors;
  EXPECT_NE(result.output.find("did not find rank 0 at 127.0.0.1:" + occupied.port()), std::string::npos) << result.output;
}

TEST(Failing, ALostPeerIsToldByEveryoneAndTheGroupStaysUnusable) {
  // Started without a launcher, which would end the survivors before they can tell.
  const HeldPort port;
  std::vector<Variables> tables;
  for (const char* rank : {"0", "1", "2"})
    tables.push_back(
        {{"RANK", rank}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", rank}, {"LOCAL_WORLD_SIZE", "3"}, {"MASTER_PORT", port.text()}});
  const auto results = probes("lose_a_peer", tables);
  EXPECT_EQ(results[2].exit_code, 128 + SIGKILL);
  for (int rank : {0, 1}) {
    const auto& text = results[static_cast<size_t>(rank)].output;
    EXPECT_EQ(results[static_cast<size_t>(rank)].exit_code, 0) << text << results[static_cast<size_t>(rank)].errors;
    EXPECT_NE(text.find("gather at "), std::string::npos) << text;
    EXPECT_NE(text.find("processes/probe.cpp:"), std::string::npos) << text;
    EXPECT_NE(text.find("failed on rank " + std::to_string(rank) + " of 3"), std::string::npos) << text;
    EXPECT_NE(text.find("the process group is unusable since gather at"), std::string::npos) << text;
  }
}

TEST(Failing, TheRankThatIsTheCauseIsBlamedAlsoWhenOthersCaughtTheirErrorAndEndedBefore) {
  const auto result = launch(3, {ACCELERATE_PROBE, "the_cause_ends_last"});
  EXPECT_EQ(result.exit_code, 7) << result.output << result.errors;
  EXPECT_EQ(count(result.errors, "accelerate launch: rank "), 1) << result.errors;
  EXPECT_EQ(count(result.errors, "rank 1 failed with exit code 7"), 1) << result.errors;
}

TEST(Failing, APeerThatNeverCallsIsToldAfterTheTimeout) {
  const TemporaryFolder folder;
  const auto result = launch(2, {ACCELERATE_PROBE, "a_peer_never_calls"}, {{"ACCELERATE_TEST_FOLDER", folder.name()}});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_NE(result.output.find("wait_for_everyone at "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("failed on rank 0 of 2"), std::string::npos) << result.output;
}

TEST(Failing, DebugModeTellsWhatEachProcessWanted) {
  const auto result = launch(2, {ACCELERATE_PROBE, "disagree"}, {{"ACCELERATE_DEBUG_MODE", "1"}});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  const std::string output = std::regex_replace(result.output, std::regex(" at [^ ]*probe\\.cpp:[0-9]+"), "");
  for (const char* told : {"  - Rank 0: gather of float32[3, 2]\n  - Rank 1: gather of float32[4, 2]\n",
                           "  - Rank 0: reduce of float64[2] by sum\n  - Rank 1: reduce of float32[2] by sum\n",
                           "  - Rank 1: broadcast of float32[1], float32[2] nested as [tt] from 0\n",
                           "  - Rank 0: reduce of float32[2] by sum\n  - Rank 1: gather of float32[2]\n",
                           "pad_across_processes of dimension 1 nested as t, float32 of 1 dimensions\n",
                           "  - Rank 1: gather of an undefined tensor\n"}) {
    EXPECT_EQ(count(output, told), 1) << told << "in\n" << output;
  }
  EXPECT_EQ(count(result.output, "nothing was thrown"), 0) << result.output;
  EXPECT_EQ(count(result.output, "sum 2\n"), 2) << result.output;
}

TEST(Failing, AnExceptionOnTheMainProcessIsNotHeldUpByItsPeers) {
  const HeldPort port;
  std::vector<Variables> tables;
  for (const char* rank : {"0", "1"})
    tables.push_back(
        {{"RANK", rank}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", rank}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", port.text()}});
  const auto results = probes("main_throws", tables);
  EXPECT_EQ(results[0].output, "thrown\n") << results[0].errors;
  EXPECT_LT(results[0].seconds, results[1].seconds) << "the main process went while the other one still worked";
}

TEST(Failing, AnExceptionInAFunctionThatWasLaunchedReachesTheCaller) {
  const auto result = probe("notebook_exception");
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_TRUE(
      std::regex_match(result.output, std::regex("a worker failed: Rank [01] failed after [0-9.]+ s: boom in a worker\n")))
      << result.output;
  EXPECT_EQ(result.errors, "");
}

TEST(Cuda, FunctionsUseAGpuThatTheirProgramHasNotTouchedAndAreRefusedWhenItHas) {
  const auto result = run_program({ACCELERATE_PROBE, "notebook_on_gpu"});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_EQ(count(result.output, "sum 4 of "), 2) << result.output << result.errors;
  EXPECT_EQ(count(result.output, "here 4\n"), 1) << result.output;
  EXPECT_EQ(count(result.output, "notebook_launcher: this process has initialized CUDA"), 1) << result.output;
}

TEST(Machines, WaitForTheirOwnFirstProcessAndPrintOnceEach) {
  const HeldPort port;
  std::vector<Variables> tables;
  for (int rank = 0; rank < 4; ++rank) {
    tables.push_back({{"RANK", std::to_string(rank)},
                      {"WORLD_SIZE", "4"},
                      {"LOCAL_RANK", std::to_string(rank % 2)},
                      {"LOCAL_WORLD_SIZE", "2"},
                      {"GROUP_RANK", std::to_string(rank / 2)},
                      {"MASTER_ADDR", "127.0.0.1"},
                      {"MASTER_PORT", port.text()},
                      {"GLOO_SOCKET_IFNAME", "lo"}});
  }
  const TemporaryFolder folder;
  for (auto& table : tables) table["ACCELERATE_TEST_FOLDER"] = folder.name();
  const auto results = probes("per_machine", tables);
  for (int rank = 0; rank < 4; ++rank) {
    const auto& text = results[static_cast<size_t>(rank)].output;
    EXPECT_EQ(results[static_cast<size_t>(rank)].exit_code, 0) << text << results[static_cast<size_t>(rank)].errors;
    EXPECT_EQ(count(text, "printed on machine " + std::to_string(rank / 2)), rank % 2 == 0 ? 1 : 0) << text;
  }
  EXPECT_EQ(count(results[1].output, "after its first process"), 1) << "machine 0 waits for its own first process";
}

TEST(Logging, InOrderTakesTurns) {
  const auto result = launch(3, {ACCELERATE_PROBE, "in_order"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  std::string lines;
  for (int round = 0; round < 20; ++round) {
    for (int rank = 0; rank < 3; ++rank)
      lines += "INFO:turns:[RANK " + std::to_string(rank) + "] round " + std::to_string(round) + "\n";
  }
  EXPECT_NE(result.errors.find(lines), std::string::npos) << result.errors;
}

TEST(Ending, TheProcessThatServesTheStoreLeavesLast) {
  for (int n = 2; n <= 4; ++n) {
    const auto result = launch(n, {ACCELERATE_PROBE, "main_leaves_first"});
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    EXPECT_EQ(count(result.output, " left\n"), n) << result.output << result.errors;
  }
}

/// A program as users write it, which ends well and hears no warning.
ProgramResult example(int processes, const std::vector<std::string>& program) {
  auto result = launch(processes, program);
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_EQ(count(result.errors, "WARNING"), 0) << result.errors;
  return result;
}

TEST(Examples, ExecutionSaysEachLineOnce) {
  for (int n = 1; n <= 4; ++n) {
    const auto result = example(n, {ACCELERATE_EXAMPLES "/execution"});
    for (const char* line : {"once per machine\n", "once\n", "once per machine, printed for me\n",
                             "something done once per server\n", "something done once\n", "something done on the last process\n",
                             "something done on process index 0\n", "something done on index 0 on each server\n"}) {
      EXPECT_EQ(count("\n" + result.output, std::string("\n") + line), 1) << line << result.output;
    }
    EXPECT_EQ(count(result.errors, "training: 100% 100/100"), 1) << result.errors;
    EXPECT_EQ(count(result.errors, "by hand: 100% 100/100"), 1) << result.errors;
  }
}

TEST(Examples, DeferringLeavesADatasetAndWeights) {
  for (int n = 1; n <= 4; ++n) {
    const TemporaryFolder temporary;
    const std::string folder = temporary.name();
    const auto result = example(n, {ACCELERATE_EXAMPLES "/deferring", folder});
    EXPECT_TRUE(std::filesystem::exists(folder + "/dataset"));
    EXPECT_TRUE(std::filesystem::exists(folder + "/weights.safetensors"));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 2) << "nothing but the two files is left";
    const auto python = run_program({ACCELERATE_PYTHON, "-c",
                                     "import sys; from safetensors.numpy import load_file; t = load_file(sys.argv[1]); "
                                     "print(sorted((k, tuple(v.shape)) for k, v in t.items()))",
                                     folder + "/weights.safetensors"});
    EXPECT_EQ(python.output, "[('bias', (4,)), ('weight', (4, 4))]\n") << python.errors;
  }
}

TEST(Examples, TheFirstRunLearnsAndDrawsWhatItSaved) {
  for (int n = 1; n <= 3; ++n) {
    const TemporaryFolder folder;
    const auto result = example(n, {ACCELERATE_EXAMPLES "/first_run", folder.name()});
    const auto number = [&](const std::string& before) {
      const auto at = result.output.find(before);
      return at == std::string::npos ? -1 : std::stod(result.output.substr(at + before.size()));
    };
    EXPECT_EQ(count(result.output, "accuracy before training "), 1) << result.output;
    EXPECT_NEAR(number("accuracy before training "), 0.5, 0.1) << "two classes, so chance is a half";
    EXPECT_EQ(count(result.output, "\nepoch "), 8) << result.output;
    EXPECT_LT(number("epoch 8  loss "), number("epoch 1  loss ") / 2) << result.output;
    const auto last = result.output.substr(result.output.find("epoch 8 "));
    EXPECT_GT(std::stod(last.substr(last.find("accuracy ") + 9)), 0.95) << result.output;
    EXPECT_EQ(count(result.errors, "training: 100% "), 1) << result.errors;
    EXPECT_TRUE(std::filesystem::exists(folder / "model.safetensors"));
    EXPECT_TRUE(std::regex_search(last, std::regex("(\n  [.#]{48}){17}\n$"))) << last;
    EXPECT_TRUE(last.find("###") != std::string::npos && last.find("...") != std::string::npos) << last;
  }
}

TEST(Examples, TheQuicktourCountsEverySampleOnce) {
  for (int n = 1; n <= 4; ++n) {
    const auto result = example(n, {ACCELERATE_EXAMPLES "/quicktour"});
    EXPECT_EQ(count(result.output, "seen 509"), 3) << result.output;
    EXPECT_EQ(count(result.output, "\n"), 3) << result.output;
    // Four clusters of which a quarter overlaps: guessing is right once in four.
    EXPECT_TRUE(std::regex_search(result.output, std::regex("epoch 2 seen 509 accuracy 0\\.[78]"))) << result.output;
  }
}

TEST(Examples, EvaluationGathersRaggedPredictionsAndObjects) {
  for (int n = 1; n <= 4; ++n) {
    const auto result = example(n, {ACCELERATE_EXAMPLES "/evaluation"});
    EXPECT_EQ(result.output, "rows 103 different 103 names 103\n");
  }
}

TEST(Examples, TrainingStopsEarlyOnEveryProcess) {
  for (int n = 1; n <= 4; ++n) {
    const auto result = example(n, {ACCELERATE_EXAMPLES "/training"});
    EXPECT_EQ(count(result.output, "updates "), 1) << result.output;
  }
}

TEST(Examples, ShardedTrainingHoldsItsShareOnEveryRankAndSavesTheWholeModel) {
  for (int n = 1; n <= 4; ++n) {
    const TemporaryFolder folder;
    const auto result = example(n, {ACCELERATE_EXAMPLES "/sharded", (folder / "whole.safetensors").string()});
    std::smatch found;
    ASSERT_TRUE(std::regex_match(result.output, found, std::regex("tensors 28 checksum (.*) held (.*) of 536068 bytes\n")))
        << result.output;
    EXPECT_NEAR(std::stod(found[1]), 6650, 20);
    EXPECT_LE(std::stod(found[2]), 536068.0 / n * 1.02);
    EXPECT_GE(std::stod(found[2]), 536068.0 / n);
    EXPECT_GT(std::filesystem::file_size(folder / "whole.safetensors"), 536068U);
  }
}

TEST(Examples, ACheckpointThatIsGoneOnFromEndsAsTheRunThatWasNeverStopped) {
  for (int n = 1; n <= 4; ++n) {
    const TemporaryFolder temporary;
    const std::string folder = temporary.name();
    const auto run = [&](const std::string& place, const std::string& stop_at) {
      const auto result = example(n, {ACCELERATE_EXAMPLES "/checkpoint", folder + place, stop_at});
      return result.output;
    };
    const std::string whole = run("/whole", "0");
    EXPECT_EQ(count(whole, "checksum"), 1) << whole;
    EXPECT_EQ(run("/stopped", "11"), "");
    EXPECT_EQ(run("/stopped", "0"), "resumed from " + folder + "/stopped/checkpoints/checkpoint_0\n" + whole);
    EXPECT_TRUE(std::filesystem::exists(folder + "/stopped/final/model.safetensors.index.json"));
  }
}

TEST(Examples, ABigModelAnswersTheSameWhateverMemoryItMayUse) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.name();
  const auto made = run_program({ACCELERATE_PYTHON, ACCELERATE_BIG_MODEL_PEER, folder + "/checkpoint"});
  ASSERT_EQ(made.exit_code, 0) << made.errors;
  const auto answer = [&](const std::string& limit) {
    const auto result =
        run_program({ACCELERATE_EXAMPLES "/big_model", folder + "/checkpoint", limit, folder + "/offload" + limit});
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    EXPECT_FALSE(std::filesystem::exists(folder + "/offload" + limit)) << "the checkpoint has all that goes to disk";
    return result.output;
  };
  const std::string resident = answer("1GiB"), some = answer("8MiB"), none = answer("1KiB");
  EXPECT_EQ(resident.find(" -> cpu\n"), 0U) << resident;
  EXPECT_EQ(none.find(" -> disk\n"), 0U) << none;
  for (const char* line : {"embedding -> cpu\n", "blocks.1 -> cpu\n", "blocks.7 -> disk\n", "head -> disk\n"})
    EXPECT_EQ(count(some, line), 1) << some;
  const auto checksum = [](const std::string& output) { return std::stod(output.substr(output.find("checksum ") + 9)); };
  EXPECT_EQ(checksum(some), checksum(resident));
  EXPECT_EQ(checksum(none), checksum(resident));
  EXPECT_NEAR(checksum(resident), checksum(made.output), 1e-3)
      << "of a thousand logits by sixteen tokens, in another order of adding";
}

TEST(Examples, GenerateWritesTheTextThatTransformersGenerates) {
  const std::string models = ACCELERATE_TEST_GOLDEN "/models/";
  const auto texts = nlohmann::json::parse(std::ifstream(models + "texts.json"));
  for (const auto& [name, cases] : texts.items()) {
    const auto& entry = cases.at(0);
    const auto result =
        run_program({ACCELERATE_EXAMPLES "/generate", models + name, entry.at("prompt"), "--max_new_tokens", "16"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(result.output, entry.at("text").get<std::string>() + "\n");
  }
}

TEST(Examples, GenerateDrawsByASeedAndSaysWhatIsWrong) {
  const std::string folder = ACCELERATE_TEST_GOLDEN "/models/gpt2";
  const auto generate = [&](std::vector<std::string> words) {
    words.insert(words.begin(), ACCELERATE_EXAMPLES "/generate");
    return run_program(words);
  };
  const auto draw = [&](const char* seed) { return generate({folder, "A token", "--temperature", "5", "--seed", seed}).output; };
  EXPECT_EQ(draw("1"), draw("1"));
  EXPECT_NE(draw("1"), draw("2"));
  const auto expect_fails = [](const ProgramResult& result, int code, const std::string& part) {
    EXPECT_EQ(result.exit_code, code);
    EXPECT_NE(result.errors.find(part), std::string::npos) << result.errors;
  };
  expect_fails(generate({folder, "x", "--top_q", "1"}), 2, "--top_q");
  expect_fails(generate({folder, ""}), 2, "at least one token");
  expect_fails(generate({ACCELERATE_TEST_GOLDEN "/models/nowhere", "x"}), 1, "tokenizer.json cannot be opened");
}

TEST(Examples, TheLauncherTrainsAndReportsAWorkersException) {
  const auto result = run_program({ACCELERATE_EXAMPLES "/launcher"}, {.environment = {{"ACCELERATE_USE_CPU", "true"}}});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_EQ(count(result.output, "trained on 2 processes, bf16\n"), 1) << result.output << result.errors;
  EXPECT_NE(result.output.find("a worker failed: "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("boom in a worker"), std::string::npos) << result.output;
}

}  // namespace
