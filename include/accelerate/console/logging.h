#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <accelerate/core/format.h>
#include <accelerate/core/launch_environment.h>

namespace accelerate {

/// How much a message matters. A logger shows those of its level and above.
enum class LogLevel { debug, info, warning, error, critical };

/// "debug", "info", "warning", "error" or "critical".
std::string_view to_string(LogLevel level);

/// The level in ACCELERATE_LOG_LEVEL, in any case; info when it is not set. Anything else in it is a ConfigError.
LogLevel log_level_from(const Environment& environment);

/// Which processes show a message, and how.
struct LogOptions {
  /// Only rank 0 shows it.
  bool main_process_only = true;
  /// Every rank shows it, one after the other. All ranks must make the call: they wait for each other.
  bool in_order = false;
};

/// The process that logs, and its barrier.
struct LogProcess {
  int process_index = 0;
  int num_processes = 1;
  /// A barrier over all processes. Without it `in_order` is an error if there is more than one process.
  std::function<void()> wait_for_everyone = {};
};

/// Writes lines like `INFO:trainer:[RANK 0] epoch 3 loss 0.120` to standard error, each in one piece and never into a progress
/// bar. Formats like `format`. Copies share the messages that `warning_once` has shown. Any thread may call any member.
///
///     auto logger = accelerator.get_logger("trainer");
///     logger.info("epoch {} loss {:.3f}", epoch, loss);
///     logger.info({.in_order = true}, "{} samples here", seen);
class Logger {
 public:
  /// Shows what has `level` or more, as `process`.
  Logger(std::string name, LogLevel level, LogProcess process);

  /// Shows a message on the main process.
  template <typename... Args>
  void log(LogLevel level, FormatStringFor<Args...> pattern, const Args&... args) const {
    log(level, LogOptions{}, pattern, args...);
  }

  /// Shows a message where `options` say.
  template <typename... Args>
  void log(LogLevel level, LogOptions options, FormatStringFor<Args...> pattern, const Args&... args) const {
    if (takes_part(level, options)) log_arguments(level, options, pattern.text(), detail::format_pack(args...));
  }

  /// `log` with the level in its name, on the main process or where the options say.
  template <typename... Args>
  void debug(FormatStringFor<Args...> pattern, const Args&... args) const {
    log(LogLevel::debug, pattern, args...);
  }
  template <typename... Args>
  void debug(LogOptions options, FormatStringFor<Args...> pattern, const Args&... args) const {
    log(LogLevel::debug, options, pattern, args...);
  }
  template <typename... Args>
  void info(FormatStringFor<Args...> pattern, const Args&... args) const {
    log(LogLevel::info, pattern, args...);
  }
  template <typename... Args>
  void info(LogOptions options, FormatStringFor<Args...> pattern, const Args&... args) const {
    log(LogLevel::info, options, pattern, args...);
  }
  template <typename... Args>
  void warning(FormatStringFor<Args...> pattern, const Args&... args) const {
    log(LogLevel::warning, pattern, args...);
  }
  template <typename... Args>
  void warning(LogOptions options, FormatStringFor<Args...> pattern, const Args&... args) const {
    log(LogLevel::warning, options, pattern, args...);
  }
  template <typename... Args>
  void error(FormatStringFor<Args...> pattern, const Args&... args) const {
    log(LogLevel::error, pattern, args...);
  }
  template <typename... Args>
  void error(LogOptions options, FormatStringFor<Args...> pattern, const Args&... args) const {
    log(LogLevel::error, options, pattern, args...);
  }
  template <typename... Args>
  void critical(FormatStringFor<Args...> pattern, const Args&... args) const {
    log(LogLevel::critical, pattern, args...);
  }
  template <typename... Args>
  void critical(LogOptions options, FormatStringFor<Args...> pattern, const Args&... args) const {
    log(LogLevel::critical, options, pattern, args...);
  }

  /// A warning that is shown only once per text.
  template <typename... Args>
  void warning_once(FormatStringFor<Args...> pattern, const Args&... args) const {
    warning_once(LogOptions{}, pattern, args...);
  }
  template <typename... Args>
  void warning_once(LogOptions options, FormatStringFor<Args...> pattern, const Args&... args) const {
    if (takes_part(LogLevel::warning, options)) warn_once_arguments(options, pattern.text(), detail::format_pack(args...));
  }

  /// The lowest level that is shown.
  LogLevel level() const { return level_; }

 private:
  struct SeenTexts;

  bool shows(LogLevel level, LogOptions options) const {
    return level >= level_ && (process_.process_index == 0 || !options.main_process_only || options.in_order);
  }
  // Ranks may have different levels: all of them join the barrier, also those that show nothing.
  bool takes_part(LogLevel level, LogOptions options) const { return options.in_order || shows(level, options); }

  void log_arguments(LogLevel level, LogOptions options, std::string_view pattern,
                     std::span<const FormatArgument> arguments) const;
  void warn_once_arguments(LogOptions options, std::string_view pattern, std::span<const FormatArgument> arguments) const;
  void write(LogLevel level, LogOptions options, const std::optional<std::string>& text) const;
  void write_in_order(const std::optional<std::string>& line) const;

  std::string name_;
  LogLevel level_;
  LogProcess process_;
  std::shared_ptr<SeenTexts> seen_;
};

/// A logger for this process, whose rank is the one its launcher gave it. It has no group: `in_order` needs the logger of
/// an accelerator. Without `level` the environment decides, as `log_level_from` says.
Logger get_logger(std::string name, std::optional<LogLevel> level = {}, const Environment& environment = process_environment);

}  // namespace accelerate
