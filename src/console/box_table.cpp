#include "console/box_table.h"

#include <algorithm>
#include <numeric>

namespace accelerate::detail {
namespace {

using Widths = std::vector<size_t>;

std::string dashes(size_t count) {
  std::string line;
  for (size_t i = 0; i < count; ++i) line += "─";
  return line;
}

std::string ruled(const char* left, const char* middle, const char* right, const Widths& widths) {
  std::string line = left;
  for (size_t i = 0; i < widths.size(); ++i) line += (i == 0 ? "" : middle) + dashes(widths[i]);
  return line + right;
}

/// Where the blanks cannot be halved, Python puts the odd one before the text if the width is odd, else behind it.
std::string centered(const std::string& text, size_t width) {
  const size_t blanks = width > text.size() ? width - text.size() : 0;
  const size_t before = blanks / 2 + (blanks & width & 1);
  return std::string(before, ' ') + text + std::string(blanks - before, ' ');
}

std::string filled(const std::vector<std::string>& cells, const Widths& widths) {
  std::string line = "│";
  for (size_t i = 0; i < cells.size(); ++i) line += centered(cells[i], widths[i]) + "│";
  return line;
}

Widths widths_of(const std::string& title, const std::vector<std::string>& headers,
                 const std::vector<std::vector<std::string>>& rows) {
  Widths widths;
  for (size_t i = 0; i < headers.size(); ++i) {
    widths.push_back(headers[i].size());
    for (const auto& row : rows) widths.back() = std::max(widths.back(), row[i].size());
  }
  // The last column makes room for a long title. Python adds the difference twice; so the table is as wide as its.
  const size_t cells = std::accumulate(widths.begin(), widths.end(), size_t{0}), line = cells + widths.size() + 1;
  if (title.size() > cells) widths.back() += 2 * (title.size() > line ? title.size() - line : line - title.size());
  return widths;
}

}  // namespace

std::string box_table(const std::string& title, const std::vector<std::string>& headers,
                      const std::vector<std::vector<std::string>>& rows) {
  const Widths widths = widths_of(title, headers, rows);
  const size_t inside = std::accumulate(widths.begin(), widths.end(), widths.size() - 1);
  std::string table =
      ruled("┌", "─", "┐", widths) + "\n│" + centered(title, inside) + "│\n" + ruled("├", "┬", "┤", widths) + "\n";
  table += filled(headers, widths) + "\n" + ruled("├", "┼", "┤", widths) + "\n";
  for (const auto& row : rows) table += filled(row, widths) + "\n";
  return table + ruled("└", "┴", "┘", widths);
}

}  // namespace accelerate::detail
