#include "output/last_lines.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "support/on_terminal.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

using Texts = std::vector<std::string>;

// What a program with an uncaught c10::Error leaves on stderr.
std::string uncaught_error(int frames, const std::string& message = "the weights of layer 3 do not fit") {
  std::string text = "terminate called after throwing an instance of 'c10::Error'\n  what():  " + message +
                     "\nException raised from inner at train.cpp:6 (most recent call first):\n";
  for (int i = 0; i < frames; ++i)
    text += "frame #" + std::to_string(i) + ": <unknown function> + 0x22fb (0x5598d1dee2fb in ./train)\n";
  return text + "\n";
}

Texts quoted_of(const std::string& written) {
  LastLines lines;
  lines.add(written);
  return lines.quoted({});
}

std::string numbered_lines(int first, int last) {
  std::string text;
  for (int i = first; i <= last; ++i) text += "line " + std::to_string(i) + "\n";
  return text;
}

TEST(LastLines, StackFramesAreCountedSoThatTheReasonStays) {
  EXPECT_EQ(quoted_of("step 7\n" + uncaught_error(64)),
            (Texts{"step 7", "terminate called after throwing an instance of 'c10::Error'",
                   "  what():  the weights of layer 3 do not fit",
                   "Exception raised from inner at train.cpp:6 (most recent call first):", "(64 stack frames)"}));
}

TEST(LastLines, TheLinesThatNameAnUncaughtExceptionStayWhenMoreThanTenFollow) {
  const Texts quoted = quoted_of(numbered_lines(1, 30) + uncaught_error(40, "a collective failed\n" + numbered_lines(1, 50)));
  ASSERT_EQ(quoted.size(), 10u);
  EXPECT_EQ(quoted[0], "terminate called after throwing an instance of 'c10::Error'");
  EXPECT_EQ(quoted[1], "  what():  a collective failed");
  EXPECT_EQ(quoted[9], "(40 stack frames)");
}

TEST(LastLines, OfAnExceptionWithoutAMessageOneLineStays) {
  const Texts quoted = quoted_of("terminate called without an active exception\n" + numbered_lines(1, 12));
  ASSERT_EQ(quoted.size(), 10u);
  EXPECT_EQ(quoted[0], "terminate called without an active exception");
  EXPECT_EQ(quoted[1], "line 4");
}

TEST(LastLines, ATracebackOfPythonStaysAsItIs) {
  const std::string traceback =
      "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    main()\nValueError: no data\n";
  EXPECT_EQ(quoted_of(traceback), (Texts{"Traceback (most recent call last):", "  File \"train.py\", line 3, in <module>",
                                         "    main()", "ValueError: no data"}));
}

// The launcher with what it writes as a file of its own, or all in one.
ProgramResult launch_ranks(const std::string& script, const std::string& redirections = "") {
  return run_program({"sh", "-c", "exec \"$0\" \"$@\" " + redirections, ACCELERATE_CLI, "launch", "--cpu", "--num_processes", "2",
                      "--num_cpu_threads_per_process", "1", "--main_process_port", "0", "sh", "-c", script});
}

std::string only_rank_1(const std::string& script) { return "[ $RANK = 1 ] || exit 0; " + script; }

TEST(LastLines, WhatWasJustPrintedIsNotPrintedAgain) {
  const std::string script = only_rank_1("seq 20; echo cannot open shard_17.bin >&2; exit 3");
  const std::string one = launch_ranks(script, "2>&1").output;
  EXPECT_EQ(RunningProgram::occurrences(one, "cannot open"), 1) << one;
  EXPECT_NE(one.find("\ncannot open shard_17.bin\naccelerate launch: rank 1 failed with exit code 3"), std::string::npos) << one;
  EXPECT_NE(one.find("; stopping the other rank. Its last lines are above.\n"), std::string::npos) << one;
  // Elsewhere the reader of stderr has not seen what came on stdout.
  const std::string apart = launch_ranks(script).errors;
  EXPECT_NE(apart.find("  | 20\n  | cannot open shard_17.bin\n"), std::string::npos) << apart;
}

TEST(LastLines, WhatAnotherRankHasPrintedInBetweenIsNotTakenForThem) {
  const TemporaryFolder folder;
  const std::string printed = folder / "printed";
  const auto until_printed = [&](const std::string& line) {
    return "until grep -q '" + line + "' " + printed + "; do sleep 0.01; done; ";
  };
  launch_ranks("if [ $RANK = 0 ]; then " + until_printed("no data") + "echo rank 0 goes on; exit 0; fi; echo no data; " +
                   until_printed("goes on") + "exit 3",
               "> " + printed + " 2>&1");
  std::stringstream text;
  text << std::ifstream(printed).rdbuf();
  EXPECT_NE(text.str().find("Its last lines:\n  | no data\n"), std::string::npos) << text.str();
}

TEST(LastLines, AReasonThatStackFramesHavePushedAwayIsQuotedAlsoWhereItWasPrinted) {
  const TemporaryFolder folder;
  std::ofstream(folder / "words") << uncaught_error(30);
  const std::string text = launch_ranks(only_rank_1("cat " + folder.name() + "/words >&2; kill -ABRT $$"), "2>&1").output;
  EXPECT_EQ(RunningProgram::occurrences(text, "what():"), 2) << text;
  EXPECT_EQ(RunningProgram::occurrences(text, "frame #"), 30) << text;
}

TEST(LastLines, OnATerminalTheyAreAboveTheReport) {
  OnTerminal program({ACCELERATE_CLI, "launch", "--cpu", "--num_processes", "2", "--num_cpu_threads_per_process", "1",
                      "--main_process_port", "0", "sh", "-c", only_rank_1("echo first; echo no data; exit 3")});
  EXPECT_EQ(program.wait(), 3);
  const std::string screen = program.screen();
  EXPECT_EQ(RunningProgram::occurrences(screen, "no data"), 1) << screen;
  EXPECT_NE(screen.find("Its last lines are above."), std::string::npos) << screen;
}

}  // namespace
}  // namespace accelerate::testing
