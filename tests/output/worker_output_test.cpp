#include "output/worker_output.h"

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// `accelerate launch --cpu --num_processes N flags... command...`.
Words launch_with(int processes, const Words& flags, const Words& command) {
  Words argv = {ACCELERATE_CLI, "launch", "--cpu", "--num_cpu_threads_per_process", "1", "--main_process_port", "0"};
  argv.insert(argv.end(), {"--num_processes", std::to_string(processes)});
  argv.insert(argv.end(), flags.begin(), flags.end());
  argv.insert(argv.end(), command.begin(), command.end());
  return argv;
}

Words launch_script(int processes, const std::string& script, const Words& flags = {}) {
  return launch_with(processes, flags, {"sh", "-c", script});
}

// The launch as $0 and "$@" of a shell's script.
Words in_shell(const std::string& script, Words launch) {
  launch.insert(launch.begin(), {"bash", "-c", script});
  return launch;
}

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Files below a folder, as paths in it, with the random part of the run's folder made known.
std::map<std::string, std::string> files_below(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::string name = fs::relative(entry.path(), folder);
    if (name.starts_with("none_")) name = "none_<random>" + name.substr(name.find('/'));
    files[name] = text_of(entry.path());
  }
  return files;
}

// What a talker wrote to one stream: every line is one of its own, and they are in its order.
void expect_lines_of_talkers(const std::string& output, const std::string& stream, int ranks, int count) {
  std::map<std::string, int> next;
  for (const std::string& line : lines_of(output)) {
    std::istringstream words(line);
    std::string rank, from, rest;
    int index = -1;
    size_t length = 0;
    words >> rank >> from >> index >> length >> rest;
    ASSERT_EQ(from, stream) << line.substr(0, 80);
    ASSERT_EQ(index, next[rank]++) << line.substr(0, 80);
    ASSERT_EQ(rest, std::string(length, static_cast<char>('a' + std::stoi(rank)))) << line.substr(0, 80);
  }
  ASSERT_EQ(next.size(), static_cast<size_t>(ranks));
  for (const auto& [rank, lines] : next) EXPECT_EQ(lines, count) << "rank " << rank;
}

TEST(WorkerOutput, LinesOfRanksAreNeverMixedOrLost) {
  const auto result = run_program(launch_with(4, {}, {ACCELERATE_TALKER, "lines", "2000"}));
  EXPECT_EQ(result.exit_code, 0);
  expect_lines_of_talkers(result.output, "1", 4, 2000);
  expect_lines_of_talkers(result.errors, "2", 4, 2000);
}

TEST(WorkerOutput, TheTwoStreamsOfARankKeepTheirOrderWhereTheyGoToOnePlace) {
  const std::string script = "for i in 1 2 3 4 5 6 7 8 9; do echo $RANK out $i; echo $RANK err $i >&2; done";
  const auto result = run_program(in_shell("\"$0\" \"$@\" 2>&1", launch_script(3, script)));
  EXPECT_EQ(result.errors, "");
  std::map<char, std::string> of_ranks;
  for (const std::string& line : lines_of(result.output)) of_ranks[line.at(0)] += line.substr(1);
  for (const char rank : {'0', '1', '2'}) {
    std::string expected;
    for (int i = 1; i < 10; ++i) expected += " out " + std::to_string(i) + " err " + std::to_string(i);
    EXPECT_EQ(of_ranks[rank], expected);
  }
}

TEST(WorkerOutput, ARestWithoutNewlineGetsOne) {
  const auto result = run_program(launch_script(2, "printf 'rest of '; printf $RANK; printf 'e%s' $RANK >&2"));
  const Words lines = lines_of(result.output);
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()), (std::set<std::string>{"rest of 0", "rest of 1"}));
  EXPECT_EQ(RunningProgram::occurrences(result.output, "\n"), 2) << result.output;
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "\n"), 2) << result.errors;
}

TEST(WorkerOutput, NoPrefixIsAddedWhereNoTerminalIs) {
  EXPECT_EQ(run_program(launch_script(2, "[ $RANK = 1 ] && echo hello")).output, "hello\n");
}

TEST(WorkerOutput, ALineLongerThanTheLimitArrivesWholeWhenNobodyInterrupts) {
  const auto result =
      run_program(launch_with(2, {}, {"sh", "-c", "[ $RANK = 0 ] || exec \"$0\" long 3500000", ACCELERATE_TALKER}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(result.output == std::string(3500000, 'x') + "\n") << result.output.size();
}

TEST(WorkerOutput, AWorkerMayCloseItsStreams) {
  const auto result = run_program(launch_script(2, "echo before; exec >&- 2>&-; sleep 0.1; exit 0"));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(result.output, "before\nbefore\n");
}

TEST(WorkerOutput, AProcessThatIsLeftBehindDoesNotKeepTheLauncher) {
  const auto result = run_program(launch_script(2, "sleep 1000 & echo $!"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_LT(result.seconds, 100);
  const Words pids = lines_of(result.output);
  EXPECT_EQ(pids.size(), 2u);
  for (const std::string& pid : pids) ::kill(std::stoi(pid), SIGKILL);
}

TEST(WorkerOutput, WorkersDieOfSigpipeWhenTheReaderHasGone) {
  const auto result = run_program(in_shell("\"$0\" \"$@\" | head -1; echo ${PIPESTATUS[0]}", launch_script(2, "exec yes")));
  EXPECT_EQ(result.output, "y\n141\n");
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "was killed by SIGPIPE"), 1) << result.errors;
}

TEST(WorkerOutput, ASecondReaderThatHasGoneLeavesTheOtherStreamAlone) {
  const std::string script = "trap '' PIPE; while echo more >&2; do :; done; echo done";
  const auto result = run_program(in_shell("\"$0\" \"$@\" 2> >(head -1 >/dev/null)", launch_script(2, script)));
  EXPECT_EQ(result.output, "done\ndone\n");
}

TEST(WorkerOutput, AFullDiskBehindStdoutIsSaidOnceAndEndsNothing) {
  const auto result = run_program(in_shell("\"$0\" \"$@\" >/dev/full", launch_script(3, "echo lost; echo kept >&2")));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "Cannot write to stdout: No space left on device"), 1) << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "kept\n"), 3) << result.errors;
}

TEST(WorkerOutput, ALauncherWithoutStreamsOfItsOwnLaunches) {
  const TemporaryFolder folder;
  const std::string script = "echo out; echo err >&2; echo $RANK > " + folder.name() + "/done$RANK";
  const auto result = run_program(in_shell("\"$0\" \"$@\" <&- >&- 2>&-", launch_script(2, script)));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(files_below(folder.name()), (std::map<std::string, std::string>{{"done0", "0\n"}, {"done1", "1\n"}}));
}

// The launcher with a pipe for its stdout, which the test reads or does not.
class WithReader {
 public:
  explicit WithReader(Words argv) {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    reading_end_ = ends[0];
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
      std::vector<char*> pointers;
      for (auto& argument : argv) pointers.push_back(argument.data());
      pointers.push_back(nullptr);
      ::execvp(pointers.front(), pointers.data());
      ::_exit(127);
    }
    ::close(ends[1]);
  }
  ~WithReader() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(reading_end_);
  }
  WithReader(const WithReader&) = delete;
  WithReader& operator=(const WithReader&) = delete;

  pid_t pid() const { return pid_; }

  // Reads to the end, keeps nothing, and returns how much it was; `look` is called now and then.
  template <typename Look>
  size_t count_bytes(Look look) {
    size_t total = 0;
    std::vector<char> buffer(1 << 20);
    for (ssize_t got = 0; (got = ::read(reading_end_, buffer.data(), buffer.size())) > 0; total += static_cast<size_t>(got))
      look();
    return total;
  }

  // Waits until the pipe holds all that it can.
  void wait_until_full() const {
    pollfd writer = {.fd = ::open(("/proc/self/fd/" + std::to_string(reading_end_)).c_str(), O_WRONLY | O_CLOEXEC),
                     .events = POLLOUT,
                     .revents = 0};
    wait_until("a full pipe", [&] { return ::poll(&writer, 1, 0) == 0; });
    ::close(writer.fd);
  }

  int wait() {
    int status = 0;
    wait_until("the end", [&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  int reading_end_ = -1;
  pid_t pid_ = -1;
};

// The most memory that a process has had, in MB.
double most_memory(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

TEST(WorkerOutput, AllBytesOfAFloodArriveAndAreNotKept) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double most = 1000;  // the sanitizer's own
#else
  constexpr double most = 32;
#endif
  const char* asked = std::getenv("ACCELERATE_TEST_FLOOD");
  const size_t bytes = asked != nullptr ? std::stoul(asked) : 64'000'000;
  const std::string half = std::to_string(bytes / 2);
  for (const char* kind : {"bytes", "long"}) {
    const auto begin = std::chrono::steady_clock::now();
    WithReader launcher(launch_with(2, {}, {ACCELERATE_TALKER, kind, half}));
    double memory = 0;
    const size_t arrived = launcher.count_bytes([&] { memory = std::max(memory, most_memory(launcher.pid())); });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(launcher.wait(), 0);
    // Newlines are added where lines of 1 MiB and more are interrupted.
    EXPECT_GE(arrived, bytes);
    EXPECT_LE(arrived, bytes + bytes / 500'000 + 2);
    EXPECT_LT(memory, most);
    std::cout << kind << ": " << static_cast<double>(arrived) / 1e6 / took.count() << " MB/s, " << memory << " MB of memory\n";
  }
}

TEST(WorkerOutput, SignalsAreHandledWhileNobodyReads) {
  const TemporaryFolder folder;
  const std::string script = "trap 'touch " + folder.name() + "/told$RANK; exit 0' TERM; while :; do echo text; done";
  WithReader launcher(launch_with(2, {"--grace_period", "1"}, {"sh", "-c", script}));
  launcher.wait_until_full();
  ::kill(launcher.pid(), SIGTERM);
  EXPECT_EQ(launcher.wait(), 143);
  EXPECT_EQ(files_below(folder.name()).size(), 2u);
}

TEST(WorkerOutput, WhatASlowReaderHasNotTakenIsWaitedFor) {
  const auto result = run_program(in_shell("\"$0\" \"$@\" | (sleep 0.3; cat)", launch_script(2, "seq 60000")));
  EXPECT_EQ(lines_of(result.output).size(), 120000u);
}

TEST(WorkerOutput, ASignalEndsTheWaitForAReaderThatTakesNothing) {
  WithReader launcher(launch_with(2, {"--grace_period", "1"}, {ACCELERATE_TALKER, "bytes", "100000"}));
  launcher.wait_until_full();
  const std::string children =
      "/proc/" + std::to_string(launcher.pid()) + "/task/" + std::to_string(launcher.pid()) + "/children";
  wait_until("the end of all that it started", [&] { return text_of(children).empty(); });
  ::kill(launcher.pid(), SIGTERM);
  EXPECT_EQ(launcher.wait(), 143);
}

TEST(WorkerOutput, AReaderThatTakesBytesSlowlyGetsThemAllAfterASignal) {
  const TemporaryFolder folder;
  const std::string script =
      "\"$0\" bytes 300000; touch " + folder.name() + "/done$RANK; trap 'exit 0' TERM; while :; do sleep 0.1; done";
  WithReader launcher(launch_with(2, {"--grace_period", "2"}, {"sh", "-c", script, ACCELERATE_TALKER}));
  wait_until("all that is written", [&] { return files_below(folder.name()).size() == 2; });
  ::kill(launcher.pid(), SIGTERM);
  const auto wait_a_while = [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };  // a pipe's content each
  EXPECT_EQ(launcher.count_bytes(wait_a_while), 600002u);  // with the newlines that the two rests get
  EXPECT_EQ(launcher.wait(), 143);
}

// Rank 0 goes on to write when the launcher reads no more: it has taken what the pipe to its reader and its queue hold.
TEST(WorkerOutput, ARestartLosesNothingThatWasWritten) {
  const TemporaryFolder folder;
  const std::string script =
      "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || { touch again; exit 0; }; "
      "if [ $RANK = 0 ]; then yes 012345678 | head -n 112000; "
      "until [ $(cat logs/*/attempt_0/0/stdout.log | wc -c) -ge 1114112 ]; do sleep 0.01; done; "
      "yes 012345678 | head -n 3000; touch written; else until [ -e written ]; do sleep 0.01; done; exit 3; fi";
  WithReader launcher(in_shell("cd " + folder.name() + "; exec \"$0\" \"$@\"",
                               launch_script(2, script, {"--max_restarts", "1", "--log_dir", "logs"})));
  wait_until("the restart", [&] { return fs::exists(folder / "again"); });
  EXPECT_EQ(launcher.count_bytes([] {}), 1150000u);
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(files_below(folder / "logs").at("none_<random>/attempt_0/0/stdout.log").size(), 1150000u);
}

TEST(WorkerOutput, MoreRanksThanTheSoftLimitOnDescriptorsAllowsRunAndGetThatLimit) {
  const Words launch = launch_script(40, "ulimit -Sn; cat");
  const auto result = run_program(in_shell("ulimit -Sn 64; \"$0\" \"$@\"", launch), {.input = "only for rank 0\n"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "64\n"), 40) << result.output;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "only for rank 0\n"), 1) << result.output;
}

TEST(WorkerOutput, MoreRanksThanTheHardLimitOnDescriptorsAllowsIsAnErrorThatSaysWhatToRaise) {
  const auto result = run_program(in_shell("ulimit -n 64; \"$0\" \"$@\"", launch_script(40, "sleep 100")));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "ulimit -n"), 1) << result.errors;
}

// Opening one's descriptor of such an end once more makes a new terminal.
TEST(WorkerOutput, TheUsersEndOfATerminalCanBeWrittenTo) {
  const int user = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_EQ(::unlockpt(user), 0);
  const int program = ::ioctl(user, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  OutputDestination destination(user);
  destination.put("text\n");
  destination.write_some();
  pollfd arrived = {.fd = program, .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&arrived, 1, 10'000), 1);
  ::close(program);
  ::close(user);
}

TEST(WorkerOutput, TheReportAboutAFailureQuotesTheLastLines) {
  const std::string script =
      "[ $RANK = 1 ] || exec sleep 100; seq 20; printf 'at 10%%\\rat 20%%\\n'; printf '\\033[31mred\\033[0m\\n'; printf end; "
      "exit 3";
  const auto result = run_program(in_shell("\"$0\" \"$@\" 2>&1 >/dev/null", launch_script(2, script)));
  EXPECT_EQ(result.exit_code, 3);
  const Words lines = lines_of(result.output);
  ASSERT_EQ(lines.size(), 11u) << result.output;
  EXPECT_TRUE(lines[0].starts_with("accelerate launch: rank 1 failed with exit code 3 after ")) << lines[0];
  EXPECT_TRUE(lines[0].ends_with(" s; stopping the other rank. Its last lines:")) << lines[0];
  EXPECT_EQ(Words(lines.begin() + 1, lines.end()),
            (Words{"  | 14", "  | 15", "  | 16", "  | 17", "  | 18", "  | 19", "  | 20", "  | at 20%", "  | red", "  | end"}));
}

TEST(WorkerOutput, TheReportOfARankThatWroteNothingQuotesNothing) {
  const auto result = run_program(launch_script(2, "[ $RANK = 1 ] || exec sleep 100; exit 3"));
  EXPECT_EQ(lines_of(result.errors).size(), 1u) << result.errors;
  EXPECT_TRUE(result.errors.ends_with("; stopping the other rank.\n")) << result.errors;
}

TEST(WorkerOutput, QuotedLinesAreCut) {
  const auto result = run_program(launch_script(2, "[ $RANK = 1 ] || exec sleep 100; printf '%0500d\\n' 0; exit 3"));
  EXPECT_EQ(lines_of(result.errors).at(1), "  | " + std::string(300, '0'));
}

TEST(WorkerOutput, TeedStreamsGoToFilesAndWithAPrefixToTheConsole) {
  const TemporaryFolder folder;
  const Words flags = {"--tee", "0:3,1:1", "--log_dir", folder.name()};
  const auto result = run_program(launch_script(3, "printf 'out %s' $RANK; echo err $RANK >&2", flags));
  const Words output = lines_of(result.output);
  EXPECT_EQ(std::set<std::string>(output.begin(), output.end()),
            (std::set<std::string>{"[default0]:out 0", "[default1]:out 1", "out 2"}));
  for (const char* line : {"[default0]:err 0\n", "err 1\n", "err 2\n"}) {
    EXPECT_EQ(RunningProgram::occurrences("\n" + result.errors, std::string("\n") + line), 1) << result.errors;
  }
  const std::map<std::string, std::string> expected = {{"none_<random>/attempt_0/0/stdout.log", "out 0"},
                                                       {"none_<random>/attempt_0/0/stderr.log", "err 0\n"},
                                                       {"none_<random>/attempt_0/1/stdout.log", "out 1"}};
  EXPECT_EQ(files_below(folder.name()), expected);
  EXPECT_NE(result.errors.find("the logs of the ranks are in " + folder.name() + "/none_"), std::string::npos) << result.errors;
}

TEST(WorkerOutput, LogFilesAndTeedLinesAreThoseOfPython) {
  const char* golden = std::getenv("ACCELERATE_GOLDEN_DIR");
  std::ifstream file(std::string(golden != nullptr ? golden : ACCELERATE_TEST_GOLDEN) + "/launch_workers.json");
  const TemporaryFolder folder;
  const Words flags = {"--tee", "3", "--role", "trainer", "--log_dir", folder.name()};
  const auto result = run_program(launch_script(2, "echo hello from $RANK; [ $ROLE_NAME = trainer ]", flags));
  EXPECT_EQ(result.exit_code, 0);
  Words output = lines_of(result.output);
  std::sort(output.begin(), output.end());
  Words files;
  for (const auto& [name, text] : files_below(folder.name())) files.push_back(name);
  const auto parsed = nlohmann::json::parse(file);
  for (const auto& run : parsed.at("runs")) {
    if (run.at("name") != "tee and role") continue;
    EXPECT_EQ(nlohmann::json(output), run.at("stdout"));
    EXPECT_EQ(nlohmann::json(files), run.at("log_files"));
    return;
  }
  FAIL() << "Python's run is missing";
}

TEST(WorkerOutput, AFolderAloneKeepsBothStreamsOfEveryRankAndLeavesTheConsoleAsItWas) {
  for (const int processes : {1, 2}) {
    const TemporaryFolder folder;
    const auto result = run_program(launch_script(processes, "echo out; echo err >&2", {"--log_dir", folder / "new/logs"}));
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(lines_of(result.output), Words(static_cast<size_t>(processes), "out"));
    EXPECT_EQ(files_below(folder / "new/logs").size(), 2 * static_cast<size_t>(processes));
  }
}

TEST(WorkerOutput, WithoutAFolderLogsGoToATemporaryOneThatIsSaid) {
  const TemporaryFolder folder;
  const auto result = run_program(launch_script(2, "echo out", {"-t", "1"}), {.environment = {{"TMPDIR", folder.name()}}});
  const std::string said = "accelerate launch: the logs of the ranks are in " + folder.name() + "/accelerate_";
  EXPECT_EQ(RunningProgram::occurrences(result.errors, said), 1) << result.errors;
  EXPECT_EQ(files_below(folder.name()).size(), 2u);
}

TEST(WorkerOutput, EveryAttemptHasFilesOfItsOwn) {
  const TemporaryFolder folder;
  const Words flags = {"--max_restarts", "1", "--log_dir", folder.name()};
  const auto result =
      run_program(launch_script(2, "echo $TORCHELASTIC_RESTART_COUNT; exit $((1 - TORCHELASTIC_RESTART_COUNT))", flags));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const auto files = files_below(folder.name());
  EXPECT_EQ(files.size(), 8u);
  EXPECT_EQ(files.at("none_<random>/attempt_0/0/stdout.log"), "0\n");
  EXPECT_EQ(files.at("none_<random>/attempt_1/1/stdout.log"), "1\n");
}

TEST(WorkerOutput, AFolderThatCannotBeMadeIsSaidOnceAndEndsNothing) {
  const auto result = run_program(launch_script(2, "echo out", {"--log_dir", "/dev/null/logs"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, "out\nout\n");
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "/dev/null/logs"), 1) << result.errors;
}

TEST(WorkerOutput, AFileThatCannotGrowIsSaidOnceAndEndsNothing) {
  const TemporaryFolder folder;
  const Words launch = launch_script(2, "if [ $RANK = 0 ]; then seq 5000; seq 5000; fi; echo last", {"--log_dir", folder.name()});
  const auto result = run_program(in_shell("(ulimit -f 8; \"$0\" \"$@\" 2>&1) | cat", launch));
  EXPECT_EQ(RunningProgram::occurrences(result.output, "\n5000\n"), 2);
  EXPECT_EQ(RunningProgram::occurrences(result.output, "last\n"), 2);
  EXPECT_EQ(RunningProgram::occurrences(result.output, "0/stdout.log: File too large"), 1);
}

}  // namespace
}  // namespace accelerate::testing
