#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// One line at the bottom of the terminal.
class ScreenRow {
 public:
  /// What it shows now, in at most `columns`. Called with the screen locked: it must not call the screen.
  virtual std::string text(int columns) = 0;

 protected:
  ~ScreenRow() = default;
};

/// The rows at the bottom of the terminal, and the text that scrolls above them.
///
/// The only process-wide state: a process has one terminal with one cursor, so independent bars and log lines must share this
/// object. Any thread may call any member.
class Screen {
 public:
  /// The screen of this process. Never destroyed, because a bar with static lifetime may outlive anything else.
  static Screen& of_process();

  /// Shows `row` below those already there. It must be removed before it ends.
  void add(ScreenRow& row, int file_descriptor);
  /// Removes `row`; with `leave` its text stays, above the remaining rows.
  void remove(ScreenRow& row, bool leave);
  /// Shows the present text of all rows.
  void redraw();
  /// Writes a line above the rows, or plainly if there are none or it goes to another file. False when the write fails.
  bool write_line(int file_descriptor, std::string_view text);

 private:
  Screen();
  std::string erase();
  std::string draw();
  [[noreturn]] static void terminate_below_rows();

  const std::terminate_handler previous_terminate_;
  std::mutex mutex_;
  std::vector<ScreenRow*> rows_;
  std::atomic<int> file_descriptor_ = -1;  // where the rows are
  std::atomic<int> drawn_rows_ = 0;        // the cursor stands at the end of the first of them
};

/// True for a terminal that can move its cursor.
bool is_terminal(int file_descriptor);

/// Writes all of `bytes`, with one system call if possible. False when it fails.
bool write_all(int file_descriptor, std::string_view bytes);

}  // namespace accelerate::detail
