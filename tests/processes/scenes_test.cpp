// What users read when something goes wrong between processes, word by word. The scenes are played without a launcher, which
// would end the survivors before they can tell.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>

#include "played_scene.h"

namespace {

using accelerate::testing::normalised;
using accelerate::testing::RunningProgram;
using accelerate::testing::Scene;
using accelerate::testing::TemporaryFolder;
using accelerate::testing::Variables;
using accelerate::testing::wait_until;

/// Rank 0 is late at the barrier on purpose. Whether the death is reported before or after it arrives depends on timing,
/// and either is true: its line is read as if it had arrived.
std::string as_if_all_had_come(const std::string& text) {
  static const std::regex kOnItsWay("Rank 0: in user code for T s; it has made no call yet");
  return std::regex_replace(text, kOnItsWay, "Rank 0: waiting for T s in wait_for_everyone (call 1) at scenes.cpp:N");
}

TEST(Scenes, ARankKilledInABarrierIsNamedWithTheCallItWasIn) {
  Scene scene("killed_in_a_barrier", 3);
  const std::string diagnosis =
      "Rank 2 is dead.\n"
      "  - Rank 0: waiting for T s in wait_for_everyone (call 1) at scenes.cpp:N\n"
      "  - Rank 1: waiting for T s in wait_for_everyone (call 1) at scenes.cpp:N\n"
      "  - Rank 2: dead, its process P has exited; last seen in wait_for_everyone (call 1) at scenes.cpp:N, started T s ago\n";
  for (int rank : {0, 1}) {
    const std::string who = std::to_string(rank);
    EXPECT_EQ(as_if_all_had_come(scene.output(rank)),
              "process " + who + " heard: wait_for_everyone at scenes.cpp:N failed on rank " + who + " of 3: " + diagnosis);
  }
  EXPECT_EQ(scene.rank(2).wait().exit_code, 128 + SIGKILL);
}

TEST(Scenes, ARankKilledInAReduceScatterIsNamedAndNobodyWaitsForItsPart) {
  Scene scene("killed_in_a_reduce_scatter", 3);
  for (int rank : {0, 1}) {
    const std::string heard = scene.output(rank);
    EXPECT_NE(
        heard.find("heard: reduce_scatter at scenes.cpp:N failed on rank " + std::to_string(rank) + " of 3: Rank 2 is dead.\n"),
        std::string::npos)
        << heard;
    EXPECT_EQ(scene.rank(rank).wait().exit_code, 0);
    EXPECT_LT(scene.rank(rank).wait().seconds, 30) << "not when the time-out is over";
  }
}

TEST(Scenes, ARankThatReturnsEarlyIsNamedAsFinished) {
  Scene scene("returns_early", 3);
  for (int rank : {0, 1}) {
    const std::string heard = scene.output(rank);
    EXPECT_NE(heard.find("failed on rank " + std::to_string(rank) + " of 3: Rank 2 has finished and left the group.\n"),
              std::string::npos)
        << heard;
    EXPECT_NE(heard.find("  - Rank 2: finished and left the group T s ago; its last call was gather of float32[2] (call 1) at "
                         "scenes.cpp:N\n"),
              std::string::npos)
        << heard;
  }
  EXPECT_EQ(scene.rank(2).wait().exit_code, 0);
}

TEST(Scenes, ARankThatAnExceptionEndedIsNamedAsFailed) {
  Scene scene("throws_early", 2);
  const std::string heard = scene.output(0);
  EXPECT_NE(heard.find("Rank 1 has failed.\n"), std::string::npos) << heard;
  EXPECT_NE(heard.find("  - Rank 1: failed and left the group T s ago; it had made no call\n"), std::string::npos) << heard;
  EXPECT_EQ(scene.output(1), "left by: on purpose\n");
}

/// What a rank of `calls_differ` or its kin was told about each difference, in order.
std::vector<std::string> diagnoses_of(const std::string& output) {
  std::vector<std::string> diagnoses;
  static const std::regex kDiagnosis("heard: [^\n]* failed on rank [0-9]+ of [0-9]+: ([^\n]*)\n");
  for (auto found = std::sregex_iterator(output.begin(), output.end(), kDiagnosis); found != std::sregex_iterator(); ++found)
    diagnoses.push_back((*found)[1]);
  return diagnoses;
}

struct Mismatch {
  const char *call, *other;
};
/// As `differences` in scenes.cpp has them; LAST is the rank that differs.
const std::vector<Mismatch> kMismatches = {
    {"gather of float32[2]", "wait_for_everyone"},
    {"gather of float32[3, 2]", "gather of float32[4, 2]"},
    {"gather of float32[3, 2]", "gather of float32[2, 3]"},
    {"gather of float32[2]", "gather of float64[2]"},
    {"reduce of float32[2] by sum", "reduce of int32[2] by sum"},
    {"reduce of float32[2] by sum", "reduce of float32[2] by max"},
    {"reduce of float32[2] by mean", "reduce of float32[2] by sum"},
    {"gather of float32[0, 2]", "gather of float32[3, 2]"},
    {"gather_object", "gather of float32[2]"},
    {"pad_across_processes of int64[1] along dimension 0", "pad_across_processes of int64[1] along dimension 1"},
    {"gather of float32[2], tensor 1 of 2 in {a:t,b:t,}", "gather of float32[2], tensor 1 of 2 in {a:t,c:t,}"},
    {"reduce of float32[2] by sum, tensor 1 of 2 in {a:t,b:t,}", "reduce of float32[2] by sum, tensor 1 of 2 in {a:t,c:t,}"},
    {"pad_across_processes of int64[1] along dimension 0, nested as {a:t,}",
     "pad_across_processes of int64[1] along dimension 0, nested as {b:t,}"},
    {"gather of float32[2], tensor 1 of 2 in [tt]", "gather of float32[2], tensor 1 of 3 in [ttt]"},
    {"broadcast of float32[2] from 0", "broadcast of float32[2] from LAST"},
    {"broadcast of float32[3, 2] from 0", "broadcast of float32[5, 2] from 0"},
    {"main_process_first", "wait_for_everyone"}};

/// Every rank of a scene of mismatches must have heard of each, the same on all, and have returned from none.
void expect_mismatches(Scene& scene, int size, const std::vector<Mismatch>& mismatches) {
  const std::string last = std::to_string(size - 1);
  std::vector<std::string> first_diagnoses;
  for (int rank = 0; rank < size; ++rank) {
    const std::string output = scene.output(rank);
    EXPECT_EQ(scene.rank(rank).wait().exit_code, 0) << output << scene.errors(rank);
    EXPECT_EQ(scene.errors(rank).find("has been waiting"), std::string::npos) << "an error needs no warning";
    for (const char* wrong : {"heard nothing", "returned", "heard it late"})
      EXPECT_EQ(output.find(wrong), std::string::npos) << output;
    const auto diagnoses = diagnoses_of(output);
    ASSERT_EQ(diagnoses.size(), mismatches.size()) << output << scene.errors(rank);
    if (rank == 0) first_diagnoses = diagnoses;
    EXPECT_EQ(diagnoses, first_diagnoses) << "all tell the same";
    for (size_t i = 0; i < diagnoses.size(); ++i) {
      const std::string other = std::regex_replace(std::string(mismatches[i].other), std::regex("LAST"), last);
      EXPECT_EQ(diagnoses[i].find("Call 2 is not the same on all ranks: "), 0U) << diagnoses[i];
      EXPECT_NE(diagnoses[i].find(mismatches[i].call + std::string(" at scenes.cpp:N on rank ")), std::string::npos)
          << diagnoses[i];
      EXPECT_NE(diagnoses[i].find(other + " at scenes.cpp:N on rank " + last +
                                  ". All ranks must make the same calls in the same order, with the same shapes and dtypes."),
                std::string::npos)
          << diagnoses[i];
    }
  }
}

class CallsThatDiffer : public ::testing::TestWithParam<int> {};

TEST_P(CallsThatDiffer, AreAnErrorAtOnceOnAllAndNobodyReturns) {
  Scene scene("calls_differ", GetParam());
  std::vector<Mismatch> mismatches;
  for (const auto& mismatch : kMismatches) mismatches.insert(mismatches.end(), GetParam() == 2 ? 3 : 1, mismatch);
  expect_mismatches(scene, GetParam(), mismatches);
}

INSTANTIATE_TEST_SUITE_P(Scenes, CallsThatDiffer, ::testing::Values(2, 3, 4));

TEST(Scenes, CallsThatDifferBetweenHostsAreAnErrorOnAllToo) {
  for (const auto& [size, per_host] : {std::pair(2, 1), std::pair(4, 2)}) {
    Scene scene("few_calls_differ", size, {}, per_host);
    expect_mismatches(scene, size, {kMismatches[0], kMismatches[1]});
  }
}

TEST(Scenes, OtherShapesAreAnErrorEveryTime) {
  Scene scene("shapes_differ_twenty_times", 2);
  for (int rank : {0, 1}) {
    const std::string output = scene.output(rank);
    EXPECT_EQ(scene.rank(rank).wait().exit_code, 0) << output << scene.errors(rank);
    EXPECT_EQ(diagnoses_of(output).size(), 20U) << output;
    EXPECT_EQ(output.find("returned"), std::string::npos) << output;
  }
}

TEST(Scenes, AMismatchIsToldWithALineForEachProcess) {
  Scene scene("few_calls_differ", 2);
  const std::string output = scene.output(0), start = "call on rank 0 heard: gather at scenes.cpp:N failed on rank 0 of 2: ";
  const std::string diagnosis =
      "Call 2 is not the same on all ranks: gather of float32[2] at scenes.cpp:N on rank 0, wait_for_everyone at "
      "scenes.cpp:N on rank 1. All ranks must make the same calls in the same order, with the same shapes and dtypes.\n"
      "  - Rank 0: waiting for T s in gather of float32[2] (call 2) at scenes.cpp:N\n"
      "  - Rank 1: waiting for T s in wait_for_everyone (call 2) at scenes.cpp:N\n";
  EXPECT_EQ(output.find(start + diagnosis), 0U) << output;
  EXPECT_EQ(output.find("heard it late"), std::string::npos) << output;
}

TEST(Scenes, AReductionOnOneRankWhereOthersAreInABackwardPassIsAMismatch) {
  for (const int size : {2, 3}) {
    Scene scene("reduce_instead_of_backward", size);
    for (int rank = 0; rank < size; ++rank) {
      const std::string output = scene.output(rank);
      EXPECT_EQ(scene.rank(rank).wait().exit_code, 0) << output << scene.errors(rank);
      const auto diagnoses = diagnoses_of(output);
      ASSERT_EQ(diagnoses.size(), 4U) << output;
      for (const auto& diagnosis : diagnoses) {
        EXPECT_EQ(diagnosis.find("Call 4 is not the same on all ranks: reduce of float32[10] by sum at scenes.cpp:N on rank "
                                 "0, backward"),
                  0U)
            << diagnosis;
      }
      EXPECT_LT(scene.rank(rank).wait().seconds, 30) << "not at the timeout";
    }
  }
}

TEST(Scenes, ARankThatRunsFarAheadIsHeldUpSoThatEveryCallCanBeCompared) {
  Scene scene("runs_far_ahead", 2, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.3"}});
  wait_until("process 0 to wait", [&] { return !scene.rank(0).errors().empty(); });
  EXPECT_EQ(scene.errors_so_far(0).find("accelerate: main_process_first (call 512) at scenes.cpp:N has been waiting"), 0U);
  scene.leave_file("warned");
  for (int rank : {0, 1}) {
    EXPECT_NE(scene.output(rank).find("Call 5 is not the same on all ranks: no longer recorded on rank 0, "
                                      "wait_for_everyone at scenes.cpp:N on rank 1."),
              std::string::npos)
        << scene.output(rank);
  }
}

TEST(Scenes, ACallThatOneRankSkipsIsToldWithWhereItIsInstead) {
  Scene scene("skipped_call", 3, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.3"}});
  const std::string diagnosis =
      "Rank 2 has not reached call 2.\n"
      "  - Rank 0: waiting for T s in gather of float32[2, 2] (call 2) at scenes.cpp:N\n"
      "  - Rank 1: waiting for T s in gather of float32[2, 2] (call 2) at scenes.cpp:N\n"
      "  - Rank 2: in user code for T s; its last call was wait_for_everyone (call 1) at scenes.cpp:N\n";
  EXPECT_EQ(scene.output(0), "process 0 heard: gather at scenes.cpp:N failed on rank 0 of 3: " + diagnosis);
  EXPECT_EQ(scene.output(1), "process 1 heard: gather at scenes.cpp:N failed on rank 1 of 3: " + diagnosis);
  EXPECT_EQ(scene.errors(0) + scene.errors(1),
            "accelerate: gather of float32[2, 2] (call 2) at scenes.cpp:N has been waiting for T s. " + diagnosis);
}

TEST(Scenes, AWarningIsTakenBackWhenTheCallGoesOn) {
  Scene scene("late", 2, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.2"}});
  wait_until("the warning", [&] { return scene.rank(0).errors().find("Rank 1 has not reached call 1") != std::string::npos; });
  scene.leave_file("warned");
  EXPECT_EQ(scene.output(0), "process 0 went on\n");
  EXPECT_EQ(scene.output(1), "process 1 went on\n");
  EXPECT_EQ(scene.errors(0),
            "accelerate: gather of float32[2] (call 1) at scenes.cpp:N has been waiting for T s. Rank 1 has not reached call 1.\n"
            "  - Rank 0: waiting for T s in gather of float32[2] (call 1) at scenes.cpp:N\n"
            "  - Rank 1: in user code for T s; it has made no call yet\n"
            "accelerate: gather of float32[2] (call 1) at scenes.cpp:N resumed after T s.\n");
}

TEST(Scenes, ANewWarningSaysWhatHasChangedAndOnlyThat) {
  Scene scene("late", 2, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.2"}});
  const auto warned = [&](const std::string& text, int times) {
    wait_until(text, [&] { return RunningProgram::occurrences(scene.rank(0).errors(), text) == times; });
  };
  warned("Rank 1 has not reached call 1", 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // in which nothing is said
  scene.rank(1).signal(SIGSTOP);
  warned("Rank 1 is not responding", 1);
  scene.rank(1).signal(SIGCONT);
  warned("Rank 1 has not reached call 1", 2);
  scene.leave_file("warned");
  EXPECT_EQ(scene.output(0), "process 0 went on\n");
  const std::string call = "accelerate: gather of float32[2] (call 1) at scenes.cpp:N ";
  const std::string waits = "  - Rank 0: waiting for T s in gather of float32[2] (call 1) at scenes.cpp:N\n";
  const std::string runs = "  - Rank 1: in user code for T s; it has made no call yet\n";
  EXPECT_EQ(scene.errors(0),
            call + "has been waiting for T s. Rank 1 has not reached call 1.\n" + waits + runs +  //
                call + "is still waiting after T s, and the state of the ranks has changed. Rank 1 is not responding.\n" + waits +
                "  - Rank 1: not responding, its process P is stopped; it had made no call yet\n" +  //
                call + "is still waiting after T s, and the state of the ranks has changed. Rank 1 has not reached call 1.\n" +
                waits + runs + call + "resumed after T s.\n");
}

TEST(Scenes, WhenWhoWarnsIsStoppedAnotherOneTakesOver) {
  Scene scene("late", 3, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.2"}});
  wait_until("the warning", [&] { return !(scene.rank(0).errors() + scene.rank(1).errors()).empty(); });
  const int speaker = scene.rank(0).errors().empty() ? 1 : 0, other = 1 - speaker;
  scene.rank(speaker).signal(SIGSTOP);
  const std::string who = "Rank " + std::to_string(speaker) + " is not responding. Rank 2 has not reached call 1.";
  wait_until(who, [&] { return scene.rank(other).errors().find(who) != std::string::npos; });
  scene.rank(speaker).signal(SIGCONT);
  scene.leave_file("warned");
  EXPECT_EQ(scene.output(other), "process " + std::to_string(other) + " went on\n");
}

TEST(Scenes, WhoWaitsForGradientsAndWhoStillCalculatesThemIsToldApart) {
  Scene scene("slow_backward", 2, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.2"}});
  const auto warned = [&] { return normalised(scene.rank(0).errors()); };
  wait_until("the warning", [&] { return warned().find("has been waiting") != std::string::npos; });
  scene.leave_file("warned");
  EXPECT_EQ(scene.output(0), "process 0 went on\n");
  EXPECT_EQ(scene.errors(0),
            "accelerate: backward (call 4) at scenes.cpp:N has been waiting for T s. Rank 1 has not reached call 4.\n"
            "  - Rank 0: waiting for T s in backward (call 4) at scenes.cpp:N\n"
            "  - Rank 1: in user code for T s; its last call was prepare of uint8[40] (call 3) at scenes.cpp:N\n"
            "accelerate: backward (call 4) at scenes.cpp:N resumed after T s.\n");
  EXPECT_EQ(scene.output(1), "process 1 went on\n");
  EXPECT_EQ(scene.errors(1), "");
}

TEST(Scenes, ARankThatWaitsInABackwardPassOfLibTorchsOwnIsToldToo) {
  Scene scene("slow_plain_backward", 2, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.2"}});
  const auto warned = [&] { return normalised(scene.rank(0).errors()); };
  wait_until("the warning", [&] { return warned().find("has been waiting") != std::string::npos; });
  scene.leave_file("warned");
  EXPECT_EQ(scene.output(0), "process 0 went on\n");
  EXPECT_EQ(scene.errors(0),
            "accelerate: backward (call 4) has been waiting for T s. Rank 1 has not reached call 4.\n"
            "  - Rank 0: waiting for T s in backward (call 4)\n"
            "  - Rank 1: in user code for T s; its last call was prepare of uint8[40] (call 3) at scenes.cpp:N\n"
            "accelerate: backward (call 4) resumed after T s.\n");
}

TEST(Scenes, NoWarningWhenWarningsAreOff) {
  Scene scene("late", 2, {{"ACCELERATE_HANG_WARNING_SECONDS", "0"}});
  scene.rank(0).signal(0);
  scene.leave_file("warned");
  EXPECT_EQ(scene.output(0), "process 0 went on\n");
  EXPECT_EQ(scene.errors(0), "");
}

TEST(Scenes, ABadThresholdIsToldByName) {
  for (const char* bad : {"soon", "-1", "", "1e99"}) {
    Scene scene("late", 2, {{"ACCELERATE_HANG_WARNING_SECONDS", bad}});
    EXPECT_EQ(scene.output(0), std::string("left by: ACCELERATE_HANG_WARNING_SECONDS=") + bad +
                                   ": expected a number of seconds, or 0 for no warnings.\n");
    EXPECT_EQ(scene.rank(1).wait().exit_code, 3);
  }
}

TEST(Scenes, ARankThatReadsACheckpointForLongIsToldApart) {
  Scene scene("late_while_loading", 2, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.2"}});
  const auto warned = [&] { return normalised(scene.rank(0).errors()); };
  wait_until("the warning", [&] { return warned().find("Rank 1: in load_file of ") != std::string::npos; });
  EXPECT_NE(warned().find(scene.folder() + "/slow.safetensors for T s; it has made no call yet\n"), std::string::npos)
      << warned();
  scene.leave_file("warned");
  EXPECT_EQ(scene.output(0), "process 0 went on\n");
}

TEST(Scenes, ARankThatWaitsForItsDataIsToldApart) {
  for (const char* name : {"late_while_reading_data", "late_while_workers_read_data"}) {
    Scene scene(name, 2, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.2"}});
    const auto warned = [&] { return normalised(scene.rank(0).errors()); };
    wait_until("the warning", [&] { return warned().find("has been waiting") != std::string::npos; });
    EXPECT_NE(warned().find("Rank 1: in DataLoader of (anonymous namespace)::SlowDataset for T s; "), std::string::npos)
        << name << ": " << warned();
    scene.leave_file("warned");
    EXPECT_EQ(scene.output(0), "process 0 went on\n");
    EXPECT_EQ(scene.output(1), "process 1 went on\n");
  }
}

TEST(Scenes, AStoppedRankIsNotRespondingAndTheOthersEndAtTheTimeout) {
  Scene scene("stopped", 3);
  const std::string diagnosis =
      "Rank 2 is not responding.\n"
      "  - Rank 0: waiting for T s in wait_for_everyone (call 1) at scenes.cpp:N\n"
      "  - Rank 1: waiting for T s in wait_for_everyone (call 1) at scenes.cpp:N\n"
      "  - Rank 2: not responding, its process P is stopped; it had made no call yet\n";
  for (int rank : {0, 1}) {
    const std::string who = std::to_string(rank);
    EXPECT_EQ(as_if_all_had_come(scene.output(rank)),
              "process " + who + " heard: wait_for_everyone at scenes.cpp:N failed on rank " + who + " of 3: " + diagnosis);
  }
  scene.rank(2).signal(SIGCONT);
  EXPECT_EQ(scene.output(2), "process 2 heard: wait_for_everyone at scenes.cpp:N failed on rank 2 of 3: " + diagnosis)
      << "a late rank gets the same report";
}

TEST(Scenes, TheStoresHostGoneIsToldAtOnceAndNotWaitedFor) {
  Scene scene("host_is_killed", 3);
  for (int rank : {1, 2}) {
    const std::string heard = scene.output(rank);
    EXPECT_NE(
        heard.find("main_process_first at scenes.cpp:N failed on rank " + std::to_string(rank) + " of 3: Rank 0 is dead.\n"),
        std::string::npos)
        << heard;
    EXPECT_NE(heard.find("wait_for_everyone at scenes.cpp:N cannot run: the process group is unusable since main_process_first"),
              std::string::npos)
        << heard;
    EXPECT_LT(scene.rank(rank).wait().seconds, 20);
  }
}

TEST(Scenes, AScopeWhoseOwnerDiesInsideIsNotWaitedFor) {
  Scene scene("killed_in_a_scope", 2, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.2"}});
  wait_until("rank 1 to wait", [&] { return !scene.rank(1).errors().empty(); });
  scene.leave_file("go");
  EXPECT_EQ(scene.output(1),
            "left by: local_main_process_first at scenes.cpp:N failed on rank 1 of 2: Rank 0 is dead.\n"
            "  - Rank 0: dead, its process P has exited; last seen in local_main_process_first (call 1) at scenes.cpp:N, which "
            "ended T s ago\n"
            "  - Rank 1: waiting for T s in local_main_process_first (call 1) at scenes.cpp:N\n");
}

TEST(Scenes, InDebugModeDifferentCallsAreAnErrorBeforeAnythingIsSentAndTheGroupStaysUsable) {
  Scene scene("disagree_in_debug_mode", 2, {{"ACCELERATE_DEBUG_MODE", "1"}});
  const std::string all = "All ranks must make the same calls in the same order.\n";
  EXPECT_EQ(scene.output(0),
            "process 0 heard: gather at scenes.cpp:N cannot run: the ranks make different calls. " + all +
                "  - Rank 0: gather of float32[2] at scenes.cpp:N\n"
                "  - Rank 1: wait_for_everyone at scenes.cpp:N\n"
                "process 0 heard nothing\n"
                "process 0 heard: broadcast_object_list at scenes.cpp:N cannot run: the ranks make different calls. " +
                all +
                "  - Rank 0: broadcast_object_list of a list from 0 at scenes.cpp:N\n"
                "  - Rank 1: gather_object of a list at scenes.cpp:N\n");
}

TEST(Scenes, EverySurvivorHearsOfADeathAlsoWhenTheOthersStay) {
  Scene scene("survivors_stay", 5);
  for (int rank = 0; rank < 4; ++rank) {
    wait_until(
        "rank " + std::to_string(rank) + " to hear", [&] { return !scene.rank(rank).output().empty(); },
        std::chrono::seconds(20));
  }
  scene.leave_file("all have heard");
  for (int rank = 0; rank < 4; ++rank) {
    const std::string heard = scene.output(rank);
    EXPECT_NE(heard.find("failed on rank " + std::to_string(rank) + " of 5: Rank 4 is dead.\n"), std::string::npos) << heard;
    EXPECT_EQ(scene.rank(rank).wait().exit_code, 0);
    EXPECT_EQ(scene.errors(rank).find("Rank 4 has not reached"), std::string::npos);
  }
}

class KilledInBackward : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(KilledInBackward, IsNamedOnAllOthersWithinFiveSeconds) {
  const auto [name, place] = GetParam();
  for (const int size : {3, 4}) {
    Scene scene(name, size);
    EXPECT_EQ(scene.rank(1).wait().exit_code, 128 + SIGKILL);
    const auto died = std::chrono::steady_clock::now();
    for (int rank = 0; rank < size; ++rank) {
      if (rank == 1) continue;
      wait_until(
          "rank " + std::to_string(rank) + " to hear",
          [&] { return scene.rank(rank).output().find("wait_for_everyone") != std::string::npos; }, std::chrono::seconds(20));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - died, std::chrono::seconds(5));
    scene.leave_file("all have heard");
    for (int rank = 0; rank < size; ++rank) {
      if (rank == 1) continue;
      const std::string heard = scene.output(rank), who = "rank " + std::to_string(rank) + " of " + std::to_string(size);
      EXPECT_EQ(heard.find("process " + std::to_string(rank) + " heard: backward" + place + " failed on " + who +
                           ": Rank 1 is dead.\n"),
                0U)
          << heard;
      EXPECT_NE(heard.find("wait_for_everyone at scenes.cpp:N cannot run: the process group is unusable since backward"),
                std::string::npos)
          << heard;
      EXPECT_EQ(scene.rank(rank).wait().exit_code, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scenes, KilledInBackward,
                         ::testing::Values(std::tuple("killed_in_backward", " at scenes.cpp:N"),
                                           std::tuple("killed_in_power_sgd", " at scenes.cpp:N"),
                                           std::tuple("killed_in_plain_backward", "")));

TEST(Scenes, ADeadProcessIsNotWaitedForBecauseOfItsChildren) {
  Scene scene("killed_with_a_child", 2);
  const std::string heard = scene.output(0);
  EXPECT_NE(heard.find("failed on rank 0 of 2: Rank 1 is dead.\n"), std::string::npos) << heard;
  EXPECT_LT(scene.rank(0).wait().seconds, 14) << "not when the child ended";
}

TEST(Scenes, AnOpenScopeLetsALateProcessInWhateverHasBecomeOfOthers) {
  Scene scene("late_to_an_open_scope", 3);
  EXPECT_EQ(scene.output(2), "process 2 is in\n");
  scene.leave_file("gone");
  EXPECT_EQ(scene.output(1), "process 1 is in\n");
}

TEST(Scenes, ACopyOfAProcessDoesNotEndItsGroup) {
  Scene scene("copies_itself", 2);
  EXPECT_EQ(scene.output(0), "process 0 went on\n");
  EXPECT_EQ(scene.output(1), "process 1 went on\n");
}

TEST(Scenes, AnEarlyEndOnAnotherMachineIsToldAsSuch) {
  Scene finished("returns_early", 2, {}, 1);
  EXPECT_EQ(finished.output(0),
            "process 0 heard: wait_for_everyone at scenes.cpp:N failed on rank 0 of 2: Rank 1 has finished and left the group.\n"
            "  - Rank 0: waiting for T s in wait_for_everyone (call 2) at scenes.cpp:N\n"
            "  - Rank 1: finished and left the group T s ago; its last call was gather of float32[2] (call 1) at scenes.cpp:N\n");
  Scene failed("throws_early", 2, {}, 1);
  EXPECT_NE(failed.output(0).find("Rank 1 has failed.\n"), std::string::npos) << failed.output(0);
}

TEST(Scenes, MachinesTellEachOther) {
  Scene scene("killed_in_a_barrier", 4, {}, 2);
  const std::string diagnosis =
      "Rank 3 is dead.\n"
      "  - Rank 0: waiting for T s in wait_for_everyone (call 1) at scenes.cpp:N\n"
      "  - Rank 1: waiting for T s in wait_for_everyone (call 1) at scenes.cpp:N\n"
      "  - Rank 2: waiting for T s in wait_for_everyone (call 1) at scenes.cpp:N\n"
      "  - Rank 3: dead, its process P has exited; last seen in wait_for_everyone (call 1) at scenes.cpp:N, started T s ago\n";
  for (int rank : {0, 1, 2}) {
    const std::string who = std::to_string(rank);
    EXPECT_EQ(as_if_all_had_come(scene.output(rank)),
              "process " + who + " heard: wait_for_everyone at scenes.cpp:N failed on rank " + who + " of 4: " + diagnosis);
  }
}

TEST(Scenes, ADeadRankThatWasAloneOnItsMachineIsKnownByItsConnections) {
  Scene scene("killed_in_a_barrier", 2, {}, 1);
  EXPECT_EQ(scene.output(0),
            "process 0 heard: wait_for_everyone at scenes.cpp:N failed on rank 0 of 2: Rank 1 is dead.\n"
            "  - Rank 0: waiting for T s in wait_for_everyone (call 1) at scenes.cpp:N\n"
            "  - Rank 1: dead, its connections are closed\n");
}

TEST(Scenes, ARankOfAnotherMachineThatIsStoppedDoesNotAnswer) {
  Scene scene("stopped", 2, {}, 1);
  EXPECT_EQ(scene.output(0),
            "process 0 heard: wait_for_everyone at scenes.cpp:N failed on rank 0 of 2: Rank 1 is not responding.\n"
            "  - Rank 0: waiting for T s in wait_for_everyone (call 1) at scenes.cpp:N\n"
            "  - Rank 1: not responding to queries\n");
  scene.rank(1).signal(SIGCONT);
}

}  // namespace
