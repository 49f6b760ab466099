#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace accelerate::testing {

/// How a program ended.
struct ProgramResult {
  /// Its exit code, or 128 + the signal that ended it.
  int exit_code = -1;
  /// All that it, and what it started, wrote.
  std::string output = {};
  std::string errors = {};
  /// Wall time from start to end.
  double seconds = 0;
};

/// What a program gets besides its arguments.
struct RunOptions {
  /// On top of the test's own environment; a variable without a value is removed.
  std::map<std::string, std::optional<std::string>> environment = {};
  /// What it finds on stdin.
  std::string input = {};
  /// What must last as long as the program is watched.
  std::shared_ptr<const void> kept = {};
  /// A program that takes longer is killed, and `wait` throws.
  std::chrono::seconds limit{60};
};

/// Calls `done` until it says true. Throws, naming `what`, when that takes longer than `limit`.
template <typename Condition>
void wait_until(const std::string& what, Condition done, std::chrono::seconds limit = std::chrono::seconds(60)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("waited too long for " + what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// A program that runs beside the test. Its output goes to memory, so a child it leaves behind cannot make the test wait.
class RunningProgram {
 public:
  explicit RunningProgram(const std::vector<std::string>& argv, RunOptions options = {}) : options_(std::move(options)) {
    if (::write(input_, options_.input.data(), options_.input.size()) != static_cast<ssize_t>(options_.input.size())) {
      throw std::runtime_error("the program's input could not be stored");
    }
    ::lseek(input_, 0, SEEK_SET);
    // Several processes write here, and a memory file keeps no two of them from using the same offset.
    for (int file : {output_, errors_}) ::fcntl(file, F_SETFL, O_APPEND);
    pid_ = ::fork();
    if (pid_ == 0) become(argv);
  }
  ~RunningProgram() {
    if (!result_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    for (int file : {input_, output_, errors_}) ::close(file);
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  std::string output() const { return content(output_); }
  std::string errors() const { return content(errors_); }

  /// Waits until `text` was written to stdout `count` times.
  void wait_for_output(const std::string& text, int count = 1) const {
    wait_until(
        "'" + text + "' in: " + output(), [&] { return occurrences(output(), text) >= count; }, options_.limit);
  }

  /// Waits for the end.
  ProgramResult wait() {
    int status = 0;
    wait_until(
        "the end of the program", [&] { return result_ || ::waitpid(pid_, &status, WNOHANG) == pid_; }, options_.limit);
    if (!result_) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started_;
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      result_ = ProgramResult{.exit_code = code, .output = output(), .errors = errors(), .seconds = took.count()};
    }
    return *result_;
  }

  /// How often `text` is found in `whole`.
  static int occurrences(const std::string& whole, const std::string& text) {
    int found = 0;
    for (size_t at = whole.find(text); at != std::string::npos; at = whole.find(text, at + text.size())) ++found;
    return found;
  }

 private:
  [[noreturn]] void become(const std::vector<std::string>& argv) {
    ::dup2(input_, STDIN_FILENO);
    ::dup2(output_, STDOUT_FILENO);
    ::dup2(errors_, STDERR_FILENO);
    // Whoever runs the tests may ignore or block signals (make, nohup, a shell's background job).
    for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const auto& [name, value] : options_.environment) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
    std::vector<char*> pointers;
    for (const auto& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
    pointers.push_back(nullptr);
    ::execvp(pointers.front(), pointers.data());
    ::_exit(127);
  }

  static std::string content(int file) {
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::pread(file, buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

  RunOptions options_;
  int input_ = ::memfd_create("input", MFD_CLOEXEC);
  int output_ = ::memfd_create("output", MFD_CLOEXEC);
  int errors_ = ::memfd_create("errors", MFD_CLOEXEC);
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  pid_t pid_ = -1;
  std::optional<ProgramResult> result_ = {};
};

/// Runs a program (searched in PATH) to its end.
inline ProgramResult run_program(const std::vector<std::string>& argv, RunOptions options = {}) {
  return RunningProgram(argv, std::move(options)).wait();
}

}  // namespace accelerate::testing
