#pragma once

#include <string>

#include "launch/asker.h"

namespace accelerate {

/// Asks line by line, with numbered options: for pipes, scripts and terminals that cannot move their cursor.
class PlainAsker : public Asker {
 public:
  PlainAsker(int input, int output) : input_(input), output_(output) {}

  size_t choose(const MenuQuestion& question) override;
  std::string ask(const TextQuestion& question) override;
  void tell(const std::string& note) override;

 private:
  /// The next line without blanks around it. ConfigError when there is none, naming `question`.
  std::string read_line(const std::string& question);
  void write(const std::string& text);

  int input_, output_;
};

}  // namespace accelerate
