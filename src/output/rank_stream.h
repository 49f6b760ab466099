#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "output/console_writer.h"
#include "output/last_lines.h"
#include "output/log_folder.h"
#include "output/rank_terminal.h"

namespace accelerate::detail {

/// One stream of one rank: what it writes goes to a console line by line, or as it comes where the rank is alone, and to a file
/// as it is.
class RankStream {
 public:
  /// Makes a pipe, or a pseudo terminal where `console` is a terminal. `writer` is its number among those that write there;
  /// a rank that is alone may have one for both of its streams. Throws WorkerError when there can be none.
  RankStream(ConsoleWriter& console, int writer, std::string prefix, LastLines& last_lines, std::unique_ptr<LogFile> file,
             bool alone);
  ~RankStream();
  RankStream(const RankStream&) = delete;
  RankStream& operator=(const RankStream&) = delete;

  /// The write end, for the rank.
  int writing_end() const { return writing_end_; }
  /// The read end; -1 when the stream is closed.
  int reading_end() const { return reading_end_; }
  /// Closes our copy of the write end: the rank has its own now.
  void close_writing_end();

  /// True when what can be read may be read: the console has room.
  bool may_read() const { return reading_end_ >= 0 && !console_.is_full(); }
  /// Takes up to `most` of the bytes that are there now.
  void read_some(size_t most);
  /// Takes all that is there now, whether or not the console has room.
  void drain();
  /// Drains and closes the stream: an unfinished line gets a newline, unless the rank is alone. Later writers get SIGPIPE.
  void end();
  /// The terminal has another size.
  void resize();

  /// What the rank has written of a line that has no end yet.
  std::string rest() const;
  /// See LogFile.
  std::string take_problem() { return file_ ? file_->take_problem() : ""; }
  /// See ConsoleWriter.
  const ConsoleWriter& console() const { return console_; }

 private:
  bool make_terminal();
  void make_pipe();
  bool read_piece();
  void close_reading_end();
  void take(std::string_view bytes);
  void take_lines(std::string_view bytes);
  void pass_on(std::string_view lines);
  void take_drawing();
  int room() const;

  ConsoleWriter& console_;
  const int writer_;
  const std::string prefix_;
  LastLines& last_lines_;
  const std::unique_ptr<LogFile> file_;
  const bool alone_;
  int reading_end_ = -1;
  int writing_end_ = -1;
  std::optional<RankTerminal> terminal_ = {};
  std::string rest_ = {};
};

}  // namespace accelerate::detail
