#include "console/plain_asker.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <accelerate/core/error.h>
#include "console/screen.h"
#include "core/blanks.h"

namespace accelerate::detail {
namespace {

constexpr size_t kLongestAnswer = 64 << 10;

/// The option that `answer` names by its number or its text, or nothing.
std::optional<size_t> option_named(const MenuQuestion& question, const std::string& answer) {
  const auto named = std::find(question.options.begin(), question.options.end(), answer);
  if (named != question.options.end()) return static_cast<size_t>(named - question.options.begin());
  size_t index = 0;
  const auto [end, problem] = std::from_chars(answer.data(), answer.data() + answer.size(), index);
  if (problem != std::errc() || end != answer.data() + answer.size() || index >= question.options.size()) return std::nullopt;
  return index;
}

}  // namespace

void PlainAsker::write(const std::string& text) {
  if (!write_all(output_, text)) throw ConfigError(fmt::format("Cannot write the questions: {}.", std::strerror(errno)));
}

void PlainAsker::tell(const std::string& note) { write(laid_out(note) + "\n"); }

std::string PlainAsker::read_line(const std::string& question) {
  std::string line;
  char c = 0;
  while (line.size() < kLongestAnswer) {
    const ssize_t got = ::read(input_, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw ConfigError(fmt::format("Cannot read the answer to '{}': {}.", question, std::strerror(errno)));
    if (got == 0 && line.empty()) {
      write("\n");
      throw ConfigError(fmt::format("The input ended before '{}' was answered. Nothing was written.", question));
    }
    if (got == 0 || c == '\n') return std::string(without_blanks(line));
    line += c;
  }
  throw ConfigError(
      fmt::format("The answer to '{}' is longer than {} KiB. Nothing was written.", question, kLongestAnswer >> 10));
}

size_t PlainAsker::choose(const MenuQuestion& question) {
  std::string text = question.text + "\n";
  for (size_t i = 0; i < question.options.size(); ++i) text += fmt::format("  {}  {}\n", i, question.options[i]);
  write(text);
  while (true) {
    write(fmt::format("Enter a number [{}]: ", question.fallback));
    const std::string answer = read_line(question.text);
    if (answer.empty()) return question.fallback;
    if (const auto index = option_named(question, answer)) return *index;
    write(fmt::format("Please enter a number from 0 to {}.\n", question.options.size() - 1));
  }
}

std::string PlainAsker::ask(const TextQuestion& question) {
  const std::string shown = question.hint.empty() ? question.fallback.value_or("") : question.hint;
  const std::string prompt = laid_out(question.text + (shown.empty() ? " " : " [" + shown + "] "));
  while (true) {
    write(prompt);
    const std::string answer = read_line(question.text);
    if (answer.empty() && question.fallback) return *question.fallback;
    const std::string problem = problem_of(question, answer);
    if (problem.empty()) return answer;
    write(problem + "\n");
  }
}

}  // namespace accelerate::detail
