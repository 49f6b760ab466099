#include <accelerate/launch/supervisor.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <accelerate/core/error.h>
#include "hosts/child_processes.h"
#include "launch/watchdog.h"
#include "launch/worker_scripts.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

using namespace std::chrono_literals;

// What `run_launch` does in this process, with what it says.
struct Ended {
  int exit_code = 0;
  std::string errors = {};
  double seconds = 0;
};

Ended run_here(const LaunchPlan& plan) {
  const auto started = std::chrono::steady_clock::now();
  ::testing::internal::CaptureStderr();
  const int code = run_launch(plan);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  return {.exit_code = code, .errors = ::testing::internal::GetCapturedStderr(), .seconds = took.count()};
}

// Rank 0 fails with 4 once `file` is there.
std::string rank_0_fails_after(const std::string& file) {
  return "if [ $RANK = 0 ]; then while [ ! -s " + file + " ]; do sleep 0.01; done; exit 4; fi; ";
}

// `script` runs without a controlling terminal, in a session of its own, and its parent ends at once.
std::string as_daemon(const std::string& script) { return "(setsid sh -c '" + script + "' &); "; }

TEST(Supervisor, StoppedWorkersEndWithTheOthers) {
  RunningProgram program(launch(2, "echo worker $$; kill -STOP $$; " + std::string(kWaitForever)));
  program.wait_for_output("worker", 2);
  for (pid_t worker : pids_after("worker", program.output())) {
    wait_until("a worker to stop", [worker] { return state_of(worker) == 'T'; });
  }
  program.signal(SIGTERM);
  const auto result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_LT(result.seconds, 20);
}

TEST(Supervisor, TheOthersMayFailByThemselvesBeforeTheyAreStopped) {
  const TemporaryFolder folder;
  const std::string pid = folder / "pid", words = folder / "words";
  // Rank 1 notices the end of rank 0, and would not survive a signal.
  LaunchPlan plan = plan_of(2, "if [ $RANK = 0 ]; then echo $$ > " + pid + "; exit 3; fi; while [ ! -s " + pid +
                                   " ]; do sleep 0.01; done; while [ -e /proc/$(cat " + pid +
                                   ") ]; do sleep 0.01; done; echo lost rank 0 > " + words + "; exit 9");
  plan.last_words = 60s;
  const Ended ended = run_here(plan);
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_TRUE(std::filesystem::exists(words));
  EXPECT_LT(ended.seconds, 30) << "nobody was left to wait for";
  EXPECT_EQ(lines_in(ended.errors), 1) << ended.errors;
}

TEST(Supervisor, OthersThatGoOnAreStoppedWhenTheTimeForLastWordsIsOver) {
  LaunchPlan plan = plan_of(2, "[ $RANK = 0 ] && exit 3; " + std::string(kWaitForever) + " > /dev/null");
  plan.last_words = 300ms;
  const Ended ended = run_here(plan);
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_GE(ended.seconds, 0.3);
  EXPECT_LT(ended.seconds, 20);
}

TEST(Supervisor, ASignalIsPassedOnAtOnceAlsoWhileOthersSayTheirLastWords) {
  const TemporaryFolder folder;
  const std::string pid = folder / "pid";
  LaunchPlan plan = plan_of(2, "if [ $RANK = 0 ]; then echo $$ > " + pid + "; exit 3; fi; while [ ! -s " + pid +
                                   " ]; do sleep 0.01; done; while [ -e /proc/$(cat " + pid +
                                   ") ]; do sleep 0.01; done; kill -TERM $PPID; while :; do sleep 0.05; done");
  plan.last_words = 60s;
  const Ended ended = run_here(plan);
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_LT(ended.seconds, 30);
}

TEST(Supervisor, DaemonsOfWorkersAreToldToEndWhenALaunchFails) {
  const TemporaryFolder folder;
  const std::string pid = folder / "pid", saved = folder / "saved";
  const std::string daemon = "trap \"touch " + saved + "; exit 0\" TERM; echo $$ > " + pid + "; while :; do sleep 0.05; done";
  EXPECT_EQ(run_here(plan_of(2, as_daemon(daemon) + rank_0_fails_after(pid) + "wait")).exit_code, 4);
  EXPECT_EQ(state_of(pid_in(pid)), 'X');
  EXPECT_TRUE(std::filesystem::exists(saved));
}

TEST(Supervisor, DaemonsOfWorkersThatDoNotEndAreKilled) {
  const TemporaryFolder folder;
  const std::string pid = folder / "pid";
  // The first one leaves a second one behind, which becomes ours only then.
  const std::string second = "(setsid sh -c \"trap : TERM; echo \\$\\$ > " + pid + "; while :; do sleep 0.05; done\" &)";
  const std::string script =
      as_daemon(second + "; trap \"\" TERM; while :; do sleep 0.05; done") + rank_0_fails_after(pid) + "wait";
  EXPECT_EQ(run_here(plan_of(2, script, 300ms)).exit_code, 4);
  EXPECT_EQ(state_of(pid_in(pid)), 'X');
  EXPECT_TRUE(list_children(::getpid()).empty());
}

TEST(Supervisor, DaemonsOfACleanRunAreLeftAlone) {
  const TemporaryFolder folder;
  const std::string pid = folder / "pid";
  const std::string script =
      as_daemon("echo $$ > " + pid + "; while :; do sleep 0.05; done") + "while [ ! -s " + pid + " ]; do sleep 0.01; done";
  EXPECT_EQ(run_here(plan_of(1, script)).exit_code, 0);
  const pid_t daemon = pid_in(pid);
  EXPECT_FALSE(has_ended(daemon));
  ::kill(daemon, SIGKILL);
  ::waitpid(daemon, nullptr, 0);
}

TEST(Supervisor, OrphansOfWorkersThatHaveEndedAreNotKeptUntilTheEnd) {
  RunningProgram program(launch(1, "for i in 1 2 3 4 5; do (true &); (setsid true &); done; " + std::string(kWaitForever)));
  program.wait_for_output("ready");
  // The worker and the watchdog.
  wait_until(
      "the orphans to be reaped", [&] { return list_children(program.pid()).size() == 2; }, 20s);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait().exit_code, 128 + SIGTERM);
}

TEST(Supervisor, ChildrenThatItDidNotStartAreLeftAlone) {
  RunningProgram other({"sleep", "1000"});
  EXPECT_EQ(run_here(plan_of(2, "exit 6")).exit_code, 6);
  EXPECT_FALSE(has_ended(other.pid()));
}

TEST(Supervisor, TheGracePeriodCanBeChosen) {
  auto argv = launch(1, "trap '' TERM; " + std::string(kWaitForever));
  argv.insert(argv.begin() + 2, {"--grace_period", "0.2"});
  RunningProgram program(argv);
  program.wait_for_output("ready");
  program.signal(SIGTERM);
  const auto result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_LT(result.seconds, 20);
}

pid_t keeper_of(pid_t launcher) {
  pid_t watchdog = 0;
  wait_until("the watchdog", [&] {
    for (pid_t child : list_children(launcher)) {
      std::string name;
      std::getline(std::ifstream("/proc/" + std::to_string(child) + "/comm"), name);
      if (name == "accelerate-wdog") watchdog = child;
    }
    return watchdog != 0;
  });
  return watchdog;
}

TEST(Supervisor, WhatWorkersStartedEndsWithALauncherThatIsKilled) {
  RunningProgram program(launch(3, "echo worker $$; trap '' TERM HUP; sh -c 'sleep 1000 & echo child $!; wait' & wait"));
  program.wait_for_output("child", 3);
  const pid_t watchdog = keeper_of(program.pid());
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::kill(watchdog, signal);
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait().exit_code, 128 + SIGKILL);
  auto gone = pids_after("child", program.output());
  for (pid_t worker : pids_after("worker", program.output())) gone.push_back(worker);
  gone.push_back(watchdog);
  for (pid_t pid : gone) wait_until("the end of a process", [pid] { return has_ended(pid); });
}

// Everything that a worker may start and that leaves its group: its own child, a child of its child, and a daemon.
constexpr const char* kLeavers =
    "timeout 1000 sh -c 'echo left $$; exec sleep 1000' & setsid sh -c 'echo left $$; exec sleep 1000' & "
    "(setsid sh -c 'echo left $$; trap \"\" TERM HUP; sleep 1000 & echo left $!; wait' &); echo worker $$; wait";

TEST(Supervisor, WhatHasLeftItsWorkersGroupEndsWithALauncherThatIsKilledAndNothingElse) {
  RunningProgram bystander({"sleep", "1000"});
  RunningProgram other(launch(1, kLeavers));
  RunningProgram program(launch(2, kLeavers));
  program.wait_for_output("left", 8);
  other.wait_for_output("left", 4);
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait().exit_code, 128 + SIGKILL);
  for (pid_t pid : pids_after("left", program.output()))
    wait_until(
        "the end of a process", [pid] { return has_ended(pid); }, 20s);
  EXPECT_FALSE(has_ended(bystander.pid()));
  for (pid_t pid : pids_after("left", other.output())) EXPECT_FALSE(has_ended(pid)) << "of another launch";
  other.signal(SIGKILL);
  for (pid_t pid : pids_after("left", other.output()))
    wait_until(
        "the end of a process", [pid] { return has_ended(pid); }, 20s);
}

TEST(Supervisor, ALaunchInsideOfALaunchEndsWithTheOuterOne) {
  const std::string inner =
      "exec " ACCELERATE_CLI " launch --cpu --num_processes 1 sh -c \"setsid sh -c 'echo left \\$\\$; exec sleep 1000' & wait\"";
  RunningProgram program(launch(1, inner));
  program.wait_for_output("left");
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait().exit_code, 128 + SIGKILL);
  for (pid_t pid : pids_after("left", program.output()))
    wait_until(
        "the end of a process", [pid] { return has_ended(pid); }, 20s);
}

TEST(Supervisor, ALauncherWhoseKeeperWasKilledGoesOn) {
  const TemporaryFolder folder;
  const std::string go = folder / "go";
  RunningProgram program(launch(2, "echo ready; while [ ! -e " + go + " ]; do sleep 0.01; done; exit 5"));
  program.wait_for_output("ready", 2);
  ::kill(keeper_of(program.pid()), SIGKILL);
  std::ofstream(go) << "";
  EXPECT_EQ(program.wait().exit_code, 5);
}

// A process that leads a group and waits to be killed.
class LoneGroup {
 public:
  LoneGroup() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) ::pause();
    }
    ::setpgid(pid_, pid_);
  }
  ~LoneGroup() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  LoneGroup(const LoneGroup&) = delete;
  LoneGroup& operator=(const LoneGroup&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(Watchdog, EndsTheGroupsThatItHoldsAndNoneThatItWasToldToForget) {
  const LoneGroup held, forgotten, replaced;
  Watchdog watchdog(2);
  watchdog.hold(0, forgotten.pid());
  watchdog.forget(0);
  watchdog.hold(1, replaced.pid());
  watchdog.hold(1, held.pid());
  watchdog.release();
  wait_until("the end of the group", [&] { return has_ended(held.pid()); });
  EXPECT_EQ(::waitpid(watchdog.pid(), nullptr, 0), watchdog.pid());
  EXPECT_FALSE(has_ended(forgotten.pid()));
  EXPECT_FALSE(has_ended(replaced.pid()));
}

TEST(Watchdog, EndsNothingWhenItIsDismissed) {
  const LoneGroup held;
  Watchdog watchdog(1);
  watchdog.hold(0, held.pid());
  watchdog.dismiss();
  EXPECT_EQ(state_of(watchdog.pid()), 'X');
  EXPECT_FALSE(has_ended(held.pid()));
}

std::vector<std::string> launch_with_restarts(int restarts, const std::string& script) {
  auto argv = launch(2, script);
  argv.insert(argv.begin() + 2, {"--num_cpu_threads_per_process", "1", "--max_restarts", std::to_string(restarts)});
  return argv;
}

TEST(Supervisor, StartsAllRanksAgainUntilNoneFails) {
  const auto result = run_program(
      launch_with_restarts(3,
                           "echo attempt $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS; "
                           "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 1 ] && exit 7; exec sleep 1000"));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "attempt 0/3"), 2) << result.output;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "attempt 1/3"), 2) << result.output;
  EXPECT_EQ(lines_in(result.output), 4) << result.output;
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "attempt 2 of 4"), 1) << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "accelerate launch: "), 2) << result.errors;
}

TEST(Supervisor, EndsWithTheCodeOfTheLastAttempt) {
  const auto result = run_program(launch_with_restarts(2, "exit $((10 + TORCHELASTIC_RESTART_COUNT))"));
  EXPECT_EQ(result.exit_code, 12);
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "attempt 2 of 3"), 1) << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "attempt 3 of 3"), 1) << result.errors;
}

TEST(Supervisor, AnAttemptBeginsWhenNothingIsLeftOfTheOneBefore) {
  const TemporaryFolder folder;
  const std::string first = folder / "first";
  const std::string script = "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then [ ! -e /proc/$(cat " + first + ") ]; exit; fi; " +
                             as_daemon("trap \"\" TERM; echo $$ > " + first + "; while :; do sleep 0.05; done") +
                             rank_0_fails_after(first) + "wait";
  LaunchPlan plan = plan_of(2, script, 300ms);
  plan.max_restarts = 1;
  const Ended ended = run_here(plan);
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
}

TEST(Supervisor, ASignalIsNotAnsweredWithARestart) {
  RunningProgram program(launch_with_restarts(3, "trap 'exit 9' TERM; " + std::string(kWaitForever)));
  program.wait_for_output("ready", 2);
  program.signal(SIGTERM);
  const auto result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_EQ(RunningProgram::occurrences(result.output, "ready"), 2) << result.output;
}

TEST(Supervisor, ALaunchWithoutAProgramIsAnError) {
  LaunchPlan plan = plan_of(1, "");
  plan.workers.front().argv.clear();
  EXPECT_THROW(run_launch(plan), UsageError);
}

}  // namespace
}  // namespace accelerate::testing
