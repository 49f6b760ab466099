#include <accelerate/console/logging.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include <accelerate/core/error.h>

#include "support/error_text.h"

namespace {

using accelerate::get_logger;
using accelerate::Logger;
using accelerate::LogLevel;
using accelerate::LogOptions;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

accelerate::Environment log_table(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

accelerate::Environment rank_table(int rank, int size) {
  return log_table({{"RANK", std::to_string(rank)},
                    {"LOCAL_RANK", std::to_string(rank)},
                    {"WORLD_SIZE", std::to_string(size)},
                    {"LOCAL_WORLD_SIZE", std::to_string(size)},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"MASTER_PORT", "29500"}});
}

/// What `body` writes to standard error.
template <typename Body>
std::string standard_error_of(const Body& body) {
  std::FILE* file = std::tmpfile();
  const int saved = ::dup(STDERR_FILENO);
  ::dup2(::fileno(file), STDERR_FILENO);
  try {
    body();
  } catch (const accelerate::Error& error) {
    ADD_FAILURE() << error.what();
  }
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  std::string content(static_cast<size_t>(::lseek(::fileno(file), 0, SEEK_END)), '\0');
  EXPECT_EQ(::pread(::fileno(file), content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
  std::fclose(file);
  return content;
}

void log_all_levels(const Logger& logger) {
  logger.debug("a");
  logger.info("b");
  logger.warning("c");
  logger.error("d");
  logger.critical("e");
}

TEST(Logging, ALineNamesLevelLoggerAndRank) {
  const Logger logger = get_logger("trainer", {}, log_table({}));
  EXPECT_EQ(standard_error_of([&] { logger.info("epoch {} loss {:.3f}", 3, 0.12); }),
            "INFO:trainer:[RANK 0] epoch 3 loss 0.120\n");
  EXPECT_EQ(standard_error_of([&] { logger.log(LogLevel::error, "{braces} stay"); }), "ERROR:trainer:[RANK 0] {braces} stay\n");
}

TEST(Logging, ALoggerShowsItsLevelAndAbove) {
  for (const auto& [level, count] : {std::pair{LogLevel::debug, 5},
                                     {LogLevel::info, 4},
                                     {LogLevel::warning, 3},
                                     {LogLevel::error, 2},
                                     {LogLevel::critical, 1}}) {
    const std::string text = standard_error_of([&] { log_all_levels(get_logger("x", level, log_table({}))); });
    EXPECT_EQ(std::ranges::count(text, '\n'), count) << text;
    EXPECT_TRUE(text.ends_with("CRITICAL:x:[RANK 0] e\n"));
  }
}

TEST(Logging, TheLevelComesFromTheArgumentThenTheEnvironmentThenIsInfo) {
  const auto environment = log_table({{"ACCELERATE_LOG_LEVEL", "WaRnInG"}});
  EXPECT_EQ(get_logger("x", LogLevel::debug, environment).level(), LogLevel::debug);
  EXPECT_EQ(get_logger("x", {}, environment).level(), LogLevel::warning);
  EXPECT_EQ(get_logger("x", {}, log_table({})).level(), LogLevel::info);
}

TEST(Logging, ABadLevelInTheEnvironmentIsAnErrorThatNamesVariableAndChoices) {
  for (const std::string value : {"loud", "", "10", "info "}) {
    EXPECT_EQ(message_of<accelerate::ConfigError>([&] {
                get_logger("x", {}, log_table({{"ACCELERATE_LOG_LEVEL", value}}));
              }),
              "ACCELERATE_LOG_LEVEL is \"" + value + "\"; set it to debug, info, warning, error or critical, or unset it");
  }
}

TEST(Logging, LevelsPrintByTheirNames) {
  EXPECT_EQ(accelerate::format("{} {}", LogLevel::debug, LogLevel::critical), "debug critical");
}

TEST(Logging, OnlyTheMainProcessSpeaksUnlessAllAreAsked) {
  for (int rank : {0, 1, 2}) {
    const Logger logger = get_logger("x", {}, rank_table(rank, 3));
    const std::string line = "INFO:x:[RANK " + std::to_string(rank) + "] here\n";
    EXPECT_EQ(standard_error_of([&] { logger.info("here"); }), rank == 0 ? line : "");
    EXPECT_EQ(standard_error_of([&] { logger.info({.main_process_only = false}, "here"); }), line);
  }
}

TEST(Logging, InOrderLetsEveryRankSpeakInItsTurn) {
  for (int rank : {0, 1, 2}) {
    int waited = 0;
    // A line that was written before the nth wait shows as a file that has grown by then.
    std::vector<bool> spoken;
    const auto wait = [&] {
      ++waited;
      spoken.push_back(::lseek(STDERR_FILENO, 0, SEEK_END) > 0);
    };
    const Logger logger("x", LogLevel::info, {.process_index = rank, .num_processes = 3, .wait_for_everyone = wait});
    EXPECT_EQ(standard_error_of([&] { logger.info({.in_order = true}, "rank {}", rank); }),
              accelerate::format("INFO:x:[RANK {0}] rank {0}\n", rank));
    EXPECT_EQ(waited, 3);
    EXPECT_EQ(spoken, (std::vector<bool>{rank <= 0, rank <= 1, rank <= 2}));
  }
}

TEST(Logging, InOrderWaitsAlsoWhereNothingIsShown) {
  int waited = 0;
  const Logger logger("x", LogLevel::error, {.process_index = 1, .num_processes = 2, .wait_for_everyone = [&] { ++waited; }});
  EXPECT_EQ(standard_error_of([&] { logger.info({.main_process_only = false, .in_order = true}, "hidden"); }), "");
  EXPECT_EQ(waited, 2);
}

TEST(Logging, InOrderWithoutAGroupIsAUsageErrorThatNamesTheRemedy) {
  const Logger logger = get_logger("x", {}, rank_table(1, 2));
  expect_parts(message_of<accelerate::UsageError>([&] { logger.info({.in_order = true}, "text"); }),
               {"use accelerator.get_logger(\"x\")"});
  const Logger alone = get_logger("x", {}, log_table({}));
  EXPECT_EQ(standard_error_of([&] { alone.info({.in_order = true}, "text"); }), "INFO:x:[RANK 0] text\n");
}

TEST(Logging, WarningOnceIsShownOncePerTextAndCopiesShareIt) {
  const Logger logger = get_logger("x", {}, log_table({}));
  const Logger copy = logger;
  const std::string text = standard_error_of([&] {
    for (int i = 0; i < 6; ++i) logger.warning_once("number {}", i % 2);
    copy.warning_once("number {}", 1);
    copy.warning_once({.main_process_only = false}, "number {}", 2);
  });
  EXPECT_EQ(text, "WARNING:x:[RANK 0] number 0\nWARNING:x:[RANK 0] number 1\nWARNING:x:[RANK 0] number 2\n");
}

TEST(Logging, ABadPatternIsAnErrorOnlyWhereItIsShown) {
  const Logger logger = get_logger("x", {}, log_table({}));
  EXPECT_THROW(logger.info(accelerate::runtime_format("{} {}"), 1), accelerate::UsageError);
  EXPECT_NO_THROW(logger.debug(accelerate::runtime_format("{} {}"), 1));
}

}  // namespace
