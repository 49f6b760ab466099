#include "launch/last_lines.h"

#include <algorithm>

#include "core/text_columns.h"
#include "launch/rank_terminal.h"

namespace accelerate {
namespace {

constexpr size_t kLines = 10;
constexpr int kColumns = 300;
constexpr size_t kBytes = 16 * 1024;  // of a line; the end of it is where a progress bar has its last state

}  // namespace

void LastLines::add(std::string_view lines) {
  // From the back: of a megabyte of lines, nearly all are gone again at once.
  std::vector<std::string_view> last;
  while (!lines.empty() && last.size() < kLines) {
    const size_t before = lines.substr(0, lines.size() - 1).rfind('\n');
    const size_t begin = before == std::string_view::npos ? 0 : before + 1;
    last.push_back(lines.substr(begin, lines.size() - 1 - begin));
    lines = lines.substr(0, begin);
  }
  for (auto line = last.rbegin(); line != last.rend(); ++line) {
    lines_.emplace_back(line->substr(line->size() - std::min(line->size(), kBytes)));
  }
  while (lines_.size() > kLines) lines_.pop_front();
}

std::vector<std::string> LastLines::texts(const std::vector<std::string>& rests) const {
  std::deque<std::string> lines = lines_;
  for (const std::string& rest : rests) {
    if (!rest.empty()) lines.push_back(rest);
  }
  while (lines.size() > kLines) lines.pop_front();
  std::vector<std::string> texts;
  for (const std::string& line : lines) texts.push_back(detail::fit_columns(plain_text(line), kColumns));
  return texts;
}

}  // namespace accelerate
