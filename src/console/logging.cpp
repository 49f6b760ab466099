#include <accelerate/console/logging.h>

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <mutex>
#include <thread>
#include <unordered_set>

#include <accelerate/console/progress.h>
#include <accelerate/core/error.h>

namespace accelerate {

namespace {

constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warning", "error", "critical"};

std::string with_case(std::string_view text, int (*convert)(int)) {
  std::string converted(text);
  std::ranges::transform(converted, converted.begin(), [convert](unsigned char c) { return static_cast<char>(convert(c)); });
  return converted;
}

/// A launcher gives each process its own pipe, and unread bytes in ours could be overtaken by the next process. The wait is
/// short: the reader may be asleep.
void wait_until_read(int file_descriptor) {
  struct stat file = {};
  if (::fstat(file_descriptor, &file) != 0 || !S_ISFIFO(file.st_mode)) return;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  int unread = 0;
  while (::ioctl(file_descriptor, FIONREAD, &unread) == 0 && unread > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace

std::string_view to_string(LogLevel level) { return kLevelNames.at(static_cast<size_t>(level)); }

LogLevel log_level_from(const Environment& environment) {
  const std::optional<std::string> value = environment("ACCELERATE_LOG_LEVEL");
  if (!value) return LogLevel::info;
  const auto found = std::ranges::find(kLevelNames, with_case(*value, &::tolower));
  if (found == kLevelNames.end()) {
    throw ConfigError(accelerate::format(
        "ACCELERATE_LOG_LEVEL is \"{}\"; set it to debug, info, warning, error or critical, or unset it", *value));
  }
  return static_cast<LogLevel>(found - kLevelNames.begin());
}

struct Logger::SeenTexts {
  bool insert(const std::string& text) {
    const std::lock_guard lock(mutex);
    return texts.insert(text).second;
  }

  std::mutex mutex;
  std::unordered_set<std::string> texts;
};

Logger::Logger(std::string name, LogLevel level, LogProcess process)
    : name_(std::move(name)), level_(level), process_(std::move(process)), seen_(std::make_shared<SeenTexts>()) {}

void Logger::log_arguments(LogLevel level, LogOptions options, std::string_view pattern,
                           std::span<const FormatArgument> arguments) const {
  std::optional<std::string> text;
  if (shows(level, options)) text = format_arguments(pattern, arguments);
  write(level, options, text);
}

void Logger::warn_once_arguments(LogOptions options, std::string_view pattern, std::span<const FormatArgument> arguments) const {
  std::optional<std::string> text;
  if (shows(LogLevel::warning, options)) text = format_arguments(pattern, arguments);
  if (text && !seen_->insert(*text)) text.reset();
  write(LogLevel::warning, options, text);
}

void Logger::write(LogLevel level, LogOptions options, const std::optional<std::string>& text) const {
  std::optional<std::string> line;
  if (text) {
    line =
        accelerate::format("{}:{}:[RANK {}] {}", with_case(to_string(level), &::toupper), name_, process_.process_index, *text);
  }
  if (options.in_order) {
    write_in_order(line);
  } else if (line) {
    write_line(STDERR_FILENO, *line);
  }
}

void Logger::write_in_order(const std::optional<std::string>& line) const {
  if (process_.num_processes > 1 && !process_.wait_for_everyone) {
    throw UsageError(accelerate::format(
        "get_logger(\"{0}\"): in_order needs a barrier between {1} processes, but this logger has no process group; use "
        "accelerator.get_logger(\"{0}\")",
        name_, process_.num_processes));
  }
  for (int rank = 0; rank < process_.num_processes; ++rank) {
    if (rank == process_.process_index && line) {
      write_line(STDERR_FILENO, *line);
      wait_until_read(STDERR_FILENO);
    }
    if (process_.wait_for_everyone) process_.wait_for_everyone();
  }
}

Logger get_logger(std::string name, std::optional<LogLevel> level, const Environment& environment) {
  const LaunchEnvironment process = read_launch_environment(environment);
  return Logger(std::move(name), level ? *level : log_level_from(environment),
                {.process_index = process.process_index, .num_processes = process.num_processes});
}

}  // namespace accelerate
