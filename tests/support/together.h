#pragma once

#include <accelerate/accelerate.h>
#include <gtest/gtest.h>

#include <filesystem>

/// Tests that all processes of a launch run in step, on whatever number of them there is. They use EXPECT, not ASSERT: a
/// process that leaves a test early would leave its peers waiting.
class Together : public ::testing::Test {
 protected:
  static accelerate::Accelerator& accelerator();
  static const accelerate::ProcessState& state() { return accelerator().state(); }
  static int rank() { return accelerator().process_index(); }
  static int world() { return accelerator().num_processes(); }
};

/// A folder of this test's own, removed with it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};
