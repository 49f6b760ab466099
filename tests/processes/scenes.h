#pragma once

#include <accelerate/accelerate.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "scene.h"

/// What the files of scenes have in common.
namespace accelerate::testing {

/// Where ranks leave files for each other, outside of the group.
inline std::string folder;

inline void leave_file(const std::string& name) { std::ofstream(folder + "/" + name) << "here"; }

inline void wait_for_file(const std::string& name) {
  while (!std::filesystem::exists(folder + "/" + name)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// Calls, and prints the error that is expected.
template <class Call>
void tell(const Accelerator& accelerator, Call call) {
  try {
    call();
    say("process " + std::to_string(accelerator.process_index()) + " heard nothing");
  } catch (const DistributedError& error) {
    say("process " + std::to_string(accelerator.process_index()) + " heard: " + error.what());
  }
}

inline Accelerator patient(const DdpOptions& ddp = {}) { return Accelerator({.ddp = ddp, .timeout = std::chrono::seconds(40)}); }

/// Of sub-groups, and of tensors between two ranks.
std::map<std::string, void (*)()> group_scenes();
/// Of sharded models.
std::map<std::string, void (*)()> sharded_scenes();
/// Beside a Python peer.
std::map<std::string, void (*)()> sharding_scenes();

}  // namespace accelerate::testing
