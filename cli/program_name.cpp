#include "program_name.h"

#include <cerrno>  // program_invocation_short_name

namespace accelerate::detail::cli {

std::string program_name() {
  return program_invocation_short_name == std::string(kNameBesidePython) ? kNameBesidePython : "accelerate";
}

std::string as_called(std::string text) {
  const std::string plain = "accelerate ", called = program_name() + " ";
  for (const std::string before : {"usage: ", "`", "$("}) {
    size_t at = 0;
    while ((at = text.find(before + plain, at)) != std::string::npos) {
      at += before.size();
      text.replace(at, plain.size(), called);
    }
  }
  return text;
}

}  // namespace accelerate::detail::cli
