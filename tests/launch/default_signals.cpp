#include <gtest/gtest.h>

#include <csignal>

namespace accelerate::testing {
namespace {

// Whoever runs the tests may ignore signals (nohup, a shell's background job), and a launch leaves ignored what it finds so.
class DefaultSignals : public ::testing::Environment {
 public:
  void SetUp() override {
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGUSR1, SIGUSR2}) ::signal(number, SIG_DFL);
  }
};

const auto* const kDefaultSignals = ::testing::AddGlobalTestEnvironment(new DefaultSignals);

}  // namespace
}  // namespace accelerate::testing
