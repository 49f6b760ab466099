#include <gtest/gtest.h>

#include <fstream>

#include "support/run_program.h"
#include "support/temporary_folder.h"

// Workers that use the real Python Accelerate, started by our launcher.
namespace accelerate::testing {
namespace {

// It ends without Python's own clean-up, in which torch's threads now and then abort.
constexpr const char* kGather = R"(
import os, sys
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
gathered = accelerator.gather(torch.tensor([accelerator.process_index + 1]))
print(accelerator.process_index, accelerator.num_processes, accelerator.mixed_precision, gathered.tolist(), sys.argv[1:])
accelerator.end_training()
sys.stdout.flush()
os._exit(0)
)";

TEST(PythonWorkers, AScriptWithPythonAccelerateGathersOnTwoProcessesOfOurLauncher) {
  const TemporaryFolder folder;
  std::ofstream(folder / "gather.py") << kGather;
  const auto result =
      run_program({ACCELERATE_CLI, "launch", "--cpu", "--num_processes", "2", "--main_process_port", "0", "--mixed_precision",
                   "bf16", "--num_cpu_threads_per_process", "1", folder / "gather.py", "--lr", "0.1"},
                  {.environment = {{"PYTHON_EXEC", ACCELERATE_PYTHON}}, .limit = std::chrono::seconds(300)});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  for (const char* rank : {"0", "1"}) {
    const std::string line = rank + std::string(" 2 bf16 [1, 2] ['--lr', '0.1']\n");
    EXPECT_EQ(RunningProgram::occurrences(result.output, line), 1) << result.output << result.errors;
  }
}

TEST(PythonWorkers, AModuleFindsTheSettingsOfItsConfigFile) {
  const TemporaryFolder folder;
  std::ofstream(folder / "settings.py") << R"(
import os
from accelerate.utils import TorchDynamoPlugin
plugin = TorchDynamoPlugin()
print(plugin.backend.value, plugin.mode, plugin.fullgraph, os.environ["ACCELERATE_USE_FSDP"], os.environ["FSDP_VERSION"], flush=True)
os._exit(0)
)";
  std::ofstream(folder / "config.yaml") << "distributed_type: FSDP\nnum_processes: 1\nfsdp_config:\n  fsdp_version: 2\n"
                                           "dynamo_config:\n  dynamo_backend: INDUCTOR\n  dynamo_use_fullgraph: true\n";
  const auto result = run_program(
      {ACCELERATE_CLI, "launch", "--config_file", folder / "config.yaml", "-m", "settings"},
      {.environment = {{"PYTHON_EXEC", ACCELERATE_PYTHON}, {"PYTHONPATH", folder.name()}}, .limit = std::chrono::seconds(300)});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(result.output, "INDUCTOR default True true 2\n") << result.errors;
}

}  // namespace
}  // namespace accelerate::testing
