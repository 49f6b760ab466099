#pragma once

#include <stdexcept>
#include <string>

#include "console/plain_asker.h"

namespace accelerate::detail {

/// The user pressed Ctrl-C, or the process got a signal to stop; the terminal has been restored.
class Interrupted : public std::runtime_error {
 public:
  explicit Interrupted(int signal) : std::runtime_error("interrupted"), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

/// Asks on a terminal: menus are navigated with arrow keys, j and k or the number of a row, and confirmed with Enter. Other
/// questions are lines, edited as the terminal edits them.
class TerminalAsker : public Asker {
 public:
  /// `colours`: whether the chosen row may be coloured.
  TerminalAsker(int input, int output, bool colours);

  /// Throws Interrupted; the menu is gone from the screen by then.
  size_t choose(const MenuQuestion& question) override;
  std::string ask(const TextQuestion& question) override { return lines_.ask(question); }
  void tell(const std::string& note) override { lines_.tell(note); }

 private:
  PlainAsker lines_;
  int input_, output_;
  bool colours_;
};

}  // namespace accelerate::detail
