#include <gtest/gtest.h>
#include <sys/stat.h>

#include "launch/worker_scripts.h"
#include "support/on_terminal.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {
namespace {

std::vector<std::string> launch(const std::string& processes, const std::string& script) {
  return {ACCELERATE_CLI, "launch", "--cpu", "--num_processes", processes, "sh", "-c", script};
}

TEST(Terminal, ALoneWorkerReadsFromIt) {
  OnTerminal program(launch("1", "echo ready; read line; echo \"got <$line>\""));
  program.wait_for("ready");
  program.type("hello\n");
  EXPECT_EQ(program.wait(), 0);
  EXPECT_NE(program.screen().find("got <hello>"), std::string::npos) << program.screen();
}

TEST(Terminal, SeveralWorkersFindNoInputInsteadOfHanging) {
  OnTerminal program(launch("2", "read line; echo \"rank $RANK got <$line>\""));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_NE(program.screen().find("rank 0 got <>"), std::string::npos) << program.screen();
  EXPECT_NE(program.screen().find("rank 1 got <>"), std::string::npos) << program.screen();
}

TEST(Terminal, ControlCEndsTheLaunch) {
  for (const char* processes : {"1", "2"}) {
    OnTerminal program(launch(processes,
                              "trap 'echo told; trap - INT; kill -INT $$' INT; echo ready; "
                              "while :; do sleep 0.05; done"));
    program.wait_for("ready");
    program.type("\x03");
    EXPECT_EQ(program.wait(), 130) << program.screen();
    EXPECT_NE(program.screen().find("told"), std::string::npos) << program.screen();
  }
}

TEST(Terminal, AWorkerThatWasStartedAgainHasItToo) {
  const std::string script =
      "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 3; echo ready; read line; echo \"got <$line>\"; exec sleep 1000";
  OnTerminal program({ACCELERATE_CLI, "launch", "--cpu", "--max_restarts", "1", "sh", "-c", script});
  program.wait_for("ready");
  program.type("hello\n");
  program.wait_for("got <hello>");
  program.type("\x03");
  EXPECT_EQ(program.wait(), 130) << program.screen();
}

TEST(Terminal, KeysThatEndALoneWorkerDoNotStartItAgain) {
  const std::vector<std::pair<std::string, int>> ends = {{"\x03", 130}, {"\x1c", 131}};
  for (const auto& [key, code] : ends) {
    OnTerminal program(
        {ACCELERATE_CLI, "launch", "--cpu", "--max_restarts", "1", "sh", "-c", "ulimit -c 0; echo ready; exec sleep 1000"});
    program.wait_for("ready");
    program.type(key);
    EXPECT_EQ(program.wait(), code) << program.screen();
    EXPECT_EQ(RunningProgram::occurrences(program.screen(), "ready"), 1) << program.screen();
  }
  OnTerminal tidy({ACCELERATE_CLI, "launch", "--cpu", "--max_restarts", "1", "sh", "-c",
                   "trap 'exit 130' INT; echo ready; while :; do sleep 0.05; done"});
  tidy.wait_for("ready");
  tidy.type("\x03");
  EXPECT_EQ(tidy.wait(), 130) << tidy.screen();
  EXPECT_EQ(RunningProgram::occurrences(tidy.screen(), "ready"), 1) << tidy.screen();
}

TEST(Terminal, ALoneWorkerInTheBackgroundReadsFromItOnceInTheForeground) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "go";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int go = ::open(pipe.c_str(), O_RDWR);
  const std::string worker =
      "echo $PPID > launcher; echo $$ > worker; echo ready; read line < go; read line; echo \"got <$line>\"";
  const std::string job = "cd " + folder.name() + "; set -m; \"$0\" launch --cpu sh -c '" + worker +
                          "'; bg > /dev/null; until grep -q '^State:.S' /proc/$(cat worker)/status; do sleep 0.01; done; fg > "
                          "/dev/null; echo ended with $?";
  OnTerminal shell({"bash", "-c", job, ACCELERATE_CLI});
  shell.wait_for("ready");
  const pid_t launcher = pid_in(folder / "launcher");
  shell.type("\x1a");
  wait_until("fg", [&] { return shell.foreground() == launcher && state_of(launcher) == 'S'; });
  EXPECT_EQ(::write(go, "\n", 1), 1);
  shell.type("hello\n");
  EXPECT_EQ(shell.wait(), 0) << shell.screen();
  EXPECT_NE(shell.screen().find("got <hello>"), std::string::npos) << shell.screen();
  EXPECT_NE(shell.screen().find("ended with 0"), std::string::npos) << shell.screen();
  ::close(go);
}

TEST(Terminal, TimeSpentSuspendedIsNotPartOfTheGracePeriod) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "go";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int go = ::open(pipe.c_str(), O_RDWR);
  const std::string worker =
      "trap \"echo told; read line < go; echo saved; exit 0\" TERM; echo $PPID > launcher; echo ready; while :; do sleep 0.05; "
      "done";
  const std::string job = "cd " + folder.name() + "; set -m; \"$0\" launch --cpu --num_processes 2 --grace_period 3 sh -c '" +
                          worker + "'; sleep 3.1; echo awake; fg > /dev/null; echo ended with $?";
  OnTerminal shell({"bash", "-c", job, ACCELERATE_CLI});
  shell.wait_for("ready", 2);
  ::kill(pid_in(folder / "launcher"), SIGTERM);
  shell.wait_for("told", 2);
  shell.type("\x1a");
  shell.wait_for("awake");
  EXPECT_EQ(::write(go, "\n\n", 2), 2);
  EXPECT_EQ(shell.wait(), 0) << shell.screen();
  EXPECT_EQ(RunningProgram::occurrences(shell.screen(), "] saved"), 2) << shell.screen();
  EXPECT_NE(shell.screen().find("ended with 143"), std::string::npos) << shell.screen();
  ::close(go);
}

TEST(Terminal, ControlZStopsTheWorkersAndForegroundLetsThemGoOn) {
  for (const int processes : {1, 2}) {
    const TemporaryFolder folder;
    // Workers wait in a system call: a shell that is just starting a program cannot be stopped.
    const std::string pipe = folder / "go";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const int go = ::open(pipe.c_str(), O_RDWR);
    const std::string worker = "echo $$ > pid${RANK:-0}; echo ready $$; read line < go";
    const std::string job = "cd " + folder.name() + "; set -m; \"$0\" launch --cpu --num_processes " + std::to_string(processes) +
                            " sh -c '" + worker +
                            "'; for file in pid*; do until grep -q '^State:.T' /proc/$(cat $file)/status; "
                            "do sleep 0.01; done; done; echo all stopped; fg >/dev/null; echo ended with $?";
    OnTerminal shell({"bash", "-c", job, ACCELERATE_CLI});
    shell.wait_for("ready", processes);
    shell.type("\x1a");
    shell.wait_for("all stopped");
    for (int rank = 0; rank < processes; ++rank) EXPECT_EQ(::write(go, "\n", 1), 1);
    EXPECT_EQ(shell.wait(), 0) << shell.screen();
    EXPECT_NE(shell.screen().find("ended with 0"), std::string::npos) << shell.screen();
    ::close(go);
  }
}

}  // namespace
}  // namespace accelerate::testing
