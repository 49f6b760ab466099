#include <cstdio>

#include <accelerate/checkpoint_files/inspect.h>
#include <accelerate/core/error.h>
#include "described_command.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

/// Thrown when the reader has closed the pipe: `accelerate inspect ... | head` is not a failure.
struct NobodyReads {};

void write_to_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) throw NobodyReads();
}

int inspect_given(const Arguments& given) {
  const auto style = given.json ? InspectStyle::kJson : InspectStyle::kTable;
  try {
    const bool sound = inspect(given.operands[0], style, write_to_stdout);
    if (std::fflush(stdout) != 0) throw NobodyReads();
    return sound ? 0 : 1;
  } catch (const NobodyReads&) {
    return 1;
  } catch (const Error&) {
    std::fflush(stdout);  // before the error message
    throw;
  }
}

}  // namespace

int run_inspect_command(std::vector<std::string> arguments) { return run_described("inspect", arguments, inspect_given); }

}  // namespace accelerate::detail::cli
