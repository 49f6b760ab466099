#include "launch/function_launch.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/mman.h>
#include <sys/time.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <thread>

#include <accelerate/core/error.h>
#include "hosts/child_processes.h"
#include "launch/worker_scripts.h"

namespace accelerate::testing {

using namespace detail;
namespace {

using namespace std::chrono_literals;

LaunchPlan functions(int count) { return plan_of(count, ""); }

[[noreturn]] void wait_for_a_signal() {
  for (;;) ::pause();
}

// Numbers that processes forked from the test write for it to see.
class SharedNumbers {
 public:
  SharedNumbers() {
    memory_ = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    numbers_ = static_cast<std::atomic<int>*>(memory_);
  }
  ~SharedNumbers() { ::munmap(memory_, 4096); }
  SharedNumbers(const SharedNumbers&) = delete;
  SharedNumbers& operator=(const SharedNumbers&) = delete;
  std::atomic<int>& operator[](int index) const { return numbers_[index]; }

 private:
  void* memory_ = nullptr;
  std::atomic<int>* numbers_ = nullptr;
};

TEST(FunctionLaunch, WorkersSeeWhatTheProgramHadAndChangeNothingOfIt) {
  int value = 41;
  const SharedNumbers seen;
  const auto failure = run_functions(functions(3), [&](int rank) {
    seen[rank] = value + rank;
    value = 0;
  });
  EXPECT_FALSE(failure) << failure->message;
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(seen[rank], 41 + rank);
  EXPECT_EQ(value, 41);
}

TEST(FunctionLaunch, WorkersHaveThePlacesOfThePlan) {
  ::setenv("TORCHELASTIC_ERROR_FILE", "of another launch", 1);
  const LaunchPlan plan = functions(2);
  const SharedNumbers right;
  run_functions(plan, [&](int rank) {
    const auto& variables = plan.workers.at(static_cast<size_t>(rank)).variables;
    right[rank] = std::all_of(variables.begin(), variables.end(),
                              [](const auto& variable) {
                                const char* found = std::getenv(variable.first.c_str());
                                return found != nullptr && found == variable.second;
                              }) &&
                  std::getenv("TORCHELASTIC_ERROR_FILE") == nullptr;
  });
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  EXPECT_EQ(right[0], 1);
  EXPECT_EQ(right[1], 1);
  EXPECT_EQ(std::getenv("RANK"), nullptr) << "the program is no worker";
}

TEST(FunctionLaunch, AnExceptionReachesTheCallerWithItsRank) {
  ::testing::internal::CaptureStderr();
  const auto failure = run_functions(functions(3), [](int rank) {
    if (rank == 2) throw UsageError("the loss is not a number");
    wait_for_a_signal();
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "the caller tells it";
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 2);
  EXPECT_EQ(failure->exit_code, 1);
  EXPECT_EQ(failure->signal, 0);
  EXPECT_EQ(failure->message, "the loss is not a number");
  EXPECT_GE(failure->seconds, 0);
}

TEST(FunctionLaunch, WhatIsNoExceptionOfTheStandardIsAFailureToo) {
  const auto failure = run_functions(functions(1), [](int) { throw 5; });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->message, "unknown exception");
}

TEST(FunctionLaunch, ALongMessageIsCut) {
  const std::string text(1 << 20, 'x');
  const auto failure = run_functions(functions(2), [&](int) { throw std::runtime_error(text); });
  ASSERT_TRUE(failure);
  EXPECT_GT(failure->message.size(), 1000u);
  EXPECT_EQ(failure->message, text.substr(0, failure->message.size()));
}

TEST(FunctionLaunch, ASignalThatEndsAWorkerIsReported) {
  for (int number : {SIGSEGV, SIGKILL, SIGTERM}) {
    const auto failure = run_functions(functions(2), [number](int rank) {
      if (rank == 0) wait_for_a_signal();
      ::signal(number, SIG_DFL);
      ::raise(number);
    });
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->rank, 1);
    EXPECT_EQ(failure->signal, number);
    EXPECT_EQ(failure->exit_code, 128 + number);
    EXPECT_EQ(failure->message, "");
  }
}

TEST(FunctionLaunch, AWorkerThatExitsIsReportedWithItsCode) {
  const auto failure = run_functions(functions(1), [](int) { ::_exit(139); });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->exit_code, 139);
  EXPECT_EQ(failure->signal, 0);
}

TEST(FunctionLaunch, TheRankThatFailedFirstIsReported) {
  const SharedNumbers first;
  LaunchPlan plan = functions(2);
  plan.last_words = 60s;
  const auto failure = run_functions(plan, [&](int rank) {
    if (rank == 1) {
      first[0] = ::getpid();
      throw std::runtime_error("the cause");
    }
    wait_until("the end of rank 1", [&] { return first[0] != 0 && state_of(first[0]) == 'X'; });
    throw std::runtime_error("a consequence");
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 1);
  EXPECT_EQ(failure->message, "the cause");
}

TEST(FunctionLaunch, SixtyFourWorkersAreNotTooMany) {
  const SharedNumbers seen;
  const auto failure = run_functions(functions(64), [&](int rank) { seen[rank] = rank + 1; });
  EXPECT_FALSE(failure);
  for (int rank = 0; rank < 64; ++rank) EXPECT_EQ(seen[rank], rank + 1);
}

TEST(FunctionLaunch, AFailedAttemptIsStartedAgain) {
  LaunchPlan plan = plan_of(2, "");
  plan.max_restarts = 2;
  const SharedNumbers ran;
  ::testing::internal::CaptureStderr();
  const auto failure = run_functions(plan, [&](int rank) {
    const std::string attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
    ++ran[rank];
    if (attempt == "0" && rank == 1) throw std::runtime_error("once");
    if (attempt == "0") wait_for_a_signal();
  });
  const std::string errors = ::testing::internal::GetCapturedStderr();
  EXPECT_FALSE(failure);
  EXPECT_EQ(ran[1], 2);
  EXPECT_EQ(RunningProgram::occurrences(errors, "attempt 2 of 3"), 1) << errors;
}

TEST(FunctionLaunch, AMessageOfAnEarlierAttemptIsForgotten) {
  LaunchPlan plan = functions(1);
  plan.workers.front().variables["TORCHELASTIC_RESTART_COUNT"] = "0";
  plan.max_restarts = 1;
  ::testing::internal::CaptureStderr();
  const auto failure = run_functions(plan, [](int) {
    if (std::string(std::getenv("TORCHELASTIC_RESTART_COUNT")) == "0") throw std::runtime_error("earlier");
    ::_exit(3);
  });
  ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->exit_code, 3);
  EXPECT_EQ(failure->message, "");
}

TEST(FunctionLaunch, LeavesNoChildAndNoChangedSignalsBehind) {
  sigset_t before, after;
  ::sigprocmask(SIG_BLOCK, nullptr, &before);
  run_functions(functions(4), [](int rank) {
    if (::fork() == 0) wait_for_a_signal();
    if (rank == 3) throw std::runtime_error("");
    wait_for_a_signal();
  });
  EXPECT_TRUE(list_children(::getpid()).empty());
  ::sigprocmask(SIG_BLOCK, nullptr, &after);
  for (int number = 1; number < NSIG; ++number) EXPECT_EQ(::sigismember(&before, number), ::sigismember(&after, number));
}

TEST(FunctionLaunch, DaemonsThatKeepForkingAreCaught) {
  const SharedNumbers forks;
  int held_by_all[2];
  ASSERT_EQ(::pipe(held_by_all), 0);
  LaunchPlan plan = functions(1);
  plan.grace_period = 0ms;
  const auto failure = run_functions(plan, [&](int) {
    ::signal(SIGTERM, SIG_IGN);
    if (::fork() != 0) {
      wait_until("some of them", [&] { return forks[0] > 3; });
      ::_exit(3);
    }
    // Each is the child of one that has just ended, and in a session of its own.
    while (++forks[0] < 10'000) {
      ::setsid();
      if (::fork() != 0) ::_exit(0);
      ::usleep(1000);
    }
    ::_exit(0);
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->exit_code, 3);
  const int before = forks[0];
  ::close(held_by_all[1]);
  char end;
  EXPECT_EQ(::read(held_by_all[0], &end, 1), 0) << "which returns when the last of them is gone";
  ::close(held_by_all[0]);
  EXPECT_EQ(forks[0], before) << "one of them went on";
}

// As after `sudo` in a worker. Only root can make processes of two users.
TEST(FunctionLaunch, WhatBelongsToAnotherUserIsNotWaitedFor) {
  if (::geteuid() != 0) return;
  const SharedNumbers seen;
  const pid_t program = ::fork();
  if (program == 0) {
    constexpr uid_t kNobody = 65534;
    if (::setresuid(kNobody, kNobody, 0) != 0) ::_exit(1);
    const auto failure = run_functions(functions(2), [&](int rank) {
      if (rank == 1) wait_for_a_signal();
      if (::fork() == 0) {
        if (::setresuid(0, 0, 0) == 0) seen[0] = ::getpid();
        wait_for_a_signal();
      }
      wait_until("the process of root", [&] { return seen[0] != 0; });
      ::_exit(3);
    });
    ::_exit(failure ? failure->exit_code : 0);
  }
  int status = 0;
  EXPECT_NO_THROW(wait_until(
      "the end of the launch", [&] { return ::waitpid(program, &status, WNOHANG) == program; }, 20s));
  EXPECT_EQ(WEXITSTATUS(status), 3);
  ASSERT_GT(seen[0], 0);
  EXPECT_FALSE(has_ended(seen[0]));
  ::kill(seen[0], SIGKILL);
}

TEST(FunctionLaunch, WorkersHaveTheSignalsOfTheProgram) {
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  ::signal(SIGUSR2, SIG_IGN);
  const auto child_before = ::signal(SIGCHLD, SIG_IGN);
  const SharedNumbers right;
  const auto failure = run_functions(functions(1), [&](int) {
    sigset_t mask;
    ::sigprocmask(SIG_BLOCK, nullptr, &mask);
    right[0] = ::sigismember(&mask, SIGUSR1) == 1 && ::sigismember(&mask, SIGTERM) == 0 && ::sigismember(&mask, SIGCHLD) == 0;
    right[1] = ::signal(SIGUSR2, SIG_DFL) == SIG_IGN && ::signal(SIGCHLD, SIG_DFL) == SIG_IGN;
    throw std::runtime_error("seen");
  });
  ::signal(SIGUSR2, SIG_DFL);
  ::signal(SIGCHLD, child_before);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(right[0], 1);
  EXPECT_EQ(right[1], 1);
  ASSERT_TRUE(failure) << "a program that ignores its children still learns how they ended";
  EXPECT_EQ(failure->message, "seen");
}

TEST(FunctionLaunch, SignalsThatTheProgramHandlesDoNotDisturbItsWaiting) {
  struct sigaction count = {}, before = {};
  count.sa_handler = [](int) {};  // without SA_RESTART: waiting is interrupted
  ::sigaction(SIGALRM, &count, &before);
  const itimerval often = {.it_interval = {.tv_sec = 0, .tv_usec = 1000}, .it_value = {.tv_sec = 0, .tv_usec = 1000}};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  const auto failure = run_functions(functions(2), [](int) { std::this_thread::sleep_for(100ms); });
  const itimerval never = {};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  EXPECT_FALSE(failure);
}

void keep_busy() {
#ifdef __SANITIZE_ADDRESS__
  // The sanitizer's own allocator, unlike the C library's, stays locked in the copy when a thread was just allocating.
  std::this_thread::yield();
#else
  std::vector<std::string>(20, std::string(100, 'x'));
#endif
}

TEST(FunctionLaunch, WorksInAProgramWhoseThreadsAllocateAllTheTime) {
  std::atomic<bool> over = false;
  std::atomic<int> running = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      ++running;
      while (!over) keep_busy();
    });
  }
  wait_until("all threads", [&] { return running == 4; });
  for (int i = 0; i < 5; ++i) {
    const auto failure = run_functions(functions(4), [](int rank) {
      std::vector<std::string> text(1000, std::to_string(rank));
      if (rank == 3) throw std::runtime_error("as expected");
    });
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->message, "as expected");
  }
  over = true;
  for (auto& thread : threads) thread.join();
}

// What `body` writes to stdout in a process of its own.
std::string output_of(const std::function<void()>& body) {
  const int file = ::memfd_create("output", MFD_CLOEXEC);
  ::fcntl(file, F_SETFL, O_APPEND);
  std::fflush(stdout);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(file, STDOUT_FILENO);
    body();
    std::cout.flush();
    std::fflush(stdout);
    ::_exit(0);
  }
  ::waitpid(pid, nullptr, 0);
  char text[4096] = {};
  const ssize_t size = ::pread(file, text, sizeof text, 0);
  ::close(file);
  return {text, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

TEST(FunctionLaunch, WhatWasPrintedComesOutOnce) {
  const std::string output = output_of([] {
    std::printf("program ");
    std::cout << "itself ";
    LaunchPlan plan = functions(2);
    plan.last_words = 30s;  // the other rank prints too
    run_functions(plan, [](int rank) {
      std::printf("worker ");
      if (rank == 1) throw std::runtime_error("after printing");
    });
  });
  EXPECT_EQ(RunningProgram::occurrences(output, "program "), 1) << output;
  EXPECT_EQ(RunningProgram::occurrences(output, "itself "), 1) << output;
  EXPECT_EQ(RunningProgram::occurrences(output, "worker "), 2) << output;
}

// A program that launches two functions; they, what they started and what watches over them write their ids to `ids`.
void launch_and_wait(const SharedNumbers& ids) {
  run_functions(functions(2), [&](int rank) {
    const pid_t child = ::fork();
    if (child == 0) wait_for_a_signal();
    ids[3 * rank] = child;
    ids[3 * rank + 1] = ::getpid();
    ids[3 * rank + 2] = ::getppid();
    wait_for_a_signal();
  });
}

void wait_for_ids(const SharedNumbers& ids) {
  wait_until("both workers", [&] { return ids[2] != 0 && ids[5] != 0; });
}

void expect_all_end(const SharedNumbers& ids) {
  for (int i = 0; i < 6; ++i) {
    wait_until("the end of process " + std::to_string(i), [&] { return has_ended(ids[i]); });
  }
}

TEST(FunctionLaunch, AllEndWithAProgramThatIsKilled) {
  for (const bool supervisor_too : {false, true}) {
    const SharedNumbers ids;
    const pid_t program = ::fork();
    if (program == 0) {
      launch_and_wait(ids);
      ::_exit(0);
    }
    wait_for_ids(ids);
    ::kill(program, SIGKILL);
    if (supervisor_too) ::kill(ids[2], SIGKILL);
    ::waitpid(program, nullptr, 0);
    expect_all_end(ids);
  }
}

TEST(FunctionLaunch, AllEndAndTheCallerIsToldWhenTheSupervisorIsKilled) {
  const SharedNumbers ids;
  const auto failure = run_functions(functions(2), [&](int rank) {
    ids[3 * rank] = ids[3 * rank + 1] = ::getpid();
    ids[3 * rank + 2] = ::getppid();
    wait_for_ids(ids);
    if (rank == 0) ::kill(::getppid(), SIGKILL);
    wait_for_a_signal();
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, -1);
  EXPECT_NE(failure->message, "");
  expect_all_end(ids);
}

TEST(FunctionLaunch, ASignalToTheLaunchIsReportedAsNoRanksFailure) {
  const auto failure = run_functions(functions(2), [](int rank) {
    if (rank == 0) ::kill(::getppid(), SIGINT);
    wait_for_a_signal();
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, -1);
  EXPECT_EQ(failure->signal, SIGINT);
  EXPECT_EQ(failure->exit_code, 128 + SIGINT);
}

TEST(FunctionLaunch, ControlCEndsTheProgramAndItsWorkers) {
  const SharedNumbers ids;
  int terminal = -1;
  const pid_t program = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (program == 0) {
    ::signal(SIGINT, SIG_DFL);
    launch_and_wait(ids);
    ::_exit(0);
  }
  wait_for_ids(ids);
  EXPECT_EQ(::write(terminal, "\x03", 1), 1);
  int status = 0;
  wait_until("the end of the program", [&] { return ::waitpid(program, &status, WNOHANG) == program; });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  expect_all_end(ids);
  ::close(terminal);
}

TEST(FunctionLaunch, APlanWithoutWorkersIsAnError) {
  EXPECT_THROW(run_functions({}, [](int) {}), UsageError);
}

// Whoever reads what the launch writes would wait for daemons of workers too.
TEST(FunctionLaunch, WorkersHaveOnlyTheirOwnStreams) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const int before = ::dup(STDOUT_FILENO);
  ::dup2(ends[1], STDOUT_FILENO);
  ::close(ends[1]);
  const std::string pipe = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(ends[0]));
  const SharedNumbers found;
  const auto failure = run_functions(functions(2), [&](int rank) {
    ::close(ends[0]);
    for (int number = 0; number < 256; ++number) {
      std::error_code none;
      const auto file = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(number), none);
      if (file == pipe) ++found[rank];
    }
  });
  ::dup2(before, STDOUT_FILENO);
  ::close(before);
  ::close(ends[0]);
  EXPECT_FALSE(failure) << failure->message;
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(found[rank], 0);
}

/// Must not be destroyed in a copy of the process that made it.
struct OfOneProcess {
  pid_t owner = ::getpid();
  ~OfOneProcess() {
    if (::getpid() != owner) ::_exit(99);
  }
};
OfOneProcess of_this_process;

TEST(FunctionLaunch, ExitEndsAWorkerWithoutDestroyingWhatIsStatic) {
  const auto failure = run_functions(functions(2), [](int) { std::exit(3); });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->exit_code, 3);
}

}  // namespace
}  // namespace accelerate::testing
