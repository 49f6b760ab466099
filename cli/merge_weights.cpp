#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>

#include <accelerate/core/error.h>
#include <accelerate/core/merge_weights.h>
#include "subcommands.h"

namespace accelerate::cli {

int run_merge_command(std::vector<std::string> arguments) {
  CLI::App app("Makes one file of the weights in a folder: shards with an index, or what FSDP saved as SHARDED_STATE_DICT.",
               "accelerate merge-weights");
  std::string folder, out;
  bool unsafe = false;
  MergeOptions options;
  app.set_help_flag("-h,--help", "show this text");
  app.add_option("checkpoint_directory", folder, "the folder with the shards")->required()->type_name("FOLDER");
  app.add_option("output_path", out, "folder for model.safetensors (or pytorch_model.bin), or a name that ends so")
      ->required()
      ->type_name("OUT");
  app.add_flag("--unsafe_serialization,--unsafe-serialization", unsafe, "write a torch file instead of safetensors");
  app.add_flag("--remove_checkpoint_dir,--remove-checkpoint-dir", options.remove_checkpoint_dir, "remove the folder afterwards");
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(std::move(arguments));
    options.safe_serialization = !unsafe;
    const MergeResult result = merge_weights(folder, out, options);
    std::printf("%s: %llu tensors, %llu bytes\n", result.file.c_str(), static_cast<unsigned long long>(result.tensors),
                static_cast<unsigned long long>(result.bytes));
    for (const auto& name : result.left_out)
      std::printf("left out: %s, which is another tensor under a second name\n", name.c_str());
    return 0;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "accelerate merge-weights: %s\n", error.what());
    return kUsageExitCode;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "accelerate merge-weights: %s\n", error.what());
    return kUsageExitCode;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "accelerate merge-weights: %s\n", error.what());
    return 1;
  }
}

}  // namespace accelerate::cli
