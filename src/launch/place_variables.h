#pragma once

#include <array>

#include "launch/failure_notes.h"

namespace accelerate::detail {

/// What torchrun, and this launcher after it, tells a worker about its place. Found in the launcher's own environment, it belongs
/// to the launch that the launcher is a worker of.
inline constexpr std::array kPlaceVariables = {"RANK",
                                               "LOCAL_RANK",
                                               "GROUP_RANK",
                                               "ROLE_RANK",
                                               "ROLE_NAME",
                                               "WORLD_SIZE",
                                               "LOCAL_WORLD_SIZE",
                                               "GROUP_WORLD_SIZE",
                                               "ROLE_WORLD_SIZE",
                                               "MASTER_ADDR",
                                               "MASTER_PORT",
                                               "TORCHELASTIC_RESTART_COUNT",
                                               "TORCHELASTIC_MAX_RESTARTS",
                                               "TORCHELASTIC_RUN_ID",
                                               "TORCHELASTIC_USE_AGENT_STORE",
                                               "TORCHELASTIC_SIGNALS_TO_HANDLE",
                                               "TORCHELASTIC_ERROR_FILE",
                                               kFailureNotesVariable};

}  // namespace accelerate::detail
