#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

/// The interface through which the wizard asks its questions: a terminal, a pipe or a test answers.
namespace accelerate::detail {

/// A question with one of several answers.
struct MenuQuestion {
  /// The key that the answer sets, such as `mixed_precision`; tests answer by it.
  std::string name;
  std::string text;
  std::vector<std::string> options;
  /// The default option.
  size_t fallback = 0;
};

/// A question with a free-form answer.
struct TextQuestion {
  std::string name;
  std::string text;
  /// The default for an empty answer; without it the question is asked again.
  std::optional<std::string> fallback = {};
  /// How the default is shown, if not by its own text: "yes/NO".
  std::string hint = {};
  /// Why an answer is invalid, or nothing.
  std::function<std::string(const std::string& answer)> problem = {};
};

class Asker {
 public:
  virtual ~Asker() = default;
  /// The index of the chosen option.
  virtual size_t choose(const MenuQuestion& question) = 0;
  /// A valid answer. ConfigError at the end of the input.
  virtual std::string ask(const TextQuestion& question) = 0;
  /// A note for the user, a sentence or two.
  virtual void tell(const std::string& note) = 0;
};

/// Why `answer` is invalid for `question`, or nothing. An empty answer stands for the default and is valid.
std::string problem_of(const TextQuestion& question, const std::string& answer);

}  // namespace accelerate::detail
