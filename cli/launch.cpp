#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/core/error.h>
#include <accelerate/launch/supervisor.h>
#include "core/closest_name.h"
#include "subcommands.h"

namespace accelerate::cli {
namespace {

// Every flag is known in both spellings; help shows the one of Python's documentation.
class OneSpelling : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return option->get_name(is_positional, false);
  }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "usage: accelerate launch [flags] program [arguments of the program]\n";
  }
};

std::string both_spellings(const std::string& flag) {
  std::string hyphenated = flag;
  std::replace(hyphenated.begin(), hyphenated.end(), '_', '-');
  return hyphenated == flag ? "--" + flag : "--" + flag + ",--" + hyphenated;
}

int parse_number(const std::string& flag, const std::string& text) {
  int number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size()) {
    throw UsageError("--" + flag + " is '" + text + "'; give a whole number.");
  }
  return number;
}

CLI::Option* add_text(CLI::App& app, const std::string& flag, std::function<void(const std::string&)> use, const char* help) {
  return app.add_option_function<std::string>(both_spellings(flag), std::move(use), help)->take_last();
}

double parse_seconds(const std::string& flag, const std::string& text) {
  double seconds = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (problem != std::errc() || end != text.data() + text.size()) {
    throw UsageError("--" + flag + " is '" + text + "'; give a number of seconds.");
  }
  return seconds;
}

template <typename Number>
CLI::Option* add_number(CLI::App& app, const std::string& flag, Number& value, const char* help) {
  auto use = [flag, &value](const std::string& text) { value = parse_number(flag, text); };
  return add_text(app, flag, std::move(use), help)->type_name("NUMBER");
}

void describe_output(CLI::App& app, LaunchOptions& options) {
  const std::string output = "What becomes of the output";
  const auto into = [](std::string& value) { return [&value](const std::string& text) { value = text; }; };
  app.add_option_function<std::string>(
         "-t,--tee", into(options.tee),
         "streams that go to files too: 0 none, 1 stdout, 2 stderr, 3 both; per local rank: 0:3,1:0")
      ->take_last()
      ->type_name("STREAMS")
      ->group(output);
  add_text(app, "log_dir", into(options.log_dir),
           "folder for these files; alone: both streams of every rank (default: a new one)")
      ->type_name("FOLDER")
      ->group(output);
  add_text(app, "role", into(options.role), "ROLE_NAME of the processes, shown before teed lines (default: default)")
      ->type_name("NAME")
      ->group(output);
}

void describe_places(CLI::App& app, LaunchOptions& options) {
  const std::string hardware = "What to run on";
  app.add_flag(both_spellings("cpu"), options.cpu, "run on the CPU even where there are GPUs")->group(hardware);
  add_number(app, "num_processes", options.num_processes,
             "processes to start, on all machines together (default: one for each GPU, or one on the CPU)")
      ->group(hardware);
  add_number(app, "num_machines", options.num_machines, "machines that take part; launch on each of them (default: 1)")
      ->group(hardware);
  add_number(app, "machine_rank", options.machine_rank, "which of the machines this one is, from 0")->group(hardware);
  const std::string meeting = "How the processes meet";
  add_text(
      app, "main_process_ip", [&options](const std::string& text) { options.main_process_ip = text; },
      "address of machine 0; several machines need it")
      ->type_name("ADDRESS")
      ->group(meeting);
  add_number(app, "main_process_port", options.main_process_port,
             "port on which rank 0 meets the others; 0: any free one (default: 29500 if free)")
      ->group(meeting);
}

void describe_failures(CLI::App& app, LaunchOptions& options) {
  const std::string failures = "When something fails";
  add_number(app, "max_restarts", options.max_restarts, "how often all ranks are started again after one failed (default: 0)")
      ->group(failures);
  add_text(
      app, "grace_period", [&options](const std::string& text) { options.grace_period = parse_seconds("grace_period", text); },
      "how long ranks may take to stop before they are killed (default: 30)")
      ->type_name("SECONDS")
      ->group(failures);
  app.add_flag(both_spellings("debug"), options.debug, "let the processes check that their exchanges fit together")
      ->group(failures);
}

void describe(CLI::App& app, LaunchOptions& options) {
  app.formatter(std::make_shared<OneSpelling>());
  app.set_help_flag("-h,--help", "show this text");
  app.prefix_command();  // from the program's name on, nothing is ours
  describe_places(app, options);
  const std::string resources = "How each process computes";
  auto use = [&options](const std::string& text) { options.mixed_precision = text; };
  add_text(app, "mixed_precision", use, "no, fp16, bf16 or fp8 (default: no)")->type_name("PRECISION")->group(resources);
  add_number(app, "num_cpu_threads_per_process", options.num_cpu_threads_per_process,
             "OMP_NUM_THREADS of each process (default: that variable, else a share of the cores)")
      ->group(resources);
  describe_failures(app, options);
  describe_output(app, options);
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

// What CLI11 left over begins with the program, with "--" before it, or with a flag that nobody knows.
std::vector<std::string> command_from(const CLI::App& app) {
  std::vector<std::string> leftover = app.remaining();
  if (leftover.empty() || !leftover.front().starts_with('-')) return leftover;
  if (leftover.front() == "--") return {leftover.begin() + 1, leftover.end()};
  const std::string flag = leftover.front().substr(0, leftover.front().find('='));
  throw UsageError("There is no flag " + flag + ". The closest is " + closest_name(flag, flags_of(app)) +
                   "; `accelerate launch --help` lists them all. Flags of the program come after its name.");
}

int refuse(const std::string& problem) {
  std::fprintf(stderr, "accelerate launch: %s\n", problem.c_str());
  return kUsageExitCode;
}

LaunchPlan plan_from(CLI::App& app, std::vector<std::string> arguments, PortReservation& port) {
  LaunchOptions options;
  describe(app, options);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  app.parse(std::move(arguments));
  options.command = command_from(app);
  if (options.command.empty()) throw UsageError("No program was given. Name it after the flags, then its arguments.");
  return plan_launch(options, process_environment, read_machine_facts(port));
}

}  // namespace

int run_launch_command(std::vector<std::string> arguments) {
  CLI::App app("Starts a program on one or more processes, and tells each of them its place.");
  PortReservation port;  // until the launch has ended
  LaunchPlan plan;
  try {
    plan = plan_from(app, std::move(arguments), port);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    return refuse(error.what());
  } catch (const Error& error) {
    return refuse(error.what());
  }
  return run_launch(plan);
}

}  // namespace accelerate::cli
