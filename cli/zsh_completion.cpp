#include "shell_completion.h"

namespace accelerate::detail::cli {
namespace {

// For use between single quotes and brackets of an argument of _arguments or _describe.
std::string zsh_quoted(const std::string& text) {
  std::string quoted;
  for (const char character : text) {
    if (character == '\'') {
      quoted += "'\\''";
    } else {
      if (character == '[' || character == ']' || character == ':' || character == '\\') quoted += '\\';
      quoted += character;
    }
  }
  return quoted;
}

std::string zsh_action(Offer offer, const std::vector<std::string>& choices) {
  if (offer == Offer::files || offer == Offer::programs) return "_files";
  if (offer == Offer::folders) return "_files -/";
  if (offer == Offer::nothing) return " ";
  std::string list = "(";
  for (const auto& choice : choices) list += (list.size() > 1 ? " " : "") + choice;
  return list + ")";
}

std::string zsh_flag(const FlagPage& flag) {
  const std::string explanation = "[" + zsh_quoted(flag.help) + "]";
  const std::string value = flag.takes_value() ? ":" + flag.placeholder() + ":" + zsh_action(flag.offer(), flag.offered()) : "";
  // "*" allows a flag to be repeated: the last occurrence wins.
  std::string text = std::string("    '*--") + flag.name + (value.empty() ? "" : "=") + explanation + value + "'";
  if (flag.letter != 0) text += " \\\n    '*-" + std::string(1, flag.letter) + explanation + value + "'";
  return text;
}

std::string zsh_function(const std::string& command) {
  std::string name = "_accelerate_" + command;
  for (char& character : name) character = character == ' ' || character == '-' ? '_' : character;
  return name;
}

// The subcommands of `page`, by their last word.
std::vector<const CommandPage*> below(const CommandPage& page, const std::vector<CommandPage>& pages) {
  std::vector<const CommandPage*> found;
  for (const auto& other : pages) {
    if (other.name.starts_with(page.name + " ")) found.push_back(&other);
  }
  return found;
}

std::string zsh_command(const CommandPage& page, const std::vector<CommandPage>& pages) {
  std::string text = zsh_function(page.name) + "() {\n";
  for (const auto* other : below(page, pages)) {
    const std::string word = other->name.substr(page.name.size() + 1);
    text +=
        "  if [[ $words[2] == " + word + " ]]; then shift words; ((CURRENT--)); " + zsh_function(other->name) + "; return; fi\n";
  }
  // -A: what follows the program's name is not a flag of ours.
  text += std::string("  _arguments ") + (page.offer == Offer::programs ? "-A '-*' " : "") +
          "\\\n    '(-h --help)'{-h,--help}'[show help]'";
  if (page.has_help_all) text += " \\\n    '--help-all[show help on every flag]'";
  for (const auto& flag : page.flags) text += " \\\n" + zsh_flag(flag);
  for (size_t i = 1; i <= page.most_operands(); ++i)
    text += " \\\n    '" + std::to_string(i) + ":" + zsh_quoted(page.operands) + ":" + zsh_action(page.offer, page.choices) + "'";
  if (page.offer == Offer::programs) text += " \\\n    '*:argument of the program:_files'";
  return text + "\n}\n\n";
}

}  // namespace

std::string zsh_completion(const std::vector<CommandPage>& pages) {
  std::string text = "#compdef accelerate";
  for (const auto& name : entry_points()) text += " " + name;
  text += "\n# Completion of accelerate for zsh, made by `accelerate completion zsh`.\n\n";
  for (const auto& page : pages) text += zsh_command(page, pages);
  text += "_accelerate() {\n  local -a commands\n  commands=(\n";
  for (const auto& page : pages) {
    if (page.name.find(' ') == std::string::npos) text += "    '" + page.name + ":" + zsh_quoted(page.summary) + "'\n";
  }
  text +=
      "  )\n"
      "  if [[ ${words[1]:t} == accelerate-* && ${words[1]:t} != accelerate-cpp ]]; then\n    "
      "_accelerate_${${words[1]:t}#accelerate-}\n    return\n  fi\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe -t commands command commands\n    _arguments '--help[show help]' '--version[show the version]'\n    "
      "return\n  fi\n"
      "  shift words\n  ((CURRENT--))\n"
      "  (( $+functions[_accelerate_$words[1]] )) && _accelerate_$words[1]\n}\n\n_accelerate \"$@\"\n";
  return text;
}

}  // namespace accelerate::detail::cli
