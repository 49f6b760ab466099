#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>

#include <accelerate/core/error.h>
#include <accelerate/core/inspect.h>
#include "subcommands.h"

namespace accelerate::cli {
namespace {

/// Thrown when nobody reads any more: `accelerate inspect ... | head` is no failure.
struct NobodyReads {};

void write_to_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) throw NobodyReads();
}

}  // namespace

int run_inspect_command(std::vector<std::string> arguments) {
  CLI::App app("Tells what a file of weights or states, or a folder of them, holds: safetensors, torch files, checkpoints.",
               "accelerate inspect");
  std::string path;
  bool json = false;
  app.set_help_flag("-h,--help", "show this text");
  app.add_option("path", path, "a file, or a folder of files")->required()->type_name("FILE|FOLDER");
  app.add_flag("--json", json, "write JSON for programs instead of a table");
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(std::move(arguments));
    const bool sound = inspect(path, json ? InspectStyle::kJson : InspectStyle::kTable, write_to_stdout);
    if (std::fflush(stdout) != 0) throw NobodyReads();
    return sound ? 0 : 1;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "accelerate inspect: %s\n", error.what());
    return kUsageExitCode;
  } catch (const Error& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "accelerate inspect: %s\n", error.what());
    return 1;
  } catch (const NobodyReads&) {
    return 1;
  }
}

}  // namespace accelerate::cli
