// What shells offer, asked of real ones.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "launch/launch_flags.h"
#include "support/on_terminal.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

// What bash offers for a line, split into words as bash does; the last one is being typed.
class Bash {
 public:
  Bash() {
    std::filesystem::create_directory(folder_ / "data");
    for (const char* name : {"mine.yaml", "train", "with space"}) std::ofstream(folder_ / name) << "";
  }
  std::vector<std::string> offers(const std::vector<std::string>& words) const {
    // compopt works only while bash itself completes.
    const std::string script =
        "cd \"$1\" && source <(\"$2\" completion bash) && compopt() { :; } && shift 2 && COMP_WORDS=(\"$@\") "
        "COMP_CWORD=$(($# - 1)) && _accelerate && printf '%s\\n' \"${COMPREPLY[@]}\"";
    std::vector<std::string> line = {"bash", "--norc", "--noprofile", "-c", script, "bash", folder_.name(), ACCELERATE_CLI};
    line.insert(line.end(), words.begin(), words.end());
    const auto result = run_program(line);
    EXPECT_EQ(result.errors, "");
    std::vector<std::string> offered;
    std::istringstream lines(result.output);
    for (std::string each; std::getline(lines, each);) offered.push_back(each);
    std::sort(offered.begin(), offered.end());
    if (offered == std::vector<std::string>{""}) offered.clear();
    return offered;
  }

 private:
  TemporaryFolder folder_;
};

using Words = std::vector<std::string>;
const Words kFiles = {"data", "mine.yaml", "train", "with space"};

TEST(BashCompletion, OffersCommands) {
  const Bash bash;
  EXPECT_EQ(bash.offers({"accelerate", ""}),
            (Words{"completion", "config", "env", "estimate-memory", "inspect", "launch", "merge-weights", "test", "to-fsdp2"}));
  EXPECT_EQ(bash.offers({"accelerate", "l"}), (Words{"launch"}));
  EXPECT_EQ(bash.offers({"accelerate", "--"}), (Words{"--help", "--version"}));
  EXPECT_EQ(bash.offers({"accelerate", "config", ""}), (Words{"default", "update"}));
  EXPECT_EQ(bash.offers({"accelerate", "completion", ""}), (Words{"bash", "zsh"}));
  EXPECT_EQ(bash.offers({"accelerate", "nonsense", ""}), Words{});
}

TEST(BashCompletion, OffersEveryFlagOfLaunch) {
  const Bash bash;
  Words all = {"--help", "--help-all"};
  for (const auto& flag : launch_flags()) all.push_back(std::string("--") + flag.name);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--"}), all);
}

TEST(BashCompletion, OffersFlagsInTheSpellingThatWasBegun) {
  const Bash bash;
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--num_p"}), (Words{"--num_processes"}));
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--num-p"}), (Words{"--num-processes"}));
  EXPECT_EQ(bash.offers({"accelerate", "config", "default", "--"}), (Words{"--config_file", "--help", "--mixed_precision"}));
  EXPECT_EQ(bash.offers({"accelerate", "test", "--c"}), (Words{"--config_file"}));
}

TEST(BashCompletion, OffersTheValuesOfAFlag) {
  const Bash bash;
  const Words precisions = {"bf16", "fp16", "fp8", "no"};
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--mixed_precision", ""}), precisions);
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--mixed-precision", "b"}), (Words{"bf16"}));
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--mixed_precision", "="}), precisions);
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--mixed_precision", "=", "f"}), (Words{"fp16", "fp8"}));
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--config_file", ""}), kFiles);
  EXPECT_EQ(bash.offers({"accelerate", "env", "--config_file", "=", "m"}), (Words{"mine.yaml"}));
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--log_dir", ""}), (Words{"data"}));
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--num_processes", ""}), Words{}) << "a number is the user's to think of";
}

TEST(BashCompletion, OffersFilesForTheProgramAndBehindIt) {
  const Bash bash;
  EXPECT_EQ(bash.offers({"accelerate", "launch", ""}), kFiles);
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--cpu", "--num_processes", "2", "t"}), (Words{"train"}));
  EXPECT_EQ(bash.offers({"accelerate", "launch", "--num_processes", "=", "2", "w"}), (Words{"with space"}));
  EXPECT_EQ(bash.offers({"accelerate", "launch", "./train", ""}), kFiles);
  EXPECT_EQ(bash.offers({"accelerate", "launch", "./train", "--mixed_precision", "m"}), (Words{"mine.yaml"}))
      << "flags behind the program are not ours";
  EXPECT_EQ(bash.offers({"accelerate", "env", ""}), Words{});
}

TEST(BashCompletion, OffersFlagsBehindAnOperandToo) {
  const Bash bash;
  EXPECT_EQ(bash.offers({"accelerate", "inspect", "./train", "--j"}), (Words{"--json"}));
  EXPECT_EQ(bash.offers({"accelerate", "estimate-memory", "data", "--dtypes", "b"}), (Words{"bfloat16"}));
  EXPECT_EQ(bash.offers({"accelerate", "merge-weights", "data", "m"}), (Words{"mine.yaml"})) << "it takes a second one";
  EXPECT_EQ(bash.offers({"accelerate", "inspect", "./train", ""}), Words{}) << "it takes one";
  EXPECT_EQ(bash.offers({"accelerate", "completion", "bash", ""}), Words{});
}

TEST(BashCompletion, KnowsTheProgramsThatAreOneCommand) {
  const Bash bash;
  EXPECT_EQ(bash.offers({"accelerate-launch", "--num_p"}), (Words{"--num_processes"}));
  EXPECT_EQ(bash.offers({"/usr/bin/accelerate-config", ""}), (Words{"default", "update"}));
  EXPECT_EQ(bash.offers({"/usr/bin/accelerate-cpp", "l"}), (Words{"launch"}));
  EXPECT_EQ(bash.offers({"accelerate-cpp", "launch", "--num_p"}), (Words{"--num_processes"}));
}

TEST(BashCompletion, WhatIsOfferedIsWhatTheHelpLists) {
  const Bash bash;
  for (const Words& command : std::vector<Words>{
           {"config"}, {"config", "default"}, {"config", "update"}, {"launch"}, {"test"}, {"env"}, {"completion"}}) {
    Words line = {"accelerate"}, asked = {ACCELERATE_CLI};
    for (auto* words : {&line, &asked}) words->insert(words->end(), command.begin(), command.end());
    line.emplace_back("--");
    asked.emplace_back(command.front() == "launch" ? "--help-all" : "--help");
    const std::string help = run_program(asked).output;
    for (const auto& flag : bash.offers(line)) {
      EXPECT_NE(help.find(" " + flag), std::string::npos) << command.back() << " " << flag;
    }
  }
}

TEST(BashCompletion, WorksInAShellThatSomebodyTypesIn) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(ACCELERATE_CLI, folder / "accelerate");
  OnTerminal shell({"bash", "--norc", "--noprofile", "-i"});
  shell.type("PS1='% '; PATH=" + folder.name() + ":$PATH; source <(accelerate completion bash); echo rea''dy\n");
  shell.wait_for("ready");
  shell.type("accelerate laun\t--mixed_pre\tbf\t--help | grep -c 'usage: accelerate laun'ch; echo do''ne\n");
  shell.wait_for("done");
  EXPECT_NE(shell.screen().find("accelerate launch --mixed_precision bf16 --help"), std::string::npos) << shell.screen();
  shell.type("exit\n");
  EXPECT_EQ(shell.wait(), 0);
}

TEST(ZshCompletion, IsAScriptOfAllCommandsAndFlags) {
  const auto script = run_program({ACCELERATE_CLI, "completion", "zsh"});
  EXPECT_TRUE(script.output.starts_with("#compdef accelerate ")) << script.output.substr(0, 80);
  EXPECT_NE(script.output.find(" accelerate-cpp"), std::string::npos);
  for (const auto& flag : launch_flags()) {
    EXPECT_NE(script.output.find(std::string("'*--") + flag.name), std::string::npos) << flag.name;
  }
}

TEST(ZshCompletion, OnlyLaunchOffersNoFlagsBehindAnOperand) {
  const std::string script = run_program({ACCELERATE_CLI, "completion", "zsh"}).output;
  EXPECT_EQ(RunningProgram::occurrences(script, "_arguments -A '-*'"), 1);
  EXPECT_NE(script.find("_accelerate_launch() {\n  _arguments -A '-*'"), std::string::npos);
  EXPECT_NE(script.find("_accelerate_inspect() {\n  _arguments \\\n"), std::string::npos);
}

TEST(ZshCompletion, WorksInAShellThatSomebodyTypesIn) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(ACCELERATE_CLI, folder / "accelerate");
  std::ofstream(folder / "_accelerate") << run_program({ACCELERATE_CLI, "completion", "zsh"}).output;
  OnTerminal shell({"zsh", "-f", "-i"});
  shell.type("PS1='% '; PATH=" + folder.name() + ":$PATH; fpath=(" + folder.name() +
             " $fpath); autoload -U compinit; compinit -D -u; echo rea''dy\n");
  shell.wait_for("ready");
  shell.type("accelerate laun\t--mixed_pre\tbf\t --help | grep -c 'usage: accelerate laun'ch; echo do''ne\n");
  shell.wait_for("done");
  EXPECT_NE(shell.screen().find("1\r\n"), std::string::npos) << shell.screen();
  // Refused by its full name: that is how it was completed.
  shell.type("accelerate lau\t--config_file " + folder.name() + "/_acc\t\n");
  shell.wait_for(folder.name() + "/_accelerate");
}

TEST(ManualPages, HaveEveryFlagAndNoWarningFromGroff) {
  for (const char* page :
       {"accelerate", "accelerate-config", "accelerate-launch", "accelerate-test", "accelerate-env", "accelerate-completion"}) {
    const auto text = run_program({ACCELERATE_CLI, "manual", page});
    EXPECT_EQ(text.exit_code, 0) << page;
    EXPECT_TRUE(text.output.starts_with(".TH ")) << page;
    for (const char* section : {".SH NAME\n", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n"}) {
      EXPECT_NE(text.output.find(section), std::string::npos) << page << section;
    }
    const auto shown = run_program({"groff", "-man", "-ww", "-Tutf8"}, {.input = text.output});
    EXPECT_EQ(shown.errors, "") << page;
    EXPECT_GT(shown.output.size(), 200u) << page;
  }
  const auto launch = run_program({ACCELERATE_CLI, "manual", "accelerate-launch"});
  for (const auto& flag : launch_flags()) {
    EXPECT_NE(launch.output.find(std::string("\\fB\\-\\-") + flag.name + "\\fR"), std::string::npos) << flag.name;
  }
}

}  // namespace
}  // namespace accelerate::testing
