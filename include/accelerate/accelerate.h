#pragma once

// Accelerate for C++. The table of contents, lowest level first.

#include <accelerate/core/error.h>
#include <accelerate/core/format.h>
#include <accelerate/core/launch_environment.h>
#include <accelerate/core/logging.h>
#include <accelerate/core/progress.h>
#include <accelerate/core/version.h>

#include <accelerate/distributed/collectives.h>
#include <accelerate/distributed/process_state.h>
#include <accelerate/distributed/random.h>
#include <accelerate/distributed/value.h>

#include <accelerate/checkpoint/file.h>
#include <accelerate/checkpoint/module_state.h>
#include <accelerate/checkpoint/tensor_dict.h>

#include <accelerate/training/precision.h>

#include <accelerate/parallel/model.h>

#include <accelerate/accelerator/accelerator.h>
#include <accelerate/accelerator/notebook_launcher.h>
#include <accelerate/accelerator/options.h>
