#include "output/worker_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include <accelerate/core/error.h>
#include "core/escaped.h"

namespace accelerate::detail {
namespace {

constexpr int kLauncher = -1;              // as a writer to a console
constexpr size_t kDescriptorsOfARank = 6;  // two streams, each with two ends and a file
constexpr size_t kAtATime = 64 * 1024;

// Terminals are known by their device: /dev/tty is another name for one.
bool are_one_file(int a, int b) {
  unsigned first_device = 0;
  unsigned second_device = 0;
  if (::isatty(a) == 1 && ::isatty(b) == 1 && ::ioctl(a, TIOCGDEV, &first_device) == 0 &&
      ::ioctl(b, TIOCGDEV, &second_device) == 0) {
    return first_device == second_device;
  }
  struct stat first = {};
  struct stat second = {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace

IgnoredWriteSignals::IgnoredWriteSignals() {
  struct sigaction ignored = {};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignored, &pipe_before_);
  ::sigaction(SIGXFSZ, &ignored, &size_before_);
}

void IgnoredWriteSignals::release() {
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigaction(SIGXFSZ, &size_before_, nullptr);
}

WorkerOutput::WorkerOutput(const OutputPlan& plan)
    : plan_(plan), limit_(kDescriptorsOfARank * plan.ranks.size()), ranks_(plan.ranks.size()) {
  // If one of them is closed, another descriptor of the launcher would be mistaken for it.
  while (::fcntl(STDERR_FILENO, F_GETFD) < 0 || ::fcntl(STDOUT_FILENO, F_GETFD) < 0 || ::fcntl(STDIN_FILENO, F_GETFD) < 0) {
    if (::open("/dev/null", O_RDWR) < 0) break;
  }
  const bool one = are_one_file(STDOUT_FILENO, STDERR_FILENO);
  consoles_.push_back(std::make_unique<ConsoleWriter>(STDOUT_FILENO, "stdout"));
  if (!one) consoles_.push_back(std::make_unique<ConsoleWriter>(STDERR_FILENO, "stderr"));
  if (!plan.has_files()) return;
  try {
    folder_.emplace(plan.log_dir, "none");
    say(fmt::format("the logs of the ranks are in {}", escaped(folder_->path())));
  } catch (const ConfigError& error) {
    say(fmt::format("{} The launch continues without logs.", error.what()));
  }
}

void WorkerOutput::number_ranks(int first_rank) {
  for (auto& rank : plan_.ranks) rank.rank = first_rank++;
}

WorkerStreams WorkerOutput::open(int local_rank, int attempt) {
  limit_.restore();  // for a worker that inherits our streams
  if (ranks_.empty() || (ranks_.size() == 1 && !plan_.has_files())) return {};
  const RoomForDescriptors room(limit_, kDescriptorsOfARank);
  Rank& place = ranks_.at(static_cast<size_t>(local_rank));
  for (auto& stream : place.streams) stream->end();
  tell_problems();
  place.streams.clear();
  place.last_lines = LastLines();
  const RankOutputPlan& wanted = plan_.ranks[static_cast<size_t>(local_rank)];
  place.streams.push_back(make_stream(local_rank, attempt, false));
  if (consoles_.size() == 2 || wanted.stdout_to_file || wanted.stderr_to_file) {
    place.streams.push_back(make_stream(local_rank, attempt, true));
  }
  tell_problems();
  return {.out = place.streams.front()->writing_end(), .err = place.streams.back()->writing_end()};
}

std::unique_ptr<RankStream> WorkerOutput::make_stream(int local_rank, int attempt, bool is_error) {
  ConsoleWriter& console = is_error ? errors() : *consoles_.front();
  const bool alone = ranks_.size() == 1;
  const int writer = alone ? 0 : 2 * local_rank + (is_error ? 1 : 0);
  return std::make_unique<RankStream>(console, writer, prefix_of(local_rank, is_error),
                                      ranks_[static_cast<size_t>(local_rank)].last_lines, file_for(local_rank, attempt, is_error),
                                      alone);
}

std::string WorkerOutput::prefix_of(int local_rank, bool is_error) const {
  const RankOutputPlan& wanted = plan_.ranks[static_cast<size_t>(local_rank)];
  if (!wanted.prefix.empty() && (is_error ? wanted.stderr_to_file : wanted.stdout_to_file)) return wanted.line_prefix();
  const ConsoleWriter& console = is_error ? *consoles_.back() : *consoles_.front();
  if (!console.is_terminal() || ranks_.size() < 2) return "";
  return fmt::format("[{}] ", wanted.name.empty() ? std::to_string(wanted.rank) : wanted.name);
}

std::unique_ptr<LogFile> WorkerOutput::file_for(int local_rank, int attempt, bool is_error) {
  const RankOutputPlan& wanted = plan_.ranks[static_cast<size_t>(local_rank)];
  if (!folder_ || !(is_error ? wanted.stderr_to_file : wanted.stdout_to_file)) return nullptr;
  return std::make_unique<LogFile>(folder_->file_of(attempt, local_rank, is_error ? "stderr" : "stdout"));
}

void WorkerOutput::started(int local_rank) {
  if (ranks_.empty()) return;
  for (auto& stream : ranks_[static_cast<size_t>(local_rank)].streams) stream->close_writing_end();
}

void WorkerOutput::add_to(std::vector<pollfd>& waited_for) const {
  limit_.raise();
  for (const auto& console : consoles_) console->add_to(waited_for);
  for (const Rank& rank : ranks_) {
    for (const auto& stream : rank.streams) {
      if (stream->may_read()) waited_for.push_back({.fd = stream->reading_end(), .events = POLLIN, .revents = 0});
    }
  }
}

void WorkerOutput::serve() {
  for (auto& rank : ranks_) {
    for (auto& stream : rank.streams) {
      if (stream->may_read()) stream->read_some(kAtATime);
    }
  }
  pass_on();
}

void WorkerOutput::drain(int local_rank) {
  if (ranks_.empty()) return;
  for (auto& stream : ranks_[static_cast<size_t>(local_rank)].streams) stream->drain();
  pass_on();
}

void WorkerOutput::pass_on() {
  for (auto& console : consoles_) console->serve();
  tell_problems();
  for (auto& rank : ranks_) {
    for (auto& stream : rank.streams) {
      // As if the rank had inherited our stream: writing to a pipe without a reader raises SIGPIPE.
      if (stream->console().reader_is_gone()) stream->end();
    }
  }
}

std::vector<std::string> WorkerOutput::last_lines(int local_rank) const {
  if (ranks_.empty()) return {};
  const Rank& place = ranks_[static_cast<size_t>(local_rank)];
  std::vector<std::string> rests;
  for (const auto& stream : place.streams) rests.push_back(stream->rest());
  return place.last_lines.quoted(rests);
}

void WorkerOutput::say(std::string_view line) {
  if (plan_.quiet) return;
  errors().write(kLauncher, "", fmt::format("accelerate launch: {}\n", line));
  errors().serve();
}

void WorkerOutput::tell_problems() {
  for (auto& rank : ranks_) {
    for (auto& stream : rank.streams) {
      if (const std::string problem = stream->take_problem(); !problem.empty()) say(problem);
    }
  }
  for (const auto& console : consoles_) {
    const int error = console->take_error();
    if (error == 0) continue;
    say(fmt::format("Cannot write to {}: {}. The ranks' output to it is lost.", console->name(), ::strerrordesc_np(error)));
  }
}

void WorkerOutput::resize() {
  for (auto& rank : ranks_) {
    for (auto& stream : rank.streams) stream->resize();
  }
  for (auto& console : consoles_) console->serve();
}

void WorkerOutput::clear_rows() {
  for (auto& console : consoles_) console->clear_rows();
}

void WorkerOutput::release() {
  for (auto& rank : ranks_) rank.streams.clear();
  consoles_.clear();
  ignored_signals_.release();
}

void WorkerOutput::finish() {
  for (auto& rank : ranks_) {
    for (auto& stream : rank.streams) stream->end();
  }
  pass_on();
}

size_t WorkerOutput::pending() const {
  size_t bytes = 0;
  for (const auto& console : consoles_) bytes += console->pending();
  return bytes;
}

}  // namespace accelerate::detail
