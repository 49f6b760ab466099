#pragma once

#include <accelerate/accelerate.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

/// Tests that all processes of a launch run in step, on whatever number of them there is. They use EXPECT, not ASSERT: a
/// process that leaves a test early would leave its peers waiting.
class Together : public ::testing::Test {
 protected:
  static accelerate::Accelerator& accelerator();
  static const accelerate::ProcessState& state() { return accelerator().state(); }
  static int rank() { return accelerator().process_index(); }
  static int world() { return accelerator().num_processes(); }
};

using accelerate::testing::TemporaryFolder;

/// A folder that all processes know, removed when all are done with it.
class CommonFolder {
 public:
  explicit CommonFolder(const accelerate::Accelerator& accelerator) : accelerator_(accelerator) {
    std::vector<std::string> name = {""};
    if (accelerator.is_main_process()) {
      own_ = std::make_unique<TemporaryFolder>();
      name[0] = own_->path().string();
    }
    accelerator.broadcast_object_list(name);
    path_ = name[0];
  }
  ~CommonFolder() {
    try {
      accelerator_.wait_for_everyone();
    } catch (const std::exception&) {  // the test has failed before
    }
  }
  CommonFolder(const CommonFolder&) = delete;
  CommonFolder& operator=(const CommonFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  const accelerate::Accelerator& accelerator_;
  std::unique_ptr<TemporaryFolder> own_;
  std::filesystem::path path_;
};
