#include "config/interview.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include "config/python_text.h"

namespace accelerate::detail {
namespace {

std::optional<double> number_in(const std::string& text) {
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

/// Also `1e8`, as the question about a number of parameters shows it.
std::optional<int64_t> integer_in(const std::string& text) {
  const auto number = number_in(text);
  if (!number || std::abs(*number) > 1e15 || *number != std::floor(*number)) return std::nullopt;
  return static_cast<int64_t>(*number);
}

std::string flag_problem(const std::string& answer) {
  try {
    parse_flag(answer, "");
    return "";
  } catch (const Error&) {
    return "Please answer yes or no.";
  }
}

}  // namespace

std::string problem_of(const TextQuestion& question, const std::string& answer) {
  try {
    for (const char32_t point : code_points(answer)) {
      if (point < 0x20 || point == 0x7f) return "Please use no control characters.";
    }
  } catch (const ConfigError&) {
    return "Please answer in UTF-8.";
  }
  if (answer.empty()) return "An answer is needed here.";
  return question.problem ? question.problem(answer) : "";
}

bool Interview::yes(const std::string& name, const std::string& text, bool fallback) {
  const auto answer = asker_.ask({.name = name,
                                  .text = text,
                                  .fallback = fallback ? "yes" : "no",
                                  .hint = fallback ? "YES/no" : "yes/NO",
                                  .problem = flag_problem});
  return parse_flag(answer, name);
}

int64_t Interview::integer(const std::string& name, const std::string& text, std::optional<int64_t> fallback, int64_t least,
                           int64_t most) {
  const auto problem = [=](const std::string& answer) -> std::string {
    const auto number = integer_in(answer);
    if (!number) return "Please enter a whole number.";
    if (*number < least) return fmt::format("Please enter a number that is at least {}.", least);
    return *number > most ? fmt::format("Please enter a number that is at most {}.", most) : "";
  };
  const auto shown = fallback ? std::optional(std::to_string(*fallback)) : std::nullopt;
  return *integer_in(asker_.ask({.name = name, .text = text, .fallback = shown, .problem = problem}));
}

double Interview::number(const std::string& name, const std::string& text, double fallback) {
  const auto problem = [](const std::string& answer) -> std::string {
    const auto number = number_in(answer);
    return number && *number >= 0 ? "" : "Please enter a number that is at least 0, such as 1.0.";
  };
  return *number_in(asker_.ask({.name = name, .text = text, .fallback = python_number(fallback), .problem = problem}));
}

std::string Interview::text(const std::string& name, const std::string& text, std::optional<std::string> fallback) {
  return asker_.ask({.name = name, .text = text, .fallback = std::move(fallback)});
}

std::string Interview::choice(const std::string& name, const std::string& text, const std::vector<std::string>& options,
                              size_t fallback, const std::vector<std::string>& shown) {
  return options.at(
      asker_.choose({.name = name, .text = text, .options = shown.empty() ? options : shown, .fallback = fallback}));
}

}  // namespace accelerate::detail
