// Saves that are cut short: by SIGKILL at random instants, by a process that dies or leaves, by a folder that is closed. Seeded,
// and 20 kills here; `make soak` has 200.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <set>

#include "support/ranks.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using accelerate::testing::ProgramResult;
using accelerate::testing::run_program;
using accelerate::testing::RunningProgram;
using accelerate::testing::start_ranks;
using accelerate::testing::TemporaryFolder;
using accelerate::testing::Variables;

/// What lies in a folder.
std::set<std::string> entries_of(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

// --- Kills ----------------------------------------------------------------------------------------------------------------

constexpr int kKillsOfALaunch = 5;
/// Only what hangs reaches it. Six starts of two processes take 10 s on a free machine, 50 s on one with five times the work it
/// can do, and many times as long under a sanitizer.
constexpr std::chrono::minutes kPatience{20};

/// A run that is killed and started again, as often as `kills` says, by one launch.
ProgramResult train(const std::string& scene, const std::string& folder, int processes, int seed, int kills) {
  return run_program(
      {ACCELERATE_CLI, "launch", "--cpu", "--main_process_port", "0", "--num_processes", std::to_string(processes),
       "--num_cpu_threads_per_process", "1", "--max_restarts", std::to_string(kills), ACCELERATE_SAVER, scene, folder},
      {.environment = {{"ACCELERATE_TEST_SEED", std::to_string(seed)}, {"ACCELERATE_TEST_KILLS", std::to_string(kills)}},
       .limit = kPatience});
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

/// Each attempt goes on at the last save that was told to be durable, or at one that was begun after it.
void expect_nothing_lost(const std::string& output) {
  static const std::regex line("(resumed at|begun|durable) ([0-9]+)\n");
  int durable = 0, begun = 0;
  for (std::sregex_iterator match(output.begin(), output.end(), line), end; match != end; ++match) {
    const std::string what = (*match)[1];
    const int step = std::stoi((*match)[2]);
    if (what == "durable") durable = step;
    if (what == "begun") begun = step;
    if (what == "resumed at") {
      EXPECT_GE(step, durable) << output;
      EXPECT_LE(step, std::max(begun, durable)) << output;
    }
  }
}

void expect_survived(const std::string& scene, int processes, int seed, const std::string& undisturbed) {
  SCOPED_TRACE(scene + ", " + std::to_string(processes) + " processes, seed " + std::to_string(seed));
  const TemporaryFolder place;
  const auto result = train(scene, place.name(), processes, seed, kKillsOfALaunch);
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.errors, " was killed by SIGKILL"), kKillsOfALaunch) << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "skips"), 0) << result.errors;
  EXPECT_EQ(last_line(result.output), undisturbed);
  expect_nothing_lost(result.output);
  EXPECT_EQ(entries_of(place.path()), std::set<std::string>{"checkpoints"});
  EXPECT_EQ(entries_of(place / "checkpoints"), (std::set<std::string>{"checkpoint_38", "checkpoint_39"}));
}

/// Calls `play` with 0, 1 … `count` - 1, by three threads.
void in_threads(int count, const std::function<void(int)>& play) {
  std::atomic<int> next = 0;
  std::vector<std::thread> players;
  for (int i = 0; i < 3; ++i) {
    players.emplace_back([&] {
      for (int number = next++; number < count; number = next++) {
        try {
          play(number);
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      }
    });
  }
  for (auto& player : players) player.join();
}

TEST(Kills, ARunThatIsKilledWhileItSavesEndsAsIfItHadNotBeen) {
  std::array<std::string, 3> undisturbed;  // by one process, by two and by three
  in_threads(3, [&](int i) {
    const TemporaryFolder place;
    undisturbed[static_cast<size_t>(i)] = last_line(train("train", place.name(), i + 1, 0, 0).output);
  });
  for (const auto& line : undisturbed) ASSERT_TRUE(line.starts_with("steps 40 checksum ")) << line;
  const char* wanted = std::getenv("ACCELERATE_TEST_KILLS");
  in_threads((wanted ? std::atoi(wanted) : 20) / kKillsOfALaunch, [&](int seed) {
    const int processes = 1 + (seed + 1) % 3;
    expect_survived(seed % 2 == 0 ? "train" : "train_async", processes, seed, undisturbed[static_cast<size_t>(processes - 1)]);
  });
}

ProgramResult play(const std::string& scene, const TemporaryFolder& place, Variables variables = {}) {
  variables["ACCELERATE_USE_CPU"] = "true";
  variables["OMP_NUM_THREADS"] = "1";
  return run_program({ACCELERATE_SAVER, scene, place.name()}, {.environment = variables, .limit = kPatience});
}

TEST(Kills, NoInstantOfASaveIsABadOneToDieAt) {
  for (const auto& [scene, exchanges] :
       std::initializer_list<std::pair<std::string, bool>>{{"every_instant_of_a_numbered_save", true},
                                                           {"every_instant_of_a_replacing_save", true},
                                                           {"every_instant_of_save_model", true},
                                                           {"every_instant_of_the_same_number", false},
                                                           {"every_instant_of_a_replacing_save", false}}) {
    const TemporaryFolder place;
    const auto result = play(scene, place, exchanges ? Variables{} : Variables{{"ACCELERATE_TEST_NO_EXCHANGE", "1"}});
    EXPECT_EQ(result.exit_code, 0) << scene << ": " << result.output << result.errors;
    EXPECT_NE(result.output.find(": many instants\n"), std::string::npos) << scene << ": " << result.output << result.errors;
    EXPECT_EQ(result.errors, "") << scene;
  }
}

// --- Other ends -----------------------------------------------------------------------------------------------------------

TEST(Saver, AProcessThatDiesInASaveIsNamedByTheOthersAndNothingOfItStays) {
  for (const std::string scene : {"dies_in_save", "dies_in_async_save"}) {
    const TemporaryFolder place;
    const auto ranks = start_ranks({ACCELERATE_SAVER, scene, place.name()}, 3);
    for (int rank : {0, 1}) {
      const auto result = ranks[static_cast<size_t>(rank)]->wait();
      EXPECT_NE(result.output.find("process " + std::to_string(rank) + " heard: "), std::string::npos) << result.output;
      EXPECT_NE(result.output.find("Rank 2 is dead."), std::string::npos) << scene << result.output << result.errors;
      EXPECT_LT(result.seconds, 40) << scene;
    }
    EXPECT_TRUE(entries_of(place.path()).empty()) << scene << ": " << *entries_of(place.path()).begin();
  }
}

/// A checkpoint of so many ranks is there, and nothing else.
void expect_committed(const TemporaryFolder& place, int ranks) {
  EXPECT_EQ(entries_of(place.path()), std::set<std::string>{"saved"});
  if (!fs::exists(place / "saved")) return;
  const auto names = entries_of(place / "saved");
  for (const std::string name : {"accelerate_manifest.json", "model.safetensors"}) EXPECT_TRUE(names.contains(name)) << name;
  for (int i = 0; i < ranks; ++i) EXPECT_TRUE(names.contains("random_states_" + std::to_string(i) + ".pkl")) << i;
  for (const auto& name : names) EXPECT_EQ(name.find("report"), std::string::npos) << name;
}

TEST(Saver, ASaveBehindTheRunIsWholeHoweverTheRunEnds) {
  struct End {
    std::string scene;
    int code, processes, last;
  };
  for (const auto& [scene, code, processes, last] :
       {End{"leaves_while_saving", 0, 1, 0}, End{"leaves_while_saving", 0, 2, 0}, End{"leaves_while_saving", 0, 2, 1},
        End{"leaves_while_saving", 0, 3, 1}, End{"leaves_while_saving", 0, 3, 2}, End{"throws_while_saving", 3, 2, 0}}) {
    SCOPED_TRACE(scene + " of " + std::to_string(processes) + ", the last to write is " + std::to_string(last));
    const TemporaryFolder place;
    const Variables variables = {{"ACCELERATE_TEST_LAST", std::to_string(last)}};
    for (const auto& rank : start_ranks({ACCELERATE_SAVER, scene, place.name()}, processes, variables)) {
      const auto result = rank->wait();
      EXPECT_EQ(result.exit_code, code) << result.output << result.errors;
      EXPECT_EQ(result.errors, "");
    }
    expect_committed(place, processes);
  }
}

TEST(Saver, ARunThatEndsDoesNotWaitForThePartOfARankThatDied) {
  const TemporaryFolder place;
  const auto ranks = start_ranks({ACCELERATE_SAVER, "dies_behind_the_run", place.name()}, 3);
  for (const auto& rank : ranks) EXPECT_LT(rank->wait().seconds, 40);
  EXPECT_FALSE(entries_of(place.path()).contains("saved"));
  // What was staged is in nobody's way.
  EXPECT_NE(play("saves_to_a_folder", place).output.find("heard nothing"), std::string::npos);
  expect_committed(place, 1);
}

TEST(Saver, ASaveWhoseReportsAreSeenLateIsCommittedByTheCallThatWaitsForIt) {
  const TemporaryFolder place;
  for (const auto& rank : start_ranks({ACCELERATE_SAVER, "sees_no_reports", place.name()}, 2)) {
    const auto result = rank->wait();
    EXPECT_NE(result.output.find(" heard nothing\n"), std::string::npos) << result.output << result.errors;
  }
  expect_committed(place, 2);
}

TEST(Saver, ASaveWhoseMainProcessDiedIsCompletedByThoseThatLiveAndKeepsOtherRunsAwayUntilThen) {
  const TemporaryFolder place;
  const auto ranks = start_ranks({ACCELERATE_SAVER, "outlives_the_main_process", place.name()}, 2);
  ranks[1]->wait_for_output("still writing");
  ranks[0]->wait();
  const auto refused = play("saves_to_a_folder", place).output;
  EXPECT_NE(refused.find(" is already saving to " + place.name() + "/saved"), std::string::npos) << refused;
  std::ofstream(place.name() + "/write_on") << "now";
  const auto result = ranks[1]->wait();
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  fs::remove(place.name() + "/write_on");
  expect_committed(place, 2);
  EXPECT_NE(play("saves_to_a_folder", place).output.find("heard nothing"), std::string::npos);
}

TEST(Saver, MachinesThatKeepTheirOwnCheckpointsGoOnFromOneThatAllHave) {
  const TemporaryFolder place;
  const auto ranks = start_ranks({ACCELERATE_SAVER, "machines_of_their_own", place.name()}, 2, {}, 1);
  for (const auto& rank : ranks) {
    const auto result = rank->wait();
    const auto at = [&](const std::string& text) { return result.output.find(text); };
    EXPECT_NE(at("finds checkpoint_2\n"), std::string::npos) << result.output << result.errors;
    EXPECT_NE(at("finds checkpoint_1\n"), std::string::npos) << result.output << result.errors;
    EXPECT_NE(at("heard: load_state: a host has no complete checkpoint in "), std::string::npos) << result.output;
  }
  EXPECT_NE(ranks[0]->wait().errors.find("checkpoint_2: another host does not have it"), std::string::npos);
}

/// Runs as nobody: root may write anywhere.
std::vector<ProgramResult> as_nobody(const std::string& scene, const std::string& folder) {
  std::vector<ProgramResult> results;
  for (const auto& rank : start_ranks({"setpriv", "--reuid=65534", "--clear-groups", ACCELERATE_SAVER, scene, folder}, 2)) {
    results.push_back(rank->wait());
  }
  return results;
}

TEST(Saver, WhereNothingMayBeWrittenEveryProcessIsToldWhyAndTheRunGoesOn) {
  const TemporaryFolder place;
  fs::permissions(place.name(), fs::perms(0755));
  for (const auto* name : {"/closed", "/open", "/unreadable", "/hidden", "/hidden/checkpoints"}) {
    fs::create_directory(place.name() + name);
  }
  fs::permissions(place.name() + "/open", fs::perms(0777));
  for (const auto* name : {"/unreadable", "/hidden/checkpoints"}) fs::permissions(place.name() + name, fs::perms(0700));
  const auto results = as_nobody("may_not_write", place.name());
  for (size_t i = 0; i < results.size(); ++i) {
    const auto count = [&](const std::string& text) { return RunningProgram::occurrences(results[i].output, text); };
    const std::string all = results[i].output + results[i].errors;
    EXPECT_EQ(count("heard: save_state: rank 0: Cannot create " + place.name() + "/closed/.saved.unfinished.lock: Permission"), 2)
        << all;
    EXPECT_EQ(count("heard: Cannot write " + place.name() + "/closed/model.safetensors: Permission denied."), 1) << all;
    EXPECT_EQ(count("heard: Cannot write " + place.name() + "/closed/a.safetensors: Permission denied."), 1) << all;
    EXPECT_EQ(count("heard: load_state: rank 0: Cannot access " + place.name() + "/unreadable/"), 1) << all;
    EXPECT_EQ(count("Cannot list the checkpoints in " + place.name() + "/hidden/checkpoints: Permission denied."), 1) << all;
    EXPECT_EQ(count("process " + std::to_string(i) + " heard nothing\n"), 1) << all;
  }
  EXPECT_EQ(entries_of(place / "open"), std::set<std::string>{"saved"});
  EXPECT_TRUE(entries_of(place / "closed").empty());
}

// --- Refusals, and several runs in one place --------------------------------------------------------------------------------

TEST(Saver, WhateverTheSystemRefusesNothingIsLost) {
  const TemporaryFolder place;
  const auto result = play("every_refusal", place);
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "refusals of saves: many"), 6) << result.output << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "refusals of loads: many"), 6) << result.output << result.errors;
}

TEST(Saver, RandomScenesLoseNothing) {
  const char* wanted = std::getenv("ACCELERATE_TEST_SCENES");
  const int scenes = (wanted ? std::atoi(wanted) : 30) / 3;  // of one process, of two and of three
  const TemporaryFolder alone;
  const auto result = play("random_scenes", alone, {{"ACCELERATE_TEST_SCENES", std::to_string(scenes)}});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_EQ(result.output, "nothing lost\n") << result.errors;
  constexpr int kAtOnce = 10;
  for (int seed = 0; seed * kAtOnce < scenes; ++seed) {
    for (const int processes : {2, 3}) {
      const TemporaryFolder place;
      const Variables variables = {{"ACCELERATE_TEST_SCENES", std::to_string(kAtOnce)},
                                   {"ACCELERATE_TEST_SEED", std::to_string(seed)}};
      for (const auto& rank : start_ranks({ACCELERATE_SAVER, "random_scenes", place.name()}, processes, variables)) {
        const auto said = rank->wait();
        EXPECT_EQ(said.exit_code, 0) << processes << " processes, seed " << seed << said.output << said.errors;
        EXPECT_EQ(said.output, "nothing lost\n") << processes << " processes, seed " << seed << said.errors;
      }
    }
  }
}

TEST(Saver, ARankWithoutAThreadForASaveIsNamedByAllAtOnce) {
  const TemporaryFolder place;
  for (const auto& rank : start_ranks({ACCELERATE_SAVER, "no_thread_for_a_save", place.name()}, 3)) {
    const auto result = rank->wait();
    EXPECT_NE(result.output.find("heard: save_state: rank 2: "), std::string::npos) << result.output << result.errors;
    EXPECT_NE(result.output.find("heard nothing\n"), std::string::npos) << result.output << result.errors;
    EXPECT_LT(result.seconds, 40);
  }
  EXPECT_EQ(entries_of(place.path()), std::set<std::string>{"saved"});
}

TEST(Saver, FilesOfHooksAreDurable) {
  const TemporaryFolder place;
  EXPECT_EQ(play("hook_files_are_durable", place).output, "more: 3\n");
}

TEST(Saver, ASecondRunInOneProjectIsRefusedUntilTheFirstHasEnded) {
  const TemporaryFolder place;
  RunningProgram first({ACCELERATE_SAVER, "saves_and_waits", place.name()}, {.environment = {{"ACCELERATE_USE_CPU", "true"}}});
  first.wait_for_output("saved by ");
  const auto refused = play("saves_once", place).output;
  EXPECT_NE(refused.find("Process " + std::to_string(first.pid()) + " on "), std::string::npos) << refused;
  EXPECT_NE(refused.find(" is already saving to " + place.name()), std::string::npos) << refused;
  EXPECT_EQ(entries_of(place / "checkpoints"), std::set<std::string>{"checkpoint_0"});
  first.signal(SIGKILL);
  first.wait();
  EXPECT_NE(play("saves_once", place).output.find("heard nothing"), std::string::npos) << "no lock outlives its process";
  EXPECT_EQ(entries_of(place.path()), std::set<std::string>{"checkpoints"});
}

TEST(Saver, AReaderMayLookWhileARunSavesAndRemoves) {
  const TemporaryFolder place;
  RunningProgram writer({ACCELERATE_SAVER, "saves_many", place.name()}, {.environment = {{"ACCELERATE_USE_CPU", "true"}}});
  const auto reader = play("reads_many", place);
  EXPECT_EQ(reader.output, "read all\n") << reader.errors;
  EXPECT_EQ(reader.errors, "");
  EXPECT_EQ(writer.wait().exit_code, 0);
}

TEST(Saver, ASecondRunInAFolderOfItsOwnIsRefusedWhileTheFirstSaves) {
  const TemporaryFolder place;
  RunningProgram first({ACCELERATE_SAVER, "waits_in_a_save", place.name()}, {.environment = {{"ACCELERATE_USE_CPU", "true"}}});
  first.wait_for_output("saving");
  const auto refused = play("saves_to_a_folder", place).output;
  EXPECT_NE(refused.find("Process " + std::to_string(first.pid()) + " on "), std::string::npos) << refused;
  EXPECT_NE(refused.find(" is already saving to " + place.name() + "/saved"), std::string::npos) << refused;
  first.signal(SIGKILL);
  first.wait();
  EXPECT_NE(play("saves_to_a_folder", place).output.find("heard nothing"), std::string::npos);
  EXPECT_EQ(entries_of(place.path()), std::set<std::string>{"saved"});
}

TEST(Saver, WithoutFileLocksThatIsSaidOnceAndNothingIncompleteIsCommitted) {
  const TemporaryFolder place;
  const auto result = play("saves_without_locks", place, {{"ACCELERATE_TEST_NO_LOCKS", "1"}});
  EXPECT_EQ(RunningProgram::occurrences(result.errors, " is on a file system without file locks ("), 1) << result.errors;
  EXPECT_NE(result.output.find("another process has removed or replaced"), std::string::npos) << result.output << result.errors;
  EXPECT_NE(result.output.find("is not complete: "), std::string::npos) << result.output << result.errors;
  EXPECT_NE(result.output.find("the checkpoint before is there"), std::string::npos) << result.output << result.errors;
}

}  // namespace
