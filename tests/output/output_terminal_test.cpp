#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "support/on_terminal.h"
#include "support/temporary_folder.h"
#include "support/terminal.h"

namespace accelerate::testing {
namespace {

using Lines = std::vector<std::string>;

Lines launched(int processes, const std::string& script, const Lines& flags = {}) {
  Lines argv = {ACCELERATE_CLI, "launch", "--cpu", "--num_cpu_threads_per_process", "1", "--main_process_port", "0"};
  argv.insert(argv.end(), {"--num_processes", std::to_string(processes)});
  argv.insert(argv.end(), flags.begin(), flags.end());
  argv.insert(argv.end(), {"sh", "-c", script});
  return argv;
}

// A named pipe on which ranks wait, in a system call and not by polling, until the test lets them go on.
class Gate {
 public:
  Gate() : path_(folder_ / "gate") {
    EXPECT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    end_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  }
  ~Gate() { ::close(end_); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  std::string wait() const { return "read line < " + path_; }
  void open(int ranks) const {
    for (int i = 0; i < ranks; ++i) EXPECT_EQ(::write(end_, "\n", 1), 1);
  }

 private:
  TemporaryFolder folder_;
  std::string path_;
  int end_ = -1;
};

// What bytes leave on a terminal, without empty rows at the end.
Lines shown_by(std::string bytes, int columns = 200) {
  // The last sequence may not have arrived whole.
  const size_t escape = bytes.rfind('\x1b');
  if (escape != std::string::npos && bytes.find_first_of("ABCDJKm", escape) == std::string::npos) bytes.resize(escape);
  ScreenModel model(columns);
  model.feed(bytes);
  Lines lines;
  for (size_t row = 0; row < 200; ++row) lines.push_back(model.line(row));
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::string joined(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

void wait_for_screen(OnTerminal& program, const Lines& expected) {
  try {
    wait_until(
        "a screen", [&] { return shown_by(program.read()) == expected; }, std::chrono::seconds(20));
  } catch (const std::runtime_error&) {
    ADD_FAILURE() << "the screen shows:\n" << joined(shown_by(program.read())) << "and not:\n" << joined(expected);
  }
}

TEST(OutputOnTerminal, RanksHaveATerminalAndTheirLinesTheirNumber) {
  OnTerminal program(launched(2, "[ -t 1 ] && [ -t 2 ] && echo on $RANK; [ -t 2 ] && echo err $RANK >&2"));
  EXPECT_EQ(program.wait(), 0);
  Lines shown = shown_by(program.screen());
  std::sort(shown.begin(), shown.end());
  EXPECT_EQ(shown, (Lines{"[0] err 0", "[0] on 0", "[1] err 1", "[1] on 1"}));
}

TEST(OutputOnTerminal, ALoneWorkerWritesItself) {
  OnTerminal program(launched(1, "echo alone"));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.screen(), "alone\r\n");
}

TEST(OutputOnTerminal, TheOrderOfARanksTwoStreamsIsKept) {
  OnTerminal program(launched(2, "[ $RANK = 0 ] || for i in 1 2 3 4 5 6 7 8; do echo o$i; echo e$i >&2; done"));
  EXPECT_EQ(program.wait(), 0);
  Lines expected;
  for (int i = 1; i < 9; ++i) {
    expected.push_back("[1] o" + std::to_string(i));
    expected.push_back("[1] e" + std::to_string(i));
  }
  EXPECT_EQ(shown_by(program.screen()), expected);
}

TEST(OutputOnTerminal, TwoNamesOfOneTerminalAreOneTerminal) {
  const Gate to_line, to_end;
  const std::string script =
      "if [ $RANK = 1 ]; then printf bar >&2; else " + to_line.wait() + "; echo line; fi; " + to_end.wait();
  const Lines launch = launched(2, script);
  Lines argv = {"bash", "-c", "\"$0\" \"$@\" 2>/dev/tty"};
  argv.insert(argv.end(), launch.begin(), launch.end());
  OnTerminal program(argv);
  wait_for_screen(program, {"[1] bar"});
  to_line.open(1);
  wait_for_screen(program, {"[0] line", "[1] bar"});
  to_end.open(2);
  EXPECT_EQ(program.wait(), 0);
}

TEST(OutputOnTerminal, LinesEndAsThoseOfAProgramOnIt) {
  OnTerminal program(launched(2, "[ $RANK = 0 ] || echo text"));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.screen(), "[1] text\r\n");
}

TEST(OutputOnTerminal, APromptOfALoneRankWithAFileIsShownOnce) {
  const TemporaryFolder folder;
  OnTerminal program(launched(1, "printf 'name? '; read name; echo hello $name", {"--log_dir", folder.name()}));
  program.wait_for("name? ");
  program.type("you\n");
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(RunningProgram::occurrences(program.screen(), "name? "), 1) << program.screen();
  EXPECT_NE(program.screen().find("\nhello you\r\n"), std::string::npos) << program.screen();
}

// As after su: the terminal belongs to someone else. Root may open all files unless it gives that up.
TEST(OutputOnTerminal, SignalsAreHandledWhileNobodyReadsATerminalThatCannotBeOpened) {
  Lines argv = {"bash", "-c",
                "chmod 0 $(tty); if [ $(id -u) = 0 ]; then set -- --bounding-set=-dac_override \"$0\" \"$@\"; exec setpriv "
                "\"$@\"; fi; exec \"$0\" \"$@\""};
  const Lines launch = launched(2, "exec yes", {"--grace_period", "1"});
  argv.insert(argv.end(), launch.begin(), launch.end());
  OnTerminal program(argv);
  program.wait_until_full();
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait_unread(), 143);
}

TEST(OutputOnTerminal, BarsOfRanksStayBelowTheLinesInRankOrder) {
  const Gate gate;
  const std::string script =
      "for i in 1 2 3; do printf '\\r%s0%% of %s' $i $RANK; [ $RANK = 0 ] || printf '\\r\\033[Kline %s\\n' $i; "
      "done; printf '\\r\\033[K50%% of %s' $RANK; " +
      gate.wait() + "; printf '\\rall of %s\\n' $RANK";
  OnTerminal program(launched(2, script));
  wait_for_screen(program, {"[1] line 1", "[1] line 2", "[1] line 3", "[0] 50% of 0", "[1] 50% of 1"});
  gate.open(2);
  EXPECT_EQ(program.wait(), 0);
  Lines shown = shown_by(program.screen());
  ASSERT_EQ(shown.size(), 5u) << joined(shown);
  std::sort(shown.begin() + 3, shown.end());
  EXPECT_EQ(shown, (Lines{"[1] line 1", "[1] line 2", "[1] line 3", "[0] all of 0", "[1] all of 1"}));
}

TEST(OutputOnTerminal, NestedBarsOfRanksStayTogether) {
  const Gate gate;
  const std::string script =
      "for i in 1 2 3 4 5 6 7 8 9; do printf '\\router %s of %s\\n\\rinner %s of %s\\033[A' $i $RANK $i $RANK; "
      "done; " +
      gate.wait();
  OnTerminal program(launched(3, script));
  const Lines bars = {"[0] outer 9 of 0", "[0] inner 9 of 0", "[1] outer 9 of 1",
                      "[1] inner 9 of 1", "[2] outer 9 of 2", "[2] inner 9 of 2"};
  wait_for_screen(program, bars);
  gate.open(3);
  EXPECT_EQ(program.wait(), 0);
  Lines shown = shown_by(program.screen());  // who ends first is above
  std::stable_sort(shown.begin(), shown.end(), [](const auto& a, const auto& b) { return a.substr(0, 3) < b.substr(0, 3); });
  EXPECT_EQ(shown, bars);
}

TEST(OutputOnTerminal, LinesOfTheLauncherStandAboveTheBars) {
  const Gate gate;
  const std::string script =
      "if [ $RANK = 1 ]; then " + gate.wait() + "; exit 3; fi; printf 'half'; trap '' TERM; sleep 3; exit 0";
  OnTerminal program(launched(2, script));
  wait_for_screen(program, {"[0] half"});
  gate.open(1);
  program.wait_for("rank 1 failed with exit code 3");
  const auto is_above = [&] {
    const Lines shown = shown_by(program.read());
    return shown.size() == 2 && shown[0].starts_with("accelerate launch: rank 1 failed") && shown[1] == "[0] half";
  };
  EXPECT_NO_THROW(wait_until("the report above the bar", is_above, std::chrono::seconds(20))) << joined(shown_by(program.read()));
  EXPECT_EQ(program.wait(), 3);
  EXPECT_EQ(shown_by(program.screen()).back(), "[0] half");
}

TEST(OutputOnTerminal, ColoursArePassedOnAndEndWithTheLine) {
  OnTerminal program(launched(2, "[ $RANK = 0 ] || printf '\\033[31mred\\n'"));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_NE(program.screen().find("[1] \x1b[0;31mred\x1b[0m\r"), std::string::npos) << program.screen();
}

TEST(OutputOnTerminal, RanksKnowTheRoomTheyHaveAlsoWhenItChanges) {
  const std::string script =
      "[ $RANK = 1 ] || exit 0; exec 3>&1; first=$(stty size <&3); echo $first; "
      "while [ \"$(stty size <&3)\" = \"$first\" ]; do sleep 0.02; done; stty size <&1";
  OnTerminal program(launched(2, script));
  program.wait_for("[1] 24 195");  // one column stays free
  program.resize(30, 60);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(shown_by(program.screen()).back(), "[1] 30 55");
}

TEST(OutputOnTerminal, RowsAreCutToTheWidthAndFinishedLinesAreNot) {
  const Gate gate;
  OnTerminal program(launched(2, "[ $RANK = 0 ] || printf '%060d' 7; " + gate.wait()), 24, 40);
  wait_until("the row", [&] { return shown_by(program.read(), 40) == Lines{"[1] " + std::string(35, '0')}; });
  gate.open(2);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_NE(program.screen().find("[1] " + std::string(59, '0') + "7\r"), std::string::npos) << program.screen();
}

TEST(OutputOnTerminal, NoMoreRowsAreDrawnThanTheTerminalHas) {
  const Gate gate;
  OnTerminal program(launched(6, "printf 'bar %s' $RANK; " + gate.wait()), 4);
  wait_for_screen(program, {"[0] bar 0", "[1] bar 1", "[2] bar 2"});
  gate.open(6);
  EXPECT_EQ(program.wait(), 0);
  Lines shown = shown_by(program.screen());
  std::sort(shown.begin(), shown.end());
  EXPECT_EQ(shown, (Lines{"[0] bar 0", "[1] bar 1", "[2] bar 2", "[3] bar 3", "[4] bar 4", "[5] bar 5"}));
}

TEST(OutputOnTerminal, TeedLinesHaveTheirOwnPrefixAndFilesHoldWhatWasWritten) {
  const TemporaryFolder folder;
  const Lines flags = {"--tee", "1", "--log_dir", folder.name()};
  OnTerminal program(launched(2, "[ $RANK = 1 ] && printf '10\\r20\\n' && echo err >&2; exit 0", flags));
  EXPECT_EQ(program.wait(), 0);
  Lines shown = shown_by(program.screen());
  std::sort(shown.begin(), shown.end());
  ASSERT_EQ(shown.size(), 3u) << joined(shown);
  EXPECT_EQ(shown[0], "[1] err");
  EXPECT_EQ(shown[1], "[default1]:20");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.name())) {
    if (entry.path().parent_path().filename() != "1") continue;
    std::ifstream file(entry.path());
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "10\r20\n");
  }
}

TEST(OutputOnTerminal, OnlyTheStreamOnTheTerminalIsOne) {
  const TemporaryFolder folder;
  Lines argv = {"bash", "-c", "\"$0\" \"$@\" > " + folder.name() + "/file"};
  const Lines launch = launched(2, "[ -t 1 ] || echo no terminal; [ -t 2 ] && printf 'bar %s' $RANK >&2");
  argv.insert(argv.end(), launch.begin(), launch.end());
  OnTerminal program(argv);
  EXPECT_EQ(program.wait(), 0);
  std::ifstream file(folder / "file");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "no terminal\nno terminal\n");
  Lines shown = shown_by(program.screen());
  std::sort(shown.begin(), shown.end());
  EXPECT_EQ(shown, (Lines{"[0] bar 0", "[1] bar 1"}));
}

}  // namespace
}  // namespace accelerate::testing
