// Mistakes in patterns. The compiler must answer each with the sentence that stands before it: see mistakes.py.
#include <accelerate/console/logging.h>

void mistakes(const accelerate::Logger& logger, const std::string& text) {
  // expect: the format string has more {} than arguments
  accelerate::format("{} of {}", 1.0);
  // expect: the format string has fewer {} than arguments
  logger.info("loss", 1.0);
  // expect: the type letter does not match the argument
  logger.info({}, "{:d}", 1.0);
  // expect: a precision (.3) is only for floating point and text
  logger.warning_once("{:.3}", 7);
  // expect: unmatched { in the format string: write {{ for a literal brace
  accelerate::format("{} {", 7);
  // expect: unmatched } in the format string: write }} for a literal brace
  accelerate::format("{} }", 7);
  // expect: is not a constant expression
  accelerate::format(text, 7);
}

// And what is right stays right.
void right(const accelerate::Logger& logger, const std::string& text) {
  accelerate::format("{{}} {:>8} {:.3f} {:{}d}", text, 0.5f, 7, 8);
  accelerate::format(text);
  accelerate::format(accelerate::runtime_format(text), 7);
  logger.info(text);
  logger.info({.in_order = true}, "{1} {0}", text, 7);
}
