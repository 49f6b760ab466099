#include <cstdio>

#include <accelerate/checkpoint_files/merge_weights.h>
#include <accelerate/core/error.h>
#include "core/escaped.h"
#include "described_command.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

int merge_given(const Arguments& given) {
  const MergeOptions options{.safe_serialization = !given.unsafe_serialization,
                             .remove_checkpoint_dir = given.remove_checkpoint_dir};
  try {
    const MergeResult result = merge_weights(given.operands[0], given.operands[1], options);
    std::printf("%s: %llu tensors, %llu bytes\n", escaped(result.file.string()).c_str(),
                static_cast<unsigned long long>(result.tensors), static_cast<unsigned long long>(result.bytes));
    for (const auto& name : result.left_out) {
      std::printf("left out: %s, an alias of another tensor\n", escaped(name).c_str());
    }
    return 0;
  } catch (const UsageError& error) {
    tell_problem("accelerate merge-weights", error.what());
    return kUsageExitCode;
  }
}

}  // namespace

int run_merge_command(std::vector<std::string> arguments) { return run_described("merge-weights", arguments, merge_given); }

}  // namespace accelerate::detail::cli
