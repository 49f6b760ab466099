#pragma once

#include <functional>
#include <string>
#include <utility>

#include "console/asker.h"

namespace accelerate::detail {

/// Asks line by line, with numbered options: for pipes, scripts and terminals that cannot move their cursor.
class PlainAsker : public Asker {
 public:
  /// `layout` breaks a text into lines; without it texts stay as they are.
  PlainAsker(int input, int output, std::function<std::string(const std::string& text)> layout = {})
      : input_(input), output_(output), layout_(std::move(layout)) {}

  size_t choose(const MenuQuestion& question) override;
  std::string ask(const TextQuestion& question) override;
  void tell(const std::string& note) override;

 private:
  /// The next line without blanks around it. ConfigError when there is none, naming `question`.
  std::string read_line(const std::string& question);
  void write(const std::string& text);

  std::string laid_out(const std::string& text) const { return layout_ ? layout_(text) : text; }

  int input_, output_;
  std::function<std::string(const std::string& text)> layout_;
};

}  // namespace accelerate::detail
