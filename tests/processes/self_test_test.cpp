// `accelerate test` with its real program.
#include <gtest/gtest.h>

#include <fstream>

#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {
namespace {

constexpr const char* kReady = "Test is a success! You are ready for your distributed training!\n";

ProgramResult test_command(int processes, const std::string& precision = "no") {
  const TemporaryFolder folder;
  const std::string config = folder / "config.yaml";
  std::ofstream(config) << "compute_environment: LOCAL_MACHINE\ndistributed_type: " << (processes > 1 ? "MULTI_CPU" : "'NO'")
                        << "\nmixed_precision: '" << precision << "'\nnum_machines: 1\nnum_processes: " << processes
                        << "\nuse_cpu: true\nmain_process_port: 0\n";
  return run_program({ACCELERATE_CLI, "test", "--config_file", config}, {.limit = std::chrono::seconds(300)});
}

TEST(SelfTest, SucceedsOnOneTwoAndThreeProcesses) {
  for (const int processes : {1, 2, 3}) {
    const auto result = test_command(processes);
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    EXPECT_NE(result.output.find("Num processes: " + std::to_string(processes) + "\n"), std::string::npos) << result.output;
    for (const char* name :
         {"gather", "sharded data", "training against a single process", "learning rate schedules", "checkpoints"}) {
      EXPECT_NE(result.output.find(std::string("checking ") + name + " ... ok\n"), std::string::npos) << name;
    }
    EXPECT_TRUE(result.output.ends_with(kReady)) << result.output;
  }
}

TEST(SelfTest, SucceedsInTheConfiguredPrecision) {
  const auto result = test_command(2, "bf16");
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_NE(result.output.find("Mixed precision type: bf16"), std::string::npos) << result.output;
}

TEST(SelfTest, AConfigurationThatCannotWorkFailsWithTheReason) {
  const auto result = test_command(2, "fp8");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.errors.find("fp8"), std::string::npos) << result.errors;
  EXPECT_EQ(result.output.find("success"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace accelerate::testing
