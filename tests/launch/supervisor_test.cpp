#include <accelerate/launch/supervisor.h>

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "launch/worker_scripts.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

TEST(Supervisor, EndsWithZeroWhenAllRanksDo) {
  for (int processes = 1; processes <= 4; ++processes) {
    const auto result = run_program(launch(processes, "echo rank ${RANK:-alone}"));
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(lines_in(result.output), processes);
    for (int rank = 0; processes > 1 && rank < processes; ++rank) {
      EXPECT_EQ(RunningProgram::occurrences(result.output, "rank " + std::to_string(rank) + "\n"), 1);
    }
  }
}

TEST(Supervisor, EndsWithTheCodeOfTheRankThatFailed) {
  for (int processes = 1; processes <= 4; ++processes) {
    const std::string last = std::to_string(processes - 1);
    const auto result = run_program(launch(processes, "[ ${RANK:-0} = " + last + " ] && exit 37; exit 0"));
    EXPECT_EQ(result.exit_code, 37) << processes;
    const std::string said = "rank " + last + " failed with exit code 37 after ";
    EXPECT_EQ(RunningProgram::occurrences(result.errors, said), 1) << result.errors;
  }
}

TEST(Supervisor, ARankThatFailsWhileOthersAreStoppedChangesNothing) {
  const std::string script = std::string("trap 'exit 9' TERM; if [ $RANK = 1 ]; then exit 5; fi; ") + kWaitForever;
  const auto result = run_program(launch(3, script));
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "failed with"), 1) << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "rank 1 failed with exit code 5"), 1) << result.errors;
}

TEST(Supervisor, SaysWhichSignalEndedARank) {
  const auto result = run_program(launch(2, "[ $RANK = 1 ] && kill -SEGV $$; " + std::string(kWaitForever)));
  EXPECT_EQ(result.exit_code, 128 + SIGSEGV);
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "rank 1 was killed by SIGSEGV after "), 1) << result.errors;
}

TEST(Supervisor, TheRankThatEndedFirstIsBlamedEvenWhenItIsSeenTogetherWithOthers) {
  const TemporaryFolder folder;
  const std::string wait_for_file = "echo $RANK $$; while [ ! -e " + folder.name() +
                                    "/go$RANK ]; do sleep 0.01; done; "
                                    "exit $((RANK + 10))";
  RunningProgram program(launch(3, wait_for_file));
  const auto pid_of_rank = [&](const std::string& rank) {
    wait_until("rank " + rank, [&] { return !pids_after(rank, program.output()).empty(); });
    return pids_after(rank, program.output()).front();
  };
  const pid_t rank_0 = pid_of_rank("0");
  const pid_t rank_2 = pid_of_rank("2");
  program.signal(SIGSTOP);
  wait_until("the launcher to stop", [&] { return state_of(program.pid()) == 'T'; });
  std::ofstream(folder / "go2") << "";
  wait_until("rank 2 to end", [&] { return state_of(rank_2) == 'Z'; });
  std::ofstream(folder / "go0") << "";
  wait_until("rank 0 to end", [&] { return state_of(rank_0) == 'Z'; });
  program.signal(SIGCONT);
  const auto result = program.wait();
  EXPECT_EQ(result.exit_code, 12);
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "rank 2 failed"), 1) << result.errors;
}

TEST(Supervisor, PassesSignalsOnAndEndsWithTheSignal) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    const std::string name = ::sigabbrev_np(signal);
    RunningProgram program(launch(3, "trap 'echo told; exit 0' " + name + "; " + kWaitForever));
    program.wait_for_output("ready", 3);
    program.signal(signal);
    const auto result = program.wait();
    EXPECT_EQ(result.exit_code, 128 + signal) << name;
    EXPECT_EQ(RunningProgram::occurrences(result.output, "told"), 3) << name;
    EXPECT_EQ(RunningProgram::occurrences(result.errors, "SIG" + name), 1) << result.errors;
  }
}

TEST(Supervisor, TheFirstReasonToStopDecidesTheExitCode) {
  RunningProgram program(launch(2, std::string("trap 'echo told' TERM; trap 'exit 0' INT; ") + kWaitForever));
  program.wait_for_output("ready", 2);
  program.signal(SIGTERM);
  program.wait_for_output("told", 2);
  program.signal(SIGINT);
  EXPECT_EQ(program.wait().exit_code, 128 + SIGTERM);
}

TEST(Supervisor, ASecondInterruptKillsAtOnce) {
  RunningProgram program(launch(2, "trap 'echo told' INT; " + std::string(kWaitForever)));
  program.wait_for_output("ready", 2);
  program.signal(SIGINT);
  program.wait_for_output("told", 2);
  program.signal(SIGINT);
  const auto result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_LT(result.seconds, 20);
}

TEST(Supervisor, WorkersThatDoNotStopAreKilledAfterTheGracePeriod) {
  const TemporaryFolder folder;
  const std::string ready = folder / "ready";
  const std::string script = "if [ $RANK = 0 ]; then while [ ! -e " + ready +
                             " ]; do sleep 0.01; done; exit 4; fi; "
                             "trap '' TERM; touch " +
                             ready + "; while :; do sleep 0.05; done";
  const auto started = std::chrono::steady_clock::now();
  ::testing::internal::CaptureStderr();
  const int code = run_launch(plan_of(2, script, 300ms));
  const std::string errors = ::testing::internal::GetCapturedStderr();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  EXPECT_EQ(code, 4);
  EXPECT_GE(took.count(), 0.3);
  EXPECT_LT(took.count(), 20);
  EXPECT_EQ(lines_in(errors), 1) << errors;
}

TEST(Supervisor, WhatAWorkerStartedHasTheGracePeriodToo) {
  const TemporaryFolder folder;
  // The shell dies of SIGTERM at once; the program it started saves its work first.
  const std::string started = folder / "started";
  const std::string saved = folder / "saved";
  const std::string saving = "trap \"sleep 0.3; touch " + saved + "; exit 0\" TERM; touch " + started + "; " + kWaitForever;
  const std::string script = "if [ $RANK = 0 ]; then while [ ! -e " + started +
                             " ]; do sleep 0.01; done; exit 4; fi; "
                             "sh -c '" +
                             saving + "'; true";
  EXPECT_EQ(run_program(launch(2, script)).exit_code, 4);
  EXPECT_TRUE(fs::exists(saved));
}

TEST(Supervisor, WhatAWorkerStartedIsGoneWhenAnotherFails) {
  const TemporaryFolder folder;
  // The grandchild ignores SIGTERM and its parent does not, so only the end of the grace period ends it.
  const std::string script = "if [ $RANK = 0 ]; then while [ ! -s " + folder.name() +
                             "/pid ]; do sleep 0.01; done; exit 4; fi; "
                             "sh -c 'trap \"\" TERM; echo $$ > " +
                             folder.name() + "/pid; while :; do sleep 0.05; done' & wait";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_launch(plan_of(2, script, 300ms)), 4);
  ::testing::internal::GetCapturedStderr();
  pid_t grandchild = 0;
  std::ifstream(folder / "pid") >> grandchild;
  ASSERT_GT(grandchild, 0);
  EXPECT_EQ(state_of(grandchild), 'X');
}

TEST(Supervisor, LeavesNoChildAndNoChangedSignalsBehind) {
  sigset_t before, after;
  ::sigprocmask(SIG_BLOCK, nullptr, &before);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_launch(plan_of(4, "sleep 100 & [ $RANK = 2 ] && exit 6; wait")), 6);
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  ::sigprocmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal < NSIG; ++signal) EXPECT_EQ(::sigismember(&before, signal), ::sigismember(&after, signal));
}

TEST(Supervisor, SeesTheEndOfWorkersAlsoWhenItsParentIgnoresChildren) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_launch(plan_of(2, "exit 6")), 6);
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(::signal(SIGCHLD, before), SIG_IGN);
}

TEST(Supervisor, WorkersEndWithALauncherThatIsKilled) {
  RunningProgram program(launch(3, "echo worker $$; while :; do sleep 0.05; done"));
  program.wait_for_output("worker", 3);
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait().exit_code, 128 + SIGKILL);
  for (pid_t worker : pids_after("worker", program.output())) {
    wait_until("the end of a worker", [worker] { return has_ended(worker); });
  }
}

TEST(Supervisor, WorkersLeadGroupsOfTheirOwn) {
  const auto result = run_program(launch(2, "set -- $(cat /proc/$$/stat); [ $$ = $5 ] && echo leads"));
  EXPECT_EQ(result.output, "leads\nleads\n") << result.errors;
}

// The bits of /proc/self/status in a lone worker, whose launcher began with `names` ignored.
std::pair<unsigned long long, unsigned long long> blocked_and_ignored_after(const std::string& names) {
  const std::string script = "trap '' " + names + "; exec \"$0\" launch grep -E 'Sig(Blk|Ign)' /proc/self/status";
  const auto result = run_program({"sh", "-c", script, ACCELERATE_CLI});
  unsigned long long blocked = 1, ignored = 1;
  EXPECT_EQ(std::sscanf(result.output.c_str(), "SigBlk:\t%llx\nSigIgn:\t%llx", &blocked, &ignored), 2)
      << result.output << result.errors;
  // 32 and 33 belong to the C library, which lets nobody touch them; whoever runs the tests may have them ignored.
  return {blocked, ignored & ~(3ull << 31)};
}

TEST(Supervisor, WorkersIgnoreOnlyWhatTheUserWantedIgnored) {
  EXPECT_EQ(blocked_and_ignored_after("PIPE ALRM CHLD"), std::pair(0ull, 0ull));
  unsigned long long kept = 0;
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGUSR1, SIGUSR2}) kept |= 1ull << (signal - 1);
  EXPECT_EQ(blocked_and_ignored_after("INT TERM HUP QUIT TSTP USR1 USR2"), std::pair(0ull, kept));
}

// nohup, or a job that a script starts with &.
TEST(Supervisor, SignalsThatItBeganWithIgnoredEndNothing) {
  const TemporaryFolder folder;
  const std::string go = folder / "go";
  const std::string script =
      "echo ready; while [ ! -e " + go + " ]; do sleep 0.01; done; kill -HUP $$; kill -INT $$; echo survived";
  std::vector<std::string> argv = {"sh", "-c", "trap '' HUP INT QUIT TERM TSTP; exec \"$@\"", "sh"};
  for (const std::string& argument : launch(2, script)) argv.push_back(argument);
  RunningProgram program(argv);
  program.wait_for_output("ready", 2);
  for (int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP}) program.signal(signal);
  std::ofstream(go) << "";
  const auto result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "survived"), 2);
}

TEST(Supervisor, UserSignalsArePassedOnAndEndNothing) {
  for (int signal : {SIGUSR1, SIGUSR2}) {
    const std::string name = ::sigabbrev_np(signal);
    RunningProgram program(launch(2, "trap 'echo told; exit 0' " + name + "; " + kWaitForever),
                           {.environment = {{"OMP_NUM_THREADS", "1"}}});
    program.wait_for_output("ready", 2);
    program.signal(signal);
    const auto result = program.wait();
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(RunningProgram::occurrences(result.output, "told"), 2) << name;
    EXPECT_EQ(RunningProgram::occurrences(result.errors, "accelerate launch"), 0) << result.errors;
  }
}

TEST(Supervisor, ALauncherWithoutStreamsGivesItsWorkersNoneOfItsFiles) {
  const TemporaryFolder folder;
  const std::string seen = folder / "seen";
  const std::string script =
      "\"$0\" launch --cpu --num_processes 2 sh -c '[ $RANK = 1 ] || readlink /proc/$$/fd/0 > " + seen + "' <&- >&- 2>&-";
  EXPECT_EQ(run_program({"sh", "-c", script, ACCELERATE_CLI}).exit_code, 0);
  std::string input;
  std::ifstream(seen) >> input;
  EXPECT_EQ(input, "/dev/null");
}

TEST(Supervisor, RanksOfAnotherLaunchDoNotReachALoneWorker) {
  const RunOptions inside_another = {.environment = {{"RANK", "1"},
                                                     {"WORLD_SIZE", "2"},
                                                     {"LOCAL_RANK", "1"},
                                                     {"LOCAL_WORLD_SIZE", "2"},
                                                     {"TORCHELASTIC_RUN_ID", "none"},
                                                     {"KEPT", "yes"}}};
  const auto result = run_program(launch(1, "env"), inside_another);
  EXPECT_EQ(RunningProgram::occurrences(result.output, "RANK="), 0) << result.output;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "WORLD_SIZE="), 0) << result.output;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "TORCHELASTIC_"), 0) << result.output;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "KEPT=yes"), 1) << result.output;
}

TEST(Supervisor, EveryVariableIsSetOnce) {
  const auto result = run_program(launch(2, "[ $RANK = 0 ] || tr '\\0' '\\n' < /proc/$$/environ"),
                                  {.environment = {{"RANK", "7"}, {"OMP_NUM_THREADS", "3"}}});
  EXPECT_EQ(RunningProgram::occurrences("\n" + result.output, "\nRANK="), 1) << result.output;
  EXPECT_EQ(RunningProgram::occurrences("\n" + result.output, "\nOMP_NUM_THREADS=3\n"), 1) << result.output;
}

TEST(Supervisor, RankZeroHasTheInputAndTheOthersNone) {
  // Who reads first would take all, so the others are asked what their input is, not what they read.
  const std::string script = "if [ $RANK = 0 ]; then echo read $(cat); else echo $RANK has $(readlink /proc/$$/fd/0); fi";
  const auto result = run_program(launch(3, script), {.input = "text"});
  EXPECT_EQ(RunningProgram::occurrences(result.output, "read text\n"), 1) << result.output;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "1 has /dev/null\n"), 1) << result.output;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "2 has /dev/null\n"), 1) << result.output;
}

TEST(Supervisor, ScriptsWithoutAnInterpreterLineRunAsInAShell) {
  const TemporaryFolder folder;
  const std::string script = folder / "script";
  std::ofstream(script) << "exit 21\n";
  fs::permissions(script, fs::perms::owner_all);
  EXPECT_EQ(run_program({ACCELERATE_CLI, "launch", script}).exit_code, 21);
}

TEST(Supervisor, AFileThatOnlyLooksExecutableFailsAsInAShell) {
  const TemporaryFolder folder;
  const std::string script = folder / "script";
  std::ofstream(script) << "#!/no/such/interpreter\n";
  fs::permissions(script, fs::perms::owner_all);
  const auto result = run_program({ACCELERATE_CLI, "launch", script});
  EXPECT_EQ(result.exit_code, 126);
  EXPECT_EQ(RunningProgram::occurrences(result.errors, script), 1) << result.errors;
}

TEST(Supervisor, ProgramsAreFoundInThePathOfTheLauncher) {
  const TemporaryFolder folder;
  const std::string script = folder / "here-only";
  std::ofstream(script) << "#!/bin/sh\nexit 22\n";
  fs::permissions(script, fs::perms::owner_all);
  const RunOptions options = {.environment = {{"PATH", "/no/such/folder:" + folder.name()}}};
  EXPECT_EQ(run_program({ACCELERATE_CLI, "launch", "here-only"}, options).exit_code, 22);
}

}  // namespace
}  // namespace accelerate::testing
