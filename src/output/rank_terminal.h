#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// How a character looks: what the SGR sequences before it chose. Colours are 0 for the terminal's own.
struct TerminalStyle {
  uint32_t foreground = 0;
  uint32_t background = 0;
  uint16_t attributes = 0;
  bool operator==(const TerminalStyle&) const = default;
};

/// The part of a terminal that a program which draws progress bars needs: rows that may still change, and those that are done.
/// Lines are as long as they are (up to 16384 columns): no row wraps. What it does not know moves nothing and is dropped.
class RankTerminal {
 public:
  /// `columns`: where moves to the right end.
  explicit RankTerminal(int columns = 80) : columns_(columns) {}

  /// The window has another width from now on.
  void resize(int columns) { columns_ = columns; }

  /// Takes bytes; sequences and characters may be cut anywhere.
  void feed(std::string_view bytes);

  /// Rows above the cursor, whole, each to be had once. Rows that the program has shown to come back to stay live.
  std::vector<std::string> take_finished();

  /// Everything is finished; what comes next begins on a fresh row.
  void finish();

  /// What may still change, cut to `columns`; no empty rows.
  std::vector<std::string> live(int columns) const;

 private:
  struct Cell {
    std::string glyph = {};  // empty: nothing was written, or the right half of a wide character
    TerminalStyle style = {};
    bool right_half = false;
  };
  using Row = std::vector<Cell>;

  void take(char byte);
  void take_escaped(char byte);
  void put_glyph();
  void obey(char final);
  void choose_style();
  void move_up(int rows);
  void move_down(int rows);
  void erase_line(int what);
  void erase_below(int what);
  void finish_above(size_t row);
  Row& row();
  static std::string render(const Row& row, int columns);

  int columns_;
  std::deque<Row> rows_ = {Row{}};
  size_t row_ = 0;
  size_t column_ = 0;
  size_t reach_ = 0;  // the most rows that the program has moved up
  TerminalStyle style_ = {};
  std::string glyph_ = {};   // the bytes of a character that has begun
  std::string escape_ = {};  // the bytes of a sequence that has begun
  std::vector<std::string> finished_ = {};
};

/// The text that a line leaves on a terminal, without colours.
std::string plain_text(std::string_view line);

}  // namespace accelerate::detail
