#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include <accelerate/launch/launch_plan.h>
#include "launch/worker_process.h"

namespace accelerate::detail {

/// Starts the command at `path` that connects to a launcher on another host (ssh), and beside it, as its parent, a process that
/// turns signals into lines on its stdin. No signal reaches the command itself, or the connection would break before the other
/// launcher has ended its ranks. The parent exits as the command does; when it is killed, the command is killed too.
/// `release` closes the launcher's descriptors there. Throws WorkerError when fork fails.
pid_t start_host_connection(const WorkerPlan& plan, const std::string& path, const std::vector<std::string>& removed,
                            const WorkerStart& start, const std::function<void()>& release);

}  // namespace accelerate::detail
