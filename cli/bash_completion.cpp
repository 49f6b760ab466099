#include <map>

#include "program_name.h"
#include "shell_completion.h"

namespace accelerate::detail::cli {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& between = " ") {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// The shell assignments for a word that is completed this way.
std::string bash_offer(Offer offer, const std::vector<std::string>& choices) {
  switch (offer) {
    case Offer::files:
      return "offer=files";
    case Offer::programs:
      return "offer=programs";
    case Offer::folders:
      return "offer=folders";
    case Offer::choices:
      return "offer=choices words='" + joined(choices) + "'";
    case Offer::nothing:
      break;
  }
  return "offer=nothing";
}

// Branches of a case: how a flag's value is completed. Flags that complete alike share a branch.
std::string bash_values(const std::vector<CommandPage>& pages) {
  std::map<std::string, std::vector<std::string>> flags;
  for (const auto& page : pages) {
    for (const auto& flag : page.flags) {
      if (!flag.takes_value()) continue;
      auto& names = flags[bash_offer(flag.offer(), flag.offered())];
      names.push_back("'" + page.name + " " + flag.name + "'");
      if (flag.letter != 0) names.push_back("'" + page.name + " " + flag.letter + "'");
    }
  }
  std::string text;
  for (const auto& [offer, names] : flags) text += "    " + joined(names, " | ") + ") " + offer + " ;;\n";
  return text;
}

std::string bash_flags(const std::vector<CommandPage>& pages) {
  std::string text;
  for (const auto& page : pages) {
    std::vector<std::string> flags = {"--help"};
    if (page.has_help_all) flags.emplace_back("--help-all");
    for (const auto& flag : page.flags) flags.push_back(std::string("--") + flag.name);
    text += "    '" + page.name + "') flags='" + joined(flags) + "' most=" + std::to_string(page.most_operands()) + " " +
            bash_offer(page.offer, page.choices) + " ;;\n";
  }
  return text;
}

bool is_below_another(const CommandPage& page) { return page.name.find(' ') != std::string::npos; }

std::string bash_subcommands(const std::vector<CommandPage>& pages) {
  std::vector<std::string> names;
  for (const auto& page : pages) {
    if (is_below_another(page)) names.push_back("'" + page.name + "'");
  }
  return joined(names, " | ");
}

std::string bash_commands(const std::vector<CommandPage>& pages) {
  std::vector<std::string> names;
  for (const auto& page : pages) {
    if (!is_below_another(page)) names.push_back(page.name);
  }
  return joined(names);
}

constexpr const char* kHead = R"(# Completion of accelerate for bash, made by `accelerate completion bash`.

# _accelerate_value COMMAND FLAG: sets offer to what may follow the flag (none: nothing may), and words to the choices there are.
_accelerate_value() {
  local name=${2#-}
  name=${name#-}
  offer=none words=
  case "$1 ${name//-/_}" in
)";

constexpr const char* kFlags = R"(  esac
}

# _accelerate_command COMMAND: sets flags, and offer and words to what stands beside them, most to how often.
_accelerate_command() {
  flags='--help --version' most=0 offer=none words=
  case "$1" in
)";

constexpr const char* kOffer = R"(  esac
}

_accelerate_offer() {
  case "$offer" in
    files | programs) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    folders) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
    choices) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word") ;;
  esac
}

_accelerate() {
  local word=${COMP_WORDS[COMP_CWORD]} command='' flags offer words before most operands=0 i
  COMPREPLY=()
  case "${COMP_WORDS[0]##*/}" in
    accelerate-cpp) ;;
    accelerate-*) command=${COMP_WORDS[0]##*/accelerate-} command=${command#accelerate-} ;;
  esac
  for ((i = 1; i < COMP_CWORD; i++)); do
    before=${COMP_WORDS[i]}
    if [[ $before == -?* && $before != -- ]]; then
      _accelerate_value "$command" "$before"
      [[ $offer != none ]] || continue
      # The value is the next word, or the one behind the = that bash makes a word of its own.
      [[ ${COMP_WORDS[i + 1]} != = ]] || ((++i))
      if ((++i >= COMP_CWORD)); then
        [[ $word != = ]] || word=
        _accelerate_offer
        return
      fi
    elif [[ -z $command ]]; then
      command=$before
    else
      case "$command $before" in
)";

constexpr const char* kRest = R"() command="$command $before" ;;
        *) _accelerate_command "$command"
          ((++operands))
          # Behind the name of a program everything is the program's own.
          [[ $offer != programs ]] || { _accelerate_offer; return; } ;;
      esac
    fi
  done
  _accelerate_command "$command"
  if [[ $word == -* ]]; then
    # Whoever has typed a hyphen is offered hyphens.
    [[ ${word#--} != *-* ]] || flags=${flags//_/-}
    offer=choices words=$flags
  elif [[ -n $command ]] && ((operands >= most)); then
    offer=none
  elif [[ -z $command ]]; then
    offer=choices words=')";

}  // namespace

std::string bash_completion(const std::vector<CommandPage>& pages) {
  return kHead + bash_values(pages) + kFlags + bash_flags(pages) + kOffer + "        " + bash_subcommands(pages) + kRest +
         bash_commands(pages) + "'\n  fi\n  _accelerate_offer\n}\n\ncomplete -F _accelerate accelerate " +
         joined(entry_points()) + "\n";
}

std::vector<std::string> entry_points() { return {kNameBesidePython, "accelerate-config", "accelerate-launch"}; }

}  // namespace accelerate::detail::cli
