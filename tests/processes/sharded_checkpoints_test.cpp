// Checkpoints of sharded runs across numbers of processes, and to and from Python.
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace {

using accelerate::testing::ProgramResult;
using accelerate::testing::run_program;
using accelerate::testing::TemporaryFolder;
using Figures = std::map<std::string, std::string>;

/// What a program tells of weights and optimizer state, by their names.
Figures figures_of(const ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  Figures figures;
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind, name, figure;
    if (words >> kind >> name >> figure) figures[name] = figure;
  }
  return figures;
}

class ShardedCheckpoints : public ::testing::Test {
 protected:
  /// See sharded_peer.cpp.
  Figures run(int processes, const std::string& kind, const std::string& act, const std::string& folder,
              const std::string& to = "") {
    return figures_of(launch(processes, kind, act, folder, to));
  }
  ProgramResult launch(int processes, const std::string& kind, const std::string& act, const std::string& folder,
                       const std::string& to = "") {
    return run_program({ACCELERATE_CLI, "launch", "--cpu", "--num_processes", std::to_string(processes), "--main_process_port",
                        "0", "--num_cpu_threads_per_process", "1", ACCELERATE_SHARDED_PEER, kind, act, folder_ / folder,
                        to.empty() ? "" : folder_ / to},
                       {.limit = std::chrono::seconds(180)});
  }
  Figures python(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {ACCELERATE_PYTHON, ACCELERATE_SHARDED_PEER_SCRIPT});
    return figures_of(run_program(arguments, {.limit = std::chrono::seconds(300)}));
  }

  TemporaryFolder folder_;
};

/// Weights, a buffer, a step and two moments of each parameter, a learning rate.
constexpr size_t kFigures = 6 + 4 * 3 + 1;

TEST_F(ShardedCheckpoints, SavedOnFourProcessesTheyGoThroughAnyNumberAndKindOfRunAndBackToTheBit) {
  const auto saved = run(4, "shards", "train", "four");
  EXPECT_EQ(saved.size(), kFigures);
  EXPECT_EQ(run(3, "shards", "load", "four", "three"), saved);
  EXPECT_EQ(run(2, "whole", "load", "three", "two"), saved);
  EXPECT_EQ(run(1, "shards", "load", "two", "one"), saved);
  EXPECT_EQ(run(1, "plain", "load", "four", "plain"), saved);
  EXPECT_EQ(run(2, "plain", "load", "one", "pair"), saved);
  EXPECT_EQ(run(4, "shards", "load", "pair", "back"), saved);
}

TEST_F(ShardedCheckpoints, ARunWhoseRankIsKilledInABackwardPassResumesOnFewerRanksFromTheNewestCheckpointToTheBit) {
  run(3, "shards", "stop", "undisturbed");
  const auto expected = run(2, "shards", "resume", "undisturbed");
  EXPECT_EQ(expected.at("taken"), "4");
  const auto killed = launch(3, "shards", "kill", "killed");
  EXPECT_NE(killed.exit_code, 0);
  EXPECT_NE((killed.output + killed.errors).find("rank 2"), std::string::npos) << killed.errors;
  EXPECT_EQ(run(2, "shards", "resume", "killed"), expected);
}

TEST_F(ShardedCheckpoints, PythonsFsdpLoadsShardsAndWholeStatesAndWeLoadItsOwn) {
  const auto ours = run(3, "shards", "train", "shards");
  EXPECT_EQ(run(2, "whole", "load", "shards", "whole"), ours);
  for (const char* kind : {"shards", "whole"}) EXPECT_EQ(python({"load", folder_ / kind}), ours) << kind;
  const auto theirs = python({"save", folder_ / "python"});
  EXPECT_EQ(theirs.size(), kFigures);
  EXPECT_EQ(run(3, "shards", "load", "python/shards", "again"), theirs);
  EXPECT_EQ(run(2, "whole", "load", "python/whole", "once_more"), theirs);
  EXPECT_EQ(run(1, "plain", "load", "python/shards", "plain"), theirs);
}

}  // namespace
