#include "output/last_lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "console/text_columns.h"
#include "output/rank_terminal.h"

namespace accelerate::detail {
namespace {

constexpr int kColumns = 300;
constexpr size_t kBytes = 4096;  // of a line

// The end of a line is where a progress bar has its last state; otherwise its beginning tells what it is about.
std::string_view bounded_line(std::string_view line) {
  if (line.size() <= kBytes) return line;
  return line.find('\r') == std::string_view::npos ? line.substr(0, kBytes) : line.substr(line.size() - kBytes);
}

std::string shown_line(const std::string& line) { return fit_columns(plain_text(line), kColumns); }

// "frame #3: at::native::add(...) + 0x57 (0x7f... in libtorch_cpu.so)", as every c10::Error has dozens of.
bool is_stack_frame(std::string_view line) {
  constexpr std::string_view kStart = "frame #";
  return line.starts_with(kStart) && line.size() > kStart.size() && line[kStart.size()] >= '0' && line[kStart.size()] <= '9';
}

std::vector<std::string> without_stack_frames(const std::vector<std::string>& lines) {
  std::vector<std::string> others;
  for (size_t i = 0; i < lines.size();) {
    size_t frames = 0;
    while (i + frames < lines.size() && is_stack_frame(lines[i + frames])) ++frames;
    others.push_back(frames == 0 ? lines[i] : fmt::format("({} stack frames)", frames));
    i += std::max<size_t>(frames, 1);
  }
  return others;
}

// Where the C++ runtime names the exception that ended a program; the end where it does not.
std::vector<std::string>::const_iterator find_uncaught(const std::vector<std::string>& lines) {
  const auto found =
      std::find_if(lines.rbegin(), lines.rend(), [](const auto& line) { return line.starts_with("terminate called "); });
  return found == lines.rend() ? lines.end() : found.base() - 1;
}

}  // namespace

void LastLines::add(std::string_view lines) {
  // From the back: of a megabyte of lines, nearly all would be dropped at once.
  std::vector<std::string_view> last;
  while (!lines.empty() && last.size() < kept_) {
    const size_t before = lines.substr(0, lines.size() - 1).rfind('\n');
    const size_t begin = before == std::string_view::npos ? 0 : before + 1;
    last.push_back(lines.substr(begin, lines.size() - 1 - begin));
    lines = lines.substr(0, begin);
  }
  for (auto line = last.rbegin(); line != last.rend(); ++line) lines_.emplace_back(bounded_line(*line));
  while (lines_.size() > kept_) lines_.pop_front();
}

std::vector<std::string> LastLines::quoted(const std::vector<std::string>& rests) const {
  std::vector<std::string> lines;
  for (const std::string& line : lines_) lines.push_back(shown_line(line));
  for (const std::string& rest : rests) {
    if (!rest.empty()) lines.push_back(shown_line(rest));
  }
  lines = without_stack_frames(lines);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  if (lines.size() <= kQuoted) return lines;
  const auto last = lines.cend() - static_cast<std::ptrdiff_t>(kQuoted);
  const auto uncaught = find_uncaught(lines);
  if (uncaught >= last) return {last, lines.cend()};
  const bool tells_what = (uncaught + 1)->starts_with("  what():");
  std::vector<std::string> chosen(uncaught, uncaught + (tells_what ? 2 : 1));
  chosen.insert(chosen.end(), last + static_cast<std::ptrdiff_t>(chosen.size()), lines.cend());
  return chosen;
}

bool LastLines::end_with(const std::vector<std::string>& texts) const {
  const auto last = std::find_if(lines_.rbegin(), lines_.rend(), [](const auto& line) { return !shown_line(line).empty(); });
  if (texts.empty() || static_cast<std::ptrdiff_t>(texts.size()) > lines_.rend() - last) return false;
  return std::equal(texts.rbegin(), texts.rend(), last,
                    [](const std::string& text, const std::string& line) { return text == shown_line(line); });
}

}  // namespace accelerate::detail
