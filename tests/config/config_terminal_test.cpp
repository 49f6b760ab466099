#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "config/config_file.h"
#include "support/on_terminal.h"
#include "support/temporary_folder.h"
#include "support/terminal.h"

namespace accelerate::testing {

using namespace detail;
namespace {

constexpr const char* kUpKey = "\x1b[A";
constexpr const char* kDownKey = "\x1b[B";

/// The wizard on a terminal, writing to a file of its own.
class WizardOnTerminal {
 public:
  explicit WizardOnTerminal(unsigned short rows = 24, unsigned short columns = 80, const std::string& colours = "NO_COLOR=")
      : program_({"env", colours, ACCELERATE_CLI, "config", "--config_file", file()}, rows, columns) {}

  std::string file() const { return folder_ / "config.yaml"; }
  OnTerminal& program() { return program_; }

  /// Types `keys` and waits until the row that is then marked reads `row`.
  void press(const std::string& keys, const std::string& row) {
    program_.read();
    before_ = program_.screen().size();
    program_.type(keys);
    wait_until("'" + row + "' after a key; shown is: " + program_.screen().substr(before_),
               [&] { return program_.read().find("> " + row, before_) != std::string::npos; });
  }
  /// Answers, and waits for the next question.
  void answer(const std::string& keys, const std::string& next) {
    before_ = program_.read().size();
    program_.type(keys + "\r");
    wait_until("'" + next + "'", [&] { return program_.read().find(next, before_) != std::string::npos; });
  }
  bool wrote_something() const { return !std::filesystem::is_empty(std::filesystem::path(file()).parent_path()); }

 private:
  TemporaryFolder folder_;
  OnTerminal program_;
  size_t before_ = 0;
};

TEST(ConfigOnTerminal, MenusAreWalkedByKeysAndTheAnswersAreWritten) {
  WizardOnTerminal wizard;
  wizard.program().wait_for("> 0  This machine");
  wizard.answer("", "> 0  No distributed training");
  wizard.press(kDownKey, "1  multi-CPU");
  wizard.press("j", "2  multi-XPU");
  wizard.press(kUpKey, "1  multi-CPU");
  wizard.press("7", "7  multi-SDAA");
  wizard.press("\x1b[F", "10  TPU");
  wizard.press("k", "9  multi-NEURON");
  wizard.press("\x1b[H", "0  No distributed training");
  wizard.press("1", "1  multi-CPU");
  wizard.answer("", "How many machines");
  wizard.answer("none", "Please enter a whole number.");
  wizard.answer("", "Should collectives be checked");
  wizard.answer("yes", "mpirun?");
  wizard.answer("", "torch dynamo");
  wizard.answer("no", "How many processes");
  wizard.answer("4", "> 0  no");
  wizard.press("2", "2  bf16");
  wizard.program().type("\r");
  EXPECT_EQ(wizard.program().wait(), 0);
  EXPECT_NE(wizard.program().screen().find(wizard.file()), std::string::npos) << "it says where";
  const Config config = read_config(wizard.file());
  EXPECT_EQ(config.fields.at("distributed_type"), "MULTI_CPU");
  EXPECT_EQ(config.fields.at("num_processes"), 4);
  EXPECT_EQ(config.fields.at("mixed_precision"), "bf16");
  EXPECT_EQ(config.fields.at("debug"), true);
}

TEST(ConfigOnTerminal, CtrlCInAMenuLeavesTheTerminalAsItWasAndNothingWritten) {
  WizardOnTerminal wizard;
  wizard.program().wait_for("> 0  This machine");
  EXPECT_FALSE(wizard.program().takes_lines());
  wizard.program().type("\x03");
  EXPECT_EQ(wizard.program().wait(), 128 + SIGINT);
  EXPECT_TRUE(wizard.program().takes_lines());
  EXPECT_FALSE(wizard.wrote_something());
}

TEST(ConfigOnTerminal, ASignalInAMenuLeavesTheTerminalAsItWas) {
  WizardOnTerminal wizard;
  wizard.program().wait_for("> 0  This machine");
  wizard.program().signal(SIGTERM);
  EXPECT_EQ(wizard.program().wait(), 128 + SIGTERM);
  EXPECT_TRUE(wizard.program().takes_lines());
  EXPECT_FALSE(wizard.wrote_something());
}

TEST(ConfigOnTerminal, CtrlCInALineEndsItWithNothingWritten) {
  WizardOnTerminal wizard;
  wizard.program().wait_for("> 0  This machine");
  wizard.answer("", "> 0  No distributed");
  wizard.answer("", "CPU only");
  wizard.program().type("\x03");
  EXPECT_EQ(wizard.program().wait(), 128 + SIGINT);
  EXPECT_FALSE(wizard.wrote_something());
}

TEST(ConfigOnTerminal, TheEndOfInputIsAnErrorWithNothingWritten) {
  WizardOnTerminal menu;
  menu.program().wait_for("> 0  This machine");
  menu.program().type("\x04");
  EXPECT_EQ(menu.program().wait(), 1);
  EXPECT_TRUE(menu.program().takes_lines());
  EXPECT_FALSE(menu.wrote_something());
  WizardOnTerminal line;
  line.program().wait_for("> 0  This machine");
  line.answer("", "> 0  No distributed");
  line.answer("", "CPU only");
  line.program().type("\x04");
  EXPECT_EQ(line.program().wait(), 1);
  EXPECT_FALSE(line.wrote_something());
}

TEST(ConfigOnTerminal, ANarrowAndLowWindowShowsPartOfAMenuAndNoRowTwice) {
  WizardOnTerminal wizard(8, 24);
  wizard.program().wait_for("> 0  This machine");
  wizard.answer("", "> 0  No distributed");
  wizard.press("8", "8  multi-MUSA");
  wizard.press(kDownKey, "9  multi-NEURON");
  ScreenModel model(24);
  model.feed(wizard.program().read());
  EXPECT_FALSE(model.wrapped()) << "rows are cut and questions are broken between words";
  std::string screen;
  for (size_t row = 0; row < 40; ++row) screen += model.line(row) + "\n";
  EXPECT_EQ(RunningProgram::occurrences(screen, "multi-MUSA"), 1) << screen;
  EXPECT_EQ(RunningProgram::occurrences(screen, "multi-NEURON"), 1) << screen;
  EXPECT_EQ(RunningProgram::occurrences(screen, "No distributed"), 0) << screen;
  EXPECT_EQ(RunningProgram::occurrences(screen, "Which type of machine"), 1) << screen;
}

TEST(ConfigOnTerminal, ColoursAreShownUnlessTheyAreUnwanted) {
  WizardOnTerminal colourful, plain(24, 80, "NO_COLOR=1");
  for (auto* wizard : {&colourful, &plain}) wizard->program().wait_for("> 0  This machine");
  EXPECT_NE(colourful.program().screen().find("\x1b[32m"), std::string::npos);
  EXPECT_EQ(plain.program().screen().find("\x1b[3"), std::string::npos);
}

TEST(ConfigOnTerminal, TerminalsThatCannotMoveTheirCursorGetNumberedQuestions) {
  TemporaryFolder folder;
  OnTerminal program({"sh", "-c", "TERM=dumb exec " ACCELERATE_CLI " config --config_file " + (folder / "c.yaml").string()});
  program.wait_for("Enter a number [0]");
  EXPECT_EQ(program.screen().find('\x1b'), std::string::npos);
  EXPECT_TRUE(program.takes_lines());
}

}  // namespace
}  // namespace accelerate::testing
