#include "support/together.h"

#include <ATen/CPUGeneratorImpl.h>

#include <iostream>

namespace {

std::unique_ptr<accelerate::Accelerator> shared_accelerator;

/// The group must end before the libraries under it do.
class EndsTheGroup : public ::testing::Environment {
 public:
  void TearDown() override { shared_accelerator.reset(); }
};

/// Every test draws the same numbers whatever ran before it, threads too; a repetition draws others.
class SeedsEachTest : public ::testing::EmptyTestEventListener {
 public:
  void OnTestIterationStart(const ::testing::UnitTest&, int iteration) override { seed_ = static_cast<uint64_t>(iteration) + 1; }
  void OnTestStart(const ::testing::TestInfo&) override {
    at::Generator(at::detail::getDefaultCPUGenerator()).set_current_seed(seed_);
  }

 private:
  uint64_t seed_ = 1;
};

/// On the other processes only what went wrong is of interest, with the process it went wrong on.
class FailuresOnly : public ::testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}
  // Asked for when a part fails, GoogleTest would wait for a lock that it holds itself.
  void OnTestStart(const ::testing::TestInfo& test) override { test_ = std::string(test.test_suite_name()) + "." + test.name(); }
  void OnTestEnd(const ::testing::TestInfo&) override { test_ = "outside a test"; }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cout << "[process " << rank_ << "] " << test_ << "\n"
              << (result.file_name() ? result.file_name() : "?") << ":" << result.line_number() << ": " << result.message()
              << std::endl;
  }

 private:
  int rank_;
  std::string test_ = "outside a test";
};

}  // namespace

accelerate::Accelerator& Together::accelerator() {
  // Long enough for a loaded machine, short enough to end a test in which processes fell out of step.
  if (!shared_accelerator)
    shared_accelerator =
        std::make_unique<accelerate::Accelerator>(accelerate::AcceleratorOptions{.timeout = std::chrono::seconds(60)});
  return *shared_accelerator;
}

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::AddGlobalTestEnvironment(new EndsTheGroup);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new SeedsEachTest);
  const int rank = accelerate::read_launch_environment().process_index;
  if (rank > 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly(rank));
  }
  return RUN_ALL_TESTS();
}
