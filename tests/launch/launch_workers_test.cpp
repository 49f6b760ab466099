#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "support/held_port.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

// The same launches of a small script by Python Accelerate and by us, with real processes.
namespace accelerate::testing {
namespace {

using Json = nlohmann::json;
using WorkerVariables = std::map<std::string, std::string>;

WorkerVariables environment_of_launcher(const RunOptions& options) {
  WorkerVariables variables;
  for (char** line = environ; *line != nullptr; ++line) {
    const std::string text = *line;
    variables[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  for (const auto& [name, value] : options.environment) {
    variables.erase(name);
    if (value) variables[name] = *value;
  }
  return variables;
}

// The interpreter itself: what stands before it in PATH may be a wrapper that changes the environment.
std::string python_interpreter() {
  const auto result = run_program({ACCELERATE_TEST_PYTHON, "-c", "import sys; sys.stdout.write(sys.executable)"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  return result.output;
}

std::vector<std::string> command_of(const Json& run, const TemporaryFolder& folder, const std::string& port) {
  std::vector<std::string> command = {ACCELERATE_CLI, "launch"};
  const auto filled = [&](std::string word) {
    if (word == "PORT") return port;
    if (word.starts_with("TMP/")) return (folder / word.substr(4)).string();
    if (word.starts_with("<tmp>/")) return (folder / word.substr(6)).string();
    return word;
  };
  for (const std::string flag : run.at("flags")) command.push_back(filled(flag));
  command.push_back(filled(run.at("target")));
  for (const std::string argument : run.at("args")) command.push_back(argument);
  return command;
}

// Listed: the exit code is the worker's own, where Python's launcher always has 1.
int expected_exit_code(const Json& run) {
  const std::vector<std::string> arguments = run.at("args");
  const auto has = [&](const char* word) { return std::find(arguments.begin(), arguments.end(), word) != arguments.end(); };
  if (run.at("exit_code") == 0) return 0;
  if (has("--die")) return 128 + 9;
  return has("--fail") ? 3 : 2;  // 2: Python's own for a script that is not there
}

WorkerVariables expected_environment(const Json& worker, const std::string& port, const WorkerVariables& found) {
  WorkerVariables expected = worker.at("env");
  expected.erase("TORCHELASTIC_ERROR_FILE");  // listed: a file that nothing of ours writes
  if (expected.contains("TORCHELASTIC_USE_AGENT_STORE")) expected["TORCHELASTIC_USE_AGENT_STORE"] = "False";  // listed
  if (!expected.contains("MASTER_PORT")) return expected;
  const bool any = expected["MASTER_PORT"] == "<free port>";
  expected["MASTER_PORT"] = any && found.contains("MASTER_PORT") ? found.at("MASTER_PORT") : port;
  return expected;
}

void compare_worker(const Json& worker, const TemporaryFolder& folder, const std::string& port, const WorkerVariables& launcher) {
  const std::string name = worker.at("attempt_rank");
  std::ifstream file(folder / ("dump/" + name + ".json"));
  ASSERT_TRUE(file) << "no worker wrote " << name;
  const Json found = Json::parse(file);
  EXPECT_EQ(found.at("argv"), worker.at("argv"));
  EXPECT_EQ(found.at("name"), worker.at("name"));
  WorkerVariables changed = found.at("env");
  std::erase_if(changed, [&](const auto& variable) {
    const auto before = launcher.find(variable.first);
    return before != launcher.end() && before->second == variable.second;
  });
  for (const char* ours : {"ACCELERATE_FAILURE_NOTES", "ACCELERATE_LAUNCH_ID"}) changed.erase(ours);  // listed
  EXPECT_EQ(changed, expected_environment(worker, port, changed)) << name;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::vector<std::string> log_files_in(const TemporaryFolder& folder) {
  std::vector<std::string> files;
  if (!std::filesystem::exists(folder / "logs")) return files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "logs")) {
    const std::string path = std::filesystem::relative(entry.path(), folder / "logs");
    if (entry.is_regular_file()) files.push_back(std::regex_replace(path, std::regex("^none_[^/]*"), "none_<random>"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

void compare_run(const Json& run, const std::string& script, const std::string& python) {
  const TemporaryFolder folder;
  std::ofstream(folder / "probe.py") << script;
  std::filesystem::create_directory(folder / "dump");
  const HeldPort held;
  const std::string& port = held.text();
  RunOptions options = {.environment = {{"DUMP", (folder / "dump").string()},
                                        {"PYTHONPATH", folder.name()},
                                        {"PYTHON_EXEC", python},
                                        {"LC_ALL", "C.UTF-8"}}};  // else Python chooses one and adds a variable
  for (const char* name : {"OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) options.environment[name];
  const WorkerVariables launcher = environment_of_launcher(options);
  const auto result = run_program(command_of(run, folder, port), options);
  EXPECT_EQ(result.exit_code, expected_exit_code(run)) << result.errors;
  EXPECT_EQ(Json(sorted_lines(result.output)), run.at("stdout")) << result.errors;
  EXPECT_EQ(Json(log_files_in(folder)), run.at("log_files"));
  for (const Json& worker : run.at("workers")) compare_worker(worker, folder, port, launcher);
  const auto dumped = std::filesystem::directory_iterator(folder / "dump");
  EXPECT_EQ(static_cast<size_t>(std::distance(begin(dumped), end(dumped))), run.at("workers").size());
}

TEST(LaunchWorkersGolden, WorkersGetFromUsWhatPythonGivesThem) {
  const char* folder = std::getenv("ACCELERATE_GOLDEN_DIR");
  std::ifstream file(std::string(folder != nullptr ? folder : ACCELERATE_TEST_GOLDEN) + "/launch_workers.json");
  const Json golden = Json::parse(file);
  const std::string python = python_interpreter();
  for (const Json& run : golden.at("runs")) {
    SCOPED_TRACE(run.at("flags").dump() + " " + run.at("target").dump() + " " + run.at("args").dump());
    compare_run(run, golden.at("script"), python);
  }
  std::cout << "launch_workers: " << golden.at("runs").size() << " runs compared\n";
}

}  // namespace
}  // namespace accelerate::testing
