#include "manual.h"

#include <algorithm>
#include <cstdio>

#include <accelerate/core/error.h>
#include <accelerate/core/version.h>
#include "core/closest_name.h"
#include "program_name.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

// Text that roff prints literally: hyphens that can be copied, no escapes, and no line that would be a request.
std::string roff(const std::string& text) {
  std::string quoted;
  for (const char character : text) {
    if (character == '-') {
      quoted += "\\-";
    } else if (character == '\\') {
      quoted += "\\e";
    } else {
      if (quoted.empty() && (character == '.' || character == '\'')) quoted += "\\&";
      quoted += character;
    }
  }
  return quoted;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fR"; }

std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return text;
}

std::string head(const std::string& name, const std::string& summary) {
  return ".TH " + upper_case(roff(name)) + " 1 \"\" \"accelerate " + version() + "\" \"User Commands\"\n.SH NAME\n" + roff(name) +
         " \\- " + roff(summary) + "\n";
}

std::string flag_entry(const FlagPage& flag) {
  std::string text = ".TP\n";
  if (flag.letter != 0) text += bold("-" + std::string(1, flag.letter)) + ", ";
  text += bold(std::string("--") + flag.name) + (flag.takes_value() ? " " + italic(flag.placeholder()) : "") + "\n";
  return text + roff(flag.help_with_choices()) + "\n";
}

std::string synopsis(const CommandPage& page) {
  return bold("accelerate " + page.name) + (page.flags.empty() ? "" : " [" + italic("flags") + "]") +
         (page.operands.empty() ? "" : " " + italic(page.operands)) + "\n";
}

std::string paragraphs(const CommandPage& page) {
  std::string text;
  for (const auto& paragraph : page.description) text += (text.empty() ? "" : ".PP\n") + roff(paragraph) + "\n";
  return text;
}

std::string flags_of_page(const CommandPage& page) {
  std::string text, group;
  for (const auto& flag : page.flags) {
    if (flag.group != group) text += ".SS " + roff(flag.group) + "\n";
    group = flag.group;
    text += flag_entry(flag);
  }
  return text;
}

std::string command_manual(const std::vector<CommandPage>& pages, const CommandPage& page) {
  std::string text = head("accelerate-" + page.name, page.summary) + ".SH SYNOPSIS\n" + synopsis(page);
  for (const auto& other : pages) {
    if (other.name.starts_with(page.name + " ")) text += ".br\n" + synopsis(other);
  }
  text += ".SH DESCRIPTION\n" + paragraphs(page);
  if (!page.flags.empty()) {
    text += ".SH OPTIONS\nEvery flag may be written with hyphens instead of underscores.\n";
    if (page.has_help_all) {
      text += ".TP\n" + bold("--help-all") + "\nshow every flag; " + bold("--help") + " shows the common ones\n";
    }
    text += flags_of_page(page);
  }
  for (const auto& other : pages) {
    if (other.name.starts_with(page.name + " ")) {
      text += ".SH " + upper_case(roff("accelerate " + other.name)) + "\n" + paragraphs(other) + flags_of_page(other);
    }
  }
  text +=
      ".SH EXIT STATUS\n0 on success, 2 for an invalid command line, otherwise 1 or the exit status of the first process that "
      "failed.\n";
  return text + ".SH SEE ALSO\n.BR accelerate (1)\n";
}

std::string overview(const std::vector<CommandPage>& pages) {
  std::string text =
      head("accelerate", "train with LibTorch on any number of processes and nodes") + ".SH SYNOPSIS\n" + bold("accelerate") +
      " " + italic("command") + " [" + italic("arguments") + "]\n.SH DESCRIPTION\n" +
      "Configures, launches and checks programs that train in one or more processes. Each command has its own manual "
      "page.\n.SH COMMANDS\n";
  std::string others;
  for (const auto& page : pages) {
    text += ".TP\n" + bold(page.name) + "\n" + roff(page.summary) + "\n";
    if (page.name.find(' ') == std::string::npos)
      others += (others.empty() ? "" : ",\n") + (".BR accelerate\\-" + page.name) + " (1)";
  }
  text += ".SH OPTIONS\n.TP\n" + bold("-h") + ", " + bold("--help") +
          "\nshow help; after a command, help on that command\n.TP\n" + bold("--version") + "\nshow the version\n";
  return text + ".SH SEE ALSO\n" + others + "\n";
}

}  // namespace

std::vector<std::string> manual_names(const std::vector<CommandPage>& pages) {
  std::vector<std::string> names = {"accelerate", kNameBesidePython};
  for (const auto& page : pages) {
    if (page.name.find(' ') == std::string::npos) names.push_back("accelerate-" + page.name);
  }
  return names;
}

std::string manual_page(const std::vector<CommandPage>& pages, const std::string& name) {
  if (name == "accelerate") return overview(pages);
  if (name == kNameBesidePython) return ".so man1/accelerate.1\n";
  for (const auto& page : pages) {
    if ("accelerate-" + page.name == name) return command_manual(pages, page);
  }
  throw UsageError("There is no manual page '" + name + "'" + closest_hint(name, manual_names(pages)) + ".");
}

int run_manual_command(std::vector<std::string> arguments) {
  try {
    if (arguments.size() != 1) throw UsageError("Give the name of one manual page, such as accelerate-launch.");
    return std::fputs(manual_page(command_pages(), arguments.front()).c_str(), stdout) < 0;
  } catch (const UsageError& error) {
    tell_problem("accelerate manual", error.what());
    return kUsageExitCode;
  }
}

}  // namespace accelerate::detail::cli
