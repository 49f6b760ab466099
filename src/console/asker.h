#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

/// How questions reach a user: the wizard asks, and does not know whether a terminal, a pipe or a test answers.
namespace accelerate::detail {

/// A question with one of several answers.
struct MenuQuestion {
  /// What the answer decides, such as `mixed_precision`; tests answer by it.
  std::string name;
  std::string text;
  std::vector<std::string> options;
  /// The option that is taken when nothing is said.
  size_t fallback = 0;
};

/// A question that is answered in the user's own words.
struct TextQuestion {
  std::string name;
  std::string text;
  /// What an empty answer means; without it an empty answer is asked again.
  std::optional<std::string> fallback = {};
  /// How the fallback is shown, when its own text says less: "yes/NO".
  std::string hint = {};
  /// Why an answer will not do, or nothing when it will.
  std::function<std::string(const std::string& answer)> problem = {};
};

class Asker {
 public:
  virtual ~Asker() = default;
  /// The index of the option taken.
  virtual size_t choose(const MenuQuestion& question) = 0;
  /// An answer that has no problem. ConfigError when no answer comes any more.
  virtual std::string ask(const TextQuestion& question) = 0;
  /// Something the user should know, a sentence or two.
  virtual void tell(const std::string& note) = 0;
};

/// Why `answer` will not do for `question`, or nothing. An empty answer stands for the fallback and has passed already.
std::string problem_of(const TextQuestion& question, const std::string& answer);

}  // namespace accelerate::detail
