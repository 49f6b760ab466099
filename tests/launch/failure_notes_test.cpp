#include "launch/failure_notes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include <accelerate/launch/supervisor.h>
#include "launch/function_launch.h"
#include "launch/worker_scripts.h"
#include "support/temporary_folder.h"

// Who is blamed when a rank that caught the error of a collective ends before the rank that is the cause.
namespace accelerate::testing {

using namespace detail;
namespace {

using namespace std::chrono_literals;

// What the library does in a rank, for a script.
std::string leave_note(const std::string& note) {
  return "v=$ACCELERATE_FAILURE_NOTES; printf " + note + " | dd of=${v%:*} bs=1 seek=${v##*:} conv=notrunc status=none; ";
}
const std::string kNoteFailure = leave_note("c");

std::string until_it_has_ended(const std::string& pid_file) {
  return "while [ ! -s " + pid_file + " ]; do sleep 0.01; done; while [ -e /proc/$(cat " + pid_file +
         ") ]; do sleep 0.01; done; ";
}

struct Blamed {
  int exit_code = 0;
  std::string errors = {};
};

Blamed who_is_blamed(int processes, const std::string& script, std::chrono::milliseconds last_words) {
  LaunchPlan plan = plan_of(processes, script);
  plan.last_words = last_words;
  ::testing::internal::CaptureStderr();
  const int code = run_launch(plan);
  return {.exit_code = code, .errors = ::testing::internal::GetCapturedStderr()};
}

TEST(FailureNotes, TheRankThatFailedByItselfIsBlamedAlsoWhenItEndsLast) {
  const TemporaryFolder folder;
  const std::string pid = folder / "pid";
  // Rank 0 caught the error and returns a code at once; rank 1, the cause, takes its time to unwind.
  const auto blamed = who_is_blamed(3,
                                    "if [ $RANK = 1 ]; then " + until_it_has_ended(pid) + "echo disk full; exit 5; fi; " +
                                        kNoteFailure + "[ $RANK = 0 ] && echo $$ > " + pid + "; exit 1",
                                    60s);
  EXPECT_EQ(blamed.exit_code, 5);
  EXPECT_EQ(RunningProgram::occurrences(blamed.errors, "accelerate launch: rank "), 1) << blamed.errors;
  EXPECT_NE(blamed.errors.find("rank 1 failed with exit code 5"), std::string::npos) << blamed.errors;
  EXPECT_EQ(blamed.errors.find("because a collective failed"), std::string::npos) << blamed.errors;
}

TEST(FailureNotes, ARankThatFailedByItselfMayTakeLongerThanTheTimeForLastWords) {
  const TemporaryFolder folder;
  const std::string pid = folder / "pid", noted = folder / "noted";
  const auto blamed = who_is_blamed(2,
                                    "if [ $RANK = 1 ]; then " + leave_note("o") + "echo 1 > " + noted + "; " +
                                        until_it_has_ended(pid) + "sleep 0.3; exit 5; fi; while [ ! -s " + noted +
                                        " ]; do sleep 0.01; done; " + kNoteFailure + "echo $$ > " + pid + "; exit 1",
                                    50ms);
  EXPECT_EQ(blamed.exit_code, 5) << blamed.errors;
}

TEST(FailureNotes, WithoutAnotherFailureTheFirstRankIsBlamedAndTheReportSaysThatACollectiveFailed) {
  const TemporaryFolder folder;
  const std::string pid = folder / "pid";
  const auto ended = who_is_blamed(2, "[ $RANK = 1 ] && exit 0; " + kNoteFailure + "exit 4", 60s);
  EXPECT_EQ(ended.exit_code, 4);
  EXPECT_NE(ended.errors.find("rank 0 failed with exit code 4 after "), std::string::npos) << ended.errors;
  EXPECT_NE(ended.errors.find(" s, because a collective failed; stopping the other rank."), std::string::npos) << ended.errors;
  // One that hangs is told to end, and that is not its failure.
  const auto hung = who_is_blamed(2, "[ $RANK = 1 ] && exec sleep 1000; " + kNoteFailure + "exit 4", 200ms);
  EXPECT_EQ(hung.exit_code, 4);
  EXPECT_NE(hung.errors.find("rank 0 failed with exit code 4"), std::string::npos) << hung.errors;
  // All of them: the first.
  const auto all = who_is_blamed(
      2, kNoteFailure + "if [ $RANK = 1 ]; then echo $$ > " + pid + "; exit 7; fi; " + until_it_has_ended(pid) + "exit 8", 60s);
  EXPECT_EQ(all.exit_code, 7) << all.errors;
}

TEST(FailureNotes, NotesOfAnAttemptDoNotCountInTheNext) {
  LaunchPlan plan =
      plan_of(2, "[ $RANK = 1 ] && exec sleep 1000; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || { " + kNoteFailure + "}; exit 6");
  plan.max_restarts = 1;
  plan.last_words = 200ms;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_launch(plan), 6);
  const std::string errors = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(RunningProgram::occurrences(errors, "because a collective failed"), 1) << errors;
}

TEST(FailureNotes, FunctionsAreBlamedTheSameWay) {
  const TemporaryFolder folder;
  LaunchPlan plan = plan_of(2, "");
  plan.last_words = 60s;
  const auto failure = run_functions(plan, [&](int rank) {
    if (rank == 0) {
      leave_failure_note(FailureNote::collective);
      std::ofstream(folder / "pid") << ::getpid() << std::endl;
      throw std::runtime_error("a peer is lost");
    }
    const pid_t other = pid_in(folder / "pid");
    wait_until("the end of rank 0", [other] { return state_of(other) == 'X'; });
    throw std::runtime_error("disk full");
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 1);
  EXPECT_EQ(failure->message, "disk full");
}

TEST(FailureNotes, ANoteIsWrittenToNothingButTheMemoryOfALauncher) {
  const TemporaryFolder folder;
  std::ofstream(folder / "mine") << "mine";
  for (const std::string place : {"mine:0", "mine", ":", "nonsense"}) {
    ::setenv(kFailureNotesVariable, (folder / place).c_str(), 1);
    leave_failure_note(FailureNote::collective);
  }
  std::string text;
  std::ifstream(folder / "mine") >> text;
  EXPECT_EQ(text, "mine");
  FailureNotes notes;
  ::setenv(kFailureNotesVariable, notes.place_of(3).c_str(), 1);
  leave_failure_note(FailureNote::collective);
  ::unsetenv(kFailureNotesVariable);
  EXPECT_EQ(notes.of(3), FailureNote::collective);
  EXPECT_EQ(notes.of(2), FailureNote::none);
  EXPECT_EQ(notes.of(4), FailureNote::none);
  notes.clear();
  EXPECT_EQ(notes.of(3), FailureNote::none);
}

}  // namespace
}  // namespace accelerate::testing
