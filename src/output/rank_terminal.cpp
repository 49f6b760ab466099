#include "output/rank_terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "console/text_columns.h"

namespace accelerate::detail {
namespace {

constexpr size_t kMostColumns = 16384;
constexpr size_t kMostRows = 64;  // that are kept back: more of them than a terminal shows are no progress bars
constexpr size_t kLongestEscape = 256;
constexpr size_t kLongestGlyph = 15;  // a character and its combining marks

constexpr uint32_t kNamedColour = 1U << 24U;    // 30 to 37, 90 to 97 and the same of the background
constexpr uint32_t kPaletteColour = 2U << 24U;  // 38;5;n
constexpr uint32_t kTrueColour = 3U << 24U;     // 38;2;r;g;b

// The numbers of a control sequence; one that is left out is 0.
std::vector<int> numbers_in(std::string_view text) {
  std::vector<int> numbers = {0};
  for (const char c : text) {
    if (c == ';' || c == ':') {
      numbers.push_back(0);
    } else if (c >= '0' && c <= '9') {
      numbers.back() = std::min(numbers.back() * 10 + (c - '0'), 99999);
    }
  }
  return numbers;
}

// A colour of 38 or 48, which begins at numbers[at]; `at` is left on its last number.
uint32_t extended_colour(const std::vector<int>& numbers, size_t& at) {
  const auto number = [&](size_t offset) {
    return at + offset < numbers.size() ? static_cast<uint32_t>(numbers[at + offset]) & 0xffU : 0U;
  };
  const uint32_t kind = number(1);
  uint32_t colour = 0;
  if (kind == 5) colour = kPaletteColour | number(2);
  if (kind == 2) colour = kTrueColour | number(2) << 16U | number(3) << 8U | number(4);
  at += kind == 5 ? 2 : kind == 2 ? 4 : 1;
  return colour;
}

void append_colour(std::string& codes, uint32_t colour, int extended) {
  const uint32_t value = colour & 0xffffffU;
  if (colour == 0) return;
  if (colour >> 24U == 1) codes += fmt::format(";{}", value);
  if (colour >> 24U == 2) codes += fmt::format(";{};5;{}", extended, value);
  if (colour >> 24U == 3) {
    codes += fmt::format(";{};2;{};{};{}", extended, value >> 16U, (value >> 8U) & 0xffU, value & 0xffU);
  }
}

std::string sequence_of(const TerminalStyle& style) {
  std::string codes = "0";
  for (int attribute = 1; attribute <= 9; ++attribute) {
    if ((style.attributes >> attribute & 1U) != 0) codes += fmt::format(";{}", attribute);
  }
  append_colour(codes, style.foreground, 38);
  append_colour(codes, style.background, 48);
  return "\x1b[" + codes + "m";
}

// How many attributes a code from 22 to 29 ends: bold and faint go together, and the two kinds of blinking.
uint16_t ended_by(int code) {
  constexpr std::array<uint16_t, 8> ended = {
      1U << 1U | 1U << 2U, 1U << 3U, 1U << 4U, 1U << 5U | 1U << 6U, 0, 1U << 7U, 1U << 8U, 1U << 9U};
  return ended[static_cast<size_t>(code - 22)];
}

// Titles, links: ended by a bell or by ESC backslash.
bool is_escaped_text(std::string_view sequence) {
  return sequence.size() > 1 && std::string_view("]P_^").find(sequence[1]) != std::string_view::npos;
}

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80; }

size_t bytes_of_character(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
}

}  // namespace

void RankTerminal::feed(std::string_view bytes) {
  for (const char byte : bytes) {
    if (!escape_.empty()) {
      take_escaped(byte);
    } else {
      take(byte);
    }
  }
}

void RankTerminal::take(char byte) {
  // A character that was cut short by anything else is shown as what it is: broken.
  if (!glyph_.empty() && !continues_character(byte)) put_glyph();
  switch (byte) {
    case '\x1b':
      escape_ = byte;
      return;
    case '\n':
      column_ = 0;
      return move_down(1);
    case '\r':
      column_ = 0;
      return;
    case '\b':
      column_ -= column_ > 0 ? 1 : 0;
      return;
    case '\t':
      column_ = std::min((column_ / 8 + 1) * 8, kMostColumns - 1);
      return;
    default:
      break;
  }
  if (static_cast<unsigned char>(byte) < 0x20 || byte == '\x7f') return;
  glyph_ += byte;
  if (glyph_.size() >= bytes_of_character(glyph_.front())) put_glyph();
}

void RankTerminal::put_glyph() {
  const std::string glyph = fit_columns(glyph_, 2);
  glyph_.clear();
  const int columns = columns_of(glyph);
  if (columns == 0) {  // belongs to the character before it
    Row& cells = row();
    if (column_ > 0 && column_ <= cells.size() && cells[column_ - 1].glyph.size() + glyph.size() <= kLongestGlyph) {
      cells[column_ - 1].glyph += glyph;
    }
    return;
  }
  if (column_ + 2 > kMostColumns) {
    column_ = 0;
    move_down(1);
  }
  Row& cells = row();
  cells.resize(std::max(cells.size(), column_ + static_cast<size_t>(columns)));
  // Half a wide character is none.
  const size_t after = column_ + static_cast<size_t>(columns);
  if (cells[column_].right_half) cells[column_ - 1] = {};
  if (after < cells.size() && cells[after].right_half) cells[after] = {};
  cells[column_] = {.glyph = glyph, .style = style_, .right_half = false};
  if (columns == 2) cells[column_ + 1] = {.glyph = {}, .style = style_, .right_half = true};
  column_ = after;
}

// What is broken off swallows nothing: a control character, or too many bytes, end it.
void RankTerminal::take_escaped(char byte) {
  if (is_escaped_text(escape_) && escape_.back() == '\x1b') {
    if (byte == '\\') return escape_.clear();
    escape_ = "\x1b";
  }
  const bool in_text = is_escaped_text(escape_);
  if (static_cast<unsigned char>(byte) < 0x20 && !(in_text && (byte == '\a' || byte == '\x1b'))) {
    escape_.clear();
    return take(byte);
  }
  escape_ += byte;
  const bool is_second = escape_.size() == 2;
  bool ended = byte >= 0x40 && byte <= 0x7e;
  if (is_second) ended = byte != '[' && !(byte >= 0x20 && byte <= 0x2f);
  if (is_escaped_text(escape_)) ended = byte == '\a';
  if (ended && !is_second && escape_[1] == '[') obey(byte);
  if (ended || escape_.size() > kLongestEscape) escape_.clear();
}

void RankTerminal::obey(char final) {
  const std::string_view inner = std::string_view(escape_).substr(2, escape_.size() - 3);
  if (!inner.empty() && inner.front() >= '<' && inner.front() <= '?') return;  // private: cursor on and off, and the like
  const int number = numbers_in(inner).front();
  const auto count = static_cast<size_t>(std::max(1, number));
  const size_t last = static_cast<size_t>(std::max(1, columns_)) - 1;
  switch (final) {
    case 'A':
    case 'F':
      if (final == 'F') column_ = 0;
      return move_up(static_cast<int>(count));
    case 'B':
    case 'E':
      if (final == 'E') column_ = 0;
      return move_down(static_cast<int>(std::min(count, kMostRows)));
    case 'C':
      column_ = std::max(column_, std::min(column_ + count, last));
      return;
    case 'D':
      column_ -= std::min(column_, count);
      return;
    case 'G':
      column_ = std::min(count - 1, std::max(column_, last));
      return;
    case 'H':
      row_ = column_ = 0;
      return;
    case 'J':
      return erase_below(number);
    case 'K':
      return erase_line(number);
    case 'm':
      return choose_style();
    default:
      return;
  }
}

void RankTerminal::choose_style() {
  const std::vector<int> numbers = numbers_in(std::string_view(escape_).substr(2, escape_.size() - 3));
  for (size_t at = 0; at < numbers.size(); ++at) {
    const int code = numbers[at];
    if (code == 0) {
      style_ = {};
    } else if (code <= 9) {
      style_.attributes = static_cast<uint16_t>(style_.attributes | 1U << static_cast<unsigned>(code));
    } else if (code >= 22 && code <= 29) {
      style_.attributes = static_cast<uint16_t>(style_.attributes & ~ended_by(code));
    } else if (code == 38) {
      style_.foreground = extended_colour(numbers, at);
    } else if (code == 48) {
      style_.background = extended_colour(numbers, at);
    } else if ((code >= 30 && code <= 39) || (code >= 90 && code <= 97)) {
      style_.foreground = code == 39 ? 0 : kNamedColour | static_cast<uint32_t>(code);
    } else if ((code >= 40 && code <= 49) || (code >= 100 && code <= 107)) {
      style_.background = code == 49 ? 0 : kNamedColour | static_cast<uint32_t>(code);
    }
  }
}

void RankTerminal::move_up(int rows) {
  const size_t moved = std::min(row_, static_cast<size_t>(rows));
  row_ -= moved;
  // Also when the rows it means are finished already: the next time they will not be.
  reach_ = std::max(reach_, std::min(static_cast<size_t>(rows), kMostRows));
}

void RankTerminal::move_down(int rows) {
  row_ += static_cast<size_t>(rows);
  if (rows_.size() <= row_) rows_.resize(row_ + 1);
  if (row_ > 2 * kMostRows) finish_above(row_ - kMostRows);
}

void RankTerminal::erase_line(int what) {
  Row& cells = row();
  const size_t length = std::min(column_, cells.size());
  if (what == 0) cells.resize(length);
  if (what == 1) std::fill(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(length), Cell{});
  if (what == 2) cells.clear();
}

void RankTerminal::erase_below(int what) {
  if (what >= 2) {
    for (Row& cells : rows_) cells.clear();
  } else if (what == 0) {
    rows_.resize(row_ + 1);
    erase_line(0);
  }
}

RankTerminal::Row& RankTerminal::row() { return rows_[row_]; }

void RankTerminal::finish_above(size_t row) {
  for (; row > 0; --row, --row_) {
    finished_.push_back(render(rows_.front(), static_cast<int>(kMostColumns)));
    rows_.pop_front();
  }
}

std::vector<std::string> RankTerminal::take_finished() {
  finish_above(row_ - std::min(row_, reach_));
  return std::exchange(finished_, {});
}

void RankTerminal::finish() {
  if (!glyph_.empty()) put_glyph();
  while (!rows_.empty() && rows_.back().empty()) rows_.pop_back();
  row_ = rows_.size();
  rows_.emplace_back();
  finish_above(row_);
  column_ = reach_ = 0;
  style_ = {};
  escape_.clear();
}

std::vector<std::string> RankTerminal::live(int columns) const {
  std::vector<std::string> texts;
  for (const Row& cells : rows_) {
    if (!cells.empty()) texts.push_back(render(cells, columns));
  }
  return texts;
}

std::string RankTerminal::render(const Row& cells, int columns) {
  std::string text;
  TerminalStyle style = {};
  const size_t count = std::min(cells.size(), static_cast<size_t>(std::max(0, columns)));
  for (size_t i = 0; i < count; ++i) {
    const Cell& cell = cells[i];
    if (cell.right_half) continue;
    const bool wide = i + 1 < cells.size() && cells[i + 1].right_half;
    if (wide && i + 1 == count) break;  // only its left half would fit
    if (cell.style != style) text += sequence_of(style = cell.style);
    text += cell.glyph.empty() ? " " : cell.glyph;
  }
  if (style != TerminalStyle{}) text += "\x1b[0m";
  return text;
}

std::string plain_text(std::string_view line) {
  RankTerminal terminal;
  terminal.feed(line);
  std::string text;
  for (const std::string& row : terminal.live(static_cast<int>(kMostColumns))) text += row;
  // Colours are the only sequences that are left.
  for (size_t at = text.find('\x1b'); at != std::string::npos; at = text.find('\x1b', at))
    text.erase(at, text.find('m', at) - at + 1);
  return text;
}

}  // namespace accelerate::detail
