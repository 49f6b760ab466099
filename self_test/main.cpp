// The program behind `accelerate test`; any launcher may start it.
#include <accelerate/accelerator/accelerator.h>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "sections.h"

namespace accelerate::self_test {
namespace {

constexpr std::array kChecks = {
    Check{"ranks and devices", check_ranks},
    Check{"running code on one process", check_running_on_one_process},
    Check{"main_process_first", check_order_of_processes},
    Check{"triggers", check_triggers},
    Check{"splitting between processes", check_splitting},
    Check{"gather", check_gather},
    Check{"reduce", check_reduce},
    Check{"broadcast", check_broadcast},
    Check{"padding across processes", check_padding},
    Check{"collectives of objects", check_objects},
    Check{"seeds", check_seeds},
    Check{"random states", check_random_states},
    Check{"sharded data", check_sharded_data},
    Check{"dispatched data", check_dispatched_data},
    Check{"iterable data", check_iterable_data},
    Check{"uneven data", check_uneven_data},
    Check{"shuffled data", check_shuffled_data},
    Check{"batch samplers", check_batch_samplers},
    Check{"skipping batches", check_skipped_batches},
    Check{"metrics", check_metrics},
    Check{"precision", check_precision},
    Check{"training against a single process", check_training},
    Check{"gradient accumulation", check_accumulation},
    Check{"learning rate schedules", check_schedules},
    Check{"checkpoints", check_checkpoints},
};

int run() {
  Accelerator accelerator(patient());
  if (accelerator.is_main_process()) {
    std::printf("%s\n", to_string(accelerator).c_str());
    std::fflush(stdout);
  }
  try {
    return run_checks(kChecks, accelerator);
  } catch (const std::exception&) {
    // It was reported. Other ranks may be waiting inside the check, and destroying the process group would wait for them.
    std::fflush(nullptr);
    std::_Exit(1);
  }
}

}  // namespace

std::span<const Check> all_checks() { return kChecks; }

}  // namespace accelerate::self_test

int main() {
  try {
    return accelerate::self_test::run();
  } catch (const std::exception& error) {
    // No check has begun: the rendezvous failed.
    std::fprintf(stderr, "accelerate test: %s\n", error.what());
    return 1;
  }
}
