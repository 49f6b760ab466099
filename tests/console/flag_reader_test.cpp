#include "console/flag_reader.h"

#include <gtest/gtest.h>

#include <accelerate/core/error.h>

namespace accelerate {

using namespace detail;
namespace {

const Flag kCount{.name = "max_count", .kind = FlagKind::integer, .help = "how many", .letter = 'c'};
const Flag kLoud{.name = "loud", .kind = FlagKind::on, .help = "say all", .letter = 'l'};
const Flag kColors{.name = "colors", .kind = FlagKind::words, .help = "those to use", .choices = "red green", .other_names = [] {
                     return std::map<std::string, std::string>{{"crimson", "red"}};
                   }};
const Flag kOld{.name = "np", .kind = FlagKind::integer, .help = "as mpirun has it", .single_dash = true};

FlagTable some_table(bool program_follows) {
  return {.flags = {&kCount, &kLoud, &kColors, &kOld},
          .program_follows = program_follows,
          .unknown = [](const std::string& given) { return "unknown: " + given; }};
}

// What a line says, in the order in which it says it: "max_count=3 loud | operands".
std::string read_as(const std::vector<std::string>& line, bool program_follows = false) {
  std::string text;
  try {
    const FlagLine rest = read_flags(some_table(program_follows), line, [&](const Flag& flag, const auto& values) {
      text += flag.name + std::string(values.empty() ? "" : "=");
      for (size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ",") + values[i];
      text += " ";
    });
    if (rest.help) return text + "help";
    text += "|";
    for (const auto& operand : rest.operands) text += " " + operand;
  } catch (const UsageError& error) {
    return error.what();
  }
  return text;
}

TEST(FlagReader, FlagsAreKnownInEachSpellingAndInTheOrderOfTheLine) {
  EXPECT_EQ(read_as({"--max_count", "3", "--loud"}), "max_count=3 loud |");
  EXPECT_EQ(read_as({"--loud", "--max-count=-3"}), "loud max_count=-3 |");
  for (const std::vector<std::string>& line :
       std::vector<std::vector<std::string>>{{"-l", "-c", "3"}, {"-lc3"}, {"-lc", "3"}, {"-lc=3"}}) {
    EXPECT_EQ(read_as(line), "loud max_count=3 |") << line.front();
  }
  EXPECT_EQ(read_as({"-np", "3", "--np=4"}), "np=3 np=4 |");
}

TEST(FlagReader, OperandsMayStandBetweenFlagsUnlessAProgramFollows) {
  EXPECT_EQ(read_as({"a", "--loud", "-", "b"}), "loud | a - b");
  EXPECT_EQ(read_as({"--loud", "program", "--loud", "-x"}, true), "loud | program --loud -x");
  EXPECT_EQ(read_as({"--", "--loud"}, true), "| --loud");
  EXPECT_EQ(read_as({"--", "--loud"}), "unknown: --");
}

TEST(FlagReader, WordsReachAsFarAsTheyAreChoices) {
  EXPECT_EQ(read_as({"--colors", "green", "crimson", "a", "red"}), "colors=green,crimson | a red");
  EXPECT_EQ(read_as({"--colors=red", "--loud"}), "colors=red loud |");
}

TEST(FlagReader, NothingBehindTheQuestionForHelpIsRead) {
  EXPECT_EQ(read_as({"--loud", "-h", "--nonsense"}), "loud help");
  EXPECT_EQ(read_as({"--nonsense", "--help"}), "unknown: --nonsense");
}

TEST(FlagReader, WhatIsWrongIsNamed) {
  EXPECT_EQ(read_as({"--lout=3"}), "unknown: --lout");
  EXPECT_EQ(read_as({"-lx"}), "unknown: -lx");
  EXPECT_EQ(read_as({"--loud=3"}), "--loud takes no value; it was given '3'.");
  EXPECT_EQ(read_as({"-c"}), "--max_count needs a value, but nothing follows it.");
  EXPECT_EQ(read_as({"--max_count", "--loud"}), "--max_count needs a value, but --loud follows it.");
  EXPECT_EQ(read_as({"-max_count", "3"}), "There is no flag -max_count; it is written with two dashes: --max_count.");
  EXPECT_EQ(some_table(false).closest("lout"), ". The closest is --loud");
}

}  // namespace
}  // namespace accelerate
