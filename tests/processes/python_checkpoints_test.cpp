// Checkpoints that go from Python Accelerate to here and back.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace {

using accelerate::testing::ProgramResult;
using accelerate::testing::run_program;
using accelerate::testing::TemporaryFolder;

class CheckpointExchange : public ::testing::Test {
 protected:
  /// The peer of that language on `processes` processes: see checkpoint_peer.py for what it does.
  ProgramResult peer(bool python, int processes, const std::string& mode) const {
    std::vector<std::string> line = {ACCELERATE_CLI,
                                     "launch",
                                     "--cpu",
                                     "--num_processes",
                                     std::to_string(processes),
                                     "--main_process_port",
                                     "0",
                                     "--num_cpu_threads_per_process",
                                     "1"};
    if (python) {
      line.insert(line.end(), {ACCELERATE_PYTHON, ACCELERATE_CHECKPOINT_PEER_SCRIPT});
    } else {
      line.push_back(ACCELERATE_CHECKPOINT_PEER);
    }
    line.insert(line.end(), {mode, folder_.name()});
    // An interpreter takes its time to import torch where many tests run at once.
    auto result = run_program(line, {.limit = std::chrono::seconds(180)});
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    return result;
  }

  /// Figures by what they are of: "sgd_cosine 3 0" of a loss.
  static std::map<std::string, double> figures(const std::string& output) {
    std::map<std::string, double> found;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string kind, step, rank;
      double figure = 0;
      if (words >> kind >> step >> rank >> figure) found[kind + " " + step + " " + rank] = figure;
    }
    return found;
  }

  /// Of 27 kinds: three steps on each process, what the first one counted, and its learning rate.
  static size_t figures_of(int processes) { return 27 * (3 * static_cast<size_t>(processes) + 2); }

  /// All that the second run told, the first one has told as well.
  static void expect_continued(const ProgramResult& whole, const ProgramResult& continued, int processes) {
    const auto expected = figures(whole.output), got = figures(continued.output);
    EXPECT_EQ(got.size(), figures_of(processes)) << continued.output << continued.errors;
    for (const auto& [name, figure] : got) {
      const auto other = expected.find(name);
      ASSERT_NE(other, expected.end()) << name;
      // bfloat16 keeps 8 bits, and the kernels of a step round at other places.
      const double tolerance = name.starts_with("bf16 ") && !name.starts_with("bf16 3 ") ? 2e-2 : 1e-6;
      EXPECT_LE(std::abs(figure - other->second), tolerance * std::max(1.0, std::abs(other->second)))
          << name << ": " << figure << " after loading, " << other->second << " in the run that was never stopped";
    }
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointExchange, WhatPythonSavedGoesOnHere) {
  for (const int processes : {1, 2}) {
    const auto python = peer(true, processes, "save");
    expect_continued(python, peer(false, processes, "load"), processes);
  }
  // What two processes saved, on one and on three: other rows, so other losses, of as many steps and from the same sums.
  for (const int processes : {1, 3}) {
    const auto got = figures(peer(false, processes, "load").output);
    EXPECT_EQ(got.size(), figures_of(processes));
  }
}

TEST_F(CheckpointExchange, WhatWasSavedHereGoesOnInPython) {
  for (const int processes : {1, 2}) {
    const auto ours = peer(false, processes, "save");
    const auto python = peer(true, processes, "load");
    expect_continued(ours, python, processes);
    EXPECT_EQ(python.errors.find("Could not load random states"), std::string::npos) << python.errors;
    EXPECT_NE(python.errors.find("All random states loaded successfully"), std::string::npos) << python.errors;
  }
}

TEST_F(CheckpointExchange, PythonsOwnRandomNumbersAreThoseOfTheSeed) {
  peer(false, 1, "seed");
  const auto python = peer(true, 1, "draw");
  const auto loaded = python.output.find("loaded "), seeded = python.output.find("seeded ");
  ASSERT_TRUE(loaded != std::string::npos && seeded != std::string::npos) << python.output << python.errors;
  EXPECT_EQ(python.output.substr(loaded + 7, seeded - loaded - 7), python.output.substr(seeded + 7));
  EXPECT_EQ(python.errors.find("Could not load random states"), std::string::npos) << python.errors;
}

}  // namespace
