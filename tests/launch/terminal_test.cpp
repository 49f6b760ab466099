#include <gtest/gtest.h>
#include <sys/stat.h>

#include "launch/folder.h"
#include "support/on_terminal.h"
#include "support/run_program.h"

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

TEST(Terminal, ControlZStopsTheWorkersAndForegroundLetsThemGoOn) {
  for (const int processes : {1, 2}) {
    const Folder folder;
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
