#pragma once

#include <accelerate/distributed/process_state.h>

#include "distributed/communicator.h"

namespace accelerate::detail {

/// What the backends of a group depend on, beside who is in it.
struct BackendOptions {
  at::Device device = at::kCPU;
  /// Nothing: Python's defaults.
  std::optional<std::chrono::milliseconds> timeout = {};
  /// GLOO_SOCKET_IFNAME says which interface to use.
  bool interface_is_named = false;
  /// When a user is told whom the rendezvous waits for; 0: never.
  std::chrono::milliseconds notice_after{};
};

/// Joins the group that the launcher describes. DistributedError names the ranks that did not join.
GroupParts make_group(const LaunchEnvironment& me, const Environment& environment, const BackendOptions& options);

/// A group of the application's own.
GroupParts borrow_group(const ProcessGroupHandle& handle, const BackendOptions& options);
/// Who this process is in it: processes of one host are those with its host name.
LaunchEnvironment place_in(Communicator& peers);

/// A group of some ranks of another, and who this process is in it.
struct SubGroup {
  GroupParts parts;
  LaunchEnvironment me;
};

/// Connects the ranks of `parent` that pass the same `color`. All its ranks call it. UsageError when it has no store.
SubGroup split_group(const std::shared_ptr<Communicator>& parent, const LaunchEnvironment& me, int color,
                     const BackendOptions& options, std::source_location where);

}  // namespace accelerate::detail
