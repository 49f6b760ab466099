#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace accelerate::testing {
namespace {

// Whoever runs the tests may ignore signals (nohup, a shell's background job), and a launch leaves ignored what it finds so.
class DefaultSurroundings : public ::testing::Environment {
 public:
  void SetUp() override {
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGUSR1, SIGUSR2}) ::signal(number, SIG_DFL);
    for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS", "PET_NNODES", "JOB_COMPLETION_INDEX"}) ::unsetenv(name);
    // Nor may the config file of whoever runs the tests count.
    ::setenv("HF_HOME", "/nonexistent", 1);
  }
};

const auto* const kDefaultSurroundings = ::testing::AddGlobalTestEnvironment(new DefaultSurroundings);

}  // namespace
}  // namespace accelerate::testing
