#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>

#include "launch/folder.h"
#include "support/run_program.h"

namespace accelerate::testing {
namespace {

// A program on a terminal of its own, typed to and read by the test.
class OnTerminal {
 public:
  explicit OnTerminal(std::vector<std::string> argv) {
    pid_ = ::forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
    std::vector<char*> pointers;
    for (auto& argument : argv) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    ::execvp(pointers.front(), pointers.data());
    ::_exit(127);
  }
  ~OnTerminal() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(terminal_);
  }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  void type(const std::string& text) {
    EXPECT_EQ(::write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  void wait_for(const std::string& text, int count = 1) {
    wait_until("'" + text + "' on the terminal", [&] {
      read_more();
      return RunningProgram::occurrences(screen_, text) >= count;
    });
  }

  int wait() {
    int status = 0;
    wait_until("the end", [&] {
      read_more();
      return ::waitpid(pid_, &status, WNOHANG) == pid_;
    });
    read_more();
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  const std::string& screen() const { return screen_; }

 private:
  void read_more() {
    char buffer[4096];
    ::fcntl(terminal_, F_SETFL, O_NONBLOCK);
    for (ssize_t got = 0; (got = ::read(terminal_, buffer, sizeof buffer)) > 0;) screen_.append(buffer, static_cast<size_t>(got));
  }

  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string screen_;
};

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
