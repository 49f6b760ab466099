#pragma once

#include <cstdint>
#include <string>

#include "distributed/hang_diagnosis.h"

namespace accelerate::detail {

/// How the other ranks know a rank's process. Plain bytes: it travels.
struct ProcessCard {
  /// A hash of the kernel, the process namespace and the launcher's name for the host: equal where processes can see each
  /// other and belong to one host of the launch.
  uint64_t machine = 0;
  int64_t pid = 0;
  /// When it started, by the kernel's count: a process id is given to another process some day.
  uint64_t started = 0;
  /// Of the logbook's memory, in that process.
  int64_t descriptor = -1;
  /// Of that memory.
  uint64_t layout = kLogbookLayout;

  static ProcessCard of_this_process(const std::string& machine, int descriptor);
};

/// What has become of the process, as far as this host's kernel knows. Gone: its parent has been told.
Presence presence_of(const ProcessCard& card);

}  // namespace accelerate::detail
