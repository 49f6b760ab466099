#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "output/last_lines.h"
#include "output/output_destination.h"

namespace accelerate::detail {

/// Merges the lines of all ranks into the launcher's stdout or stderr, or both if they are the same file.
/// On a terminal, rows that may still change (progress bars) stay at the bottom, and finished lines scroll above them.
class ConsoleWriter {
 public:
  /// `name`: for messages.
  ConsoleWriter(int file_descriptor, std::string name);

  bool is_terminal() const { return is_terminal_; }
  const std::string& name() const { return name_; }
  /// Width of the terminal.
  int columns() const;
  /// Rows of the terminal.
  int rows() const;

  /// Writes `text` of `writer`, which ends with a newline or, as a piece of a very long line, without. Each line gets `prefix`.
  /// An unfinished line is terminated when another writer writes.
  void write(int writer, std::string_view prefix, std::string_view text);
  /// What `writer` shows at the bottom of the terminal from now on, below the rows of writers with lower numbers.
  void show(int writer, std::vector<std::string> rows);

  /// True when these lines, as LastLines quotes them, are the last that were written.
  bool was_just_written(const std::vector<std::string>& lines) const { return !open_line_ && written_.end_with(lines); }

  /// Writes what can be written now, and draws what has changed.
  void serve();
  /// Erases the rows from the terminal until the next `serve`.
  void clear_rows();
  /// True when the queue is too long to take more.
  bool is_full() const;
  /// Bytes that are queued.
  size_t pending() const { return lines_.size() + destination_.queued(); }
  /// What to wait for.
  void add_to(std::vector<pollfd>& waited_for) const { destination_.add_to(waited_for); }
  /// See OutputDestination.
  bool reader_is_gone() const { return destination_.reader_is_gone(); }
  int take_error() { return destination_.take_error(); }

 private:
  std::string draw();
  void remember(std::string_view text);

  const int file_descriptor_;
  const std::string name_;
  const bool is_terminal_;
  OutputDestination destination_;
  std::optional<int> open_line_ = {};  // the writer of an unfinished line
  std::string open_text_ = {};         // the beginning of that line
  LastLines written_ = LastLines(2 * LastLines::kQuoted);
  std::string lines_ = {};  // finished, and not yet put
  std::map<int, std::vector<std::string>> live_ = {};
  bool changed_ = false;  // live_ is not what is drawn
  bool drawn_ = false;    // rows stand on the screen, and the cursor on the first of them
};

}  // namespace accelerate::detail
