#pragma once

#include "check.h"

/// The checks, by the part of the library that they test.
namespace accelerate::self_test {

// process_checks.cpp
void check_ranks(Accelerator& accelerator, Findings& findings);
void check_running_on_one_process(Accelerator& accelerator, Findings& findings);
void check_order_of_processes(Accelerator& accelerator, Findings& findings);
void check_triggers(Accelerator& accelerator, Findings& findings);
void check_splitting(Accelerator& accelerator, Findings& findings);

// collective_checks.cpp
void check_gather(Accelerator& accelerator, Findings& findings);
void check_reduce(Accelerator& accelerator, Findings& findings);
void check_broadcast(Accelerator& accelerator, Findings& findings);
void check_padding(Accelerator& accelerator, Findings& findings);
void check_objects(Accelerator& accelerator, Findings& findings);

// random_checks.cpp
void check_seeds(Accelerator& accelerator, Findings& findings);
void check_random_states(Accelerator& accelerator, Findings& findings);

// data_checks.cpp
void check_sharded_data(Accelerator& accelerator, Findings& findings);
void check_dispatched_data(Accelerator& accelerator, Findings& findings);
void check_iterable_data(Accelerator& accelerator, Findings& findings);
void check_uneven_data(Accelerator& accelerator, Findings& findings);
void check_shuffled_data(Accelerator& accelerator, Findings& findings);
void check_batch_samplers(Accelerator& accelerator, Findings& findings);
void check_skipped_batches(Accelerator& accelerator, Findings& findings);
void check_metrics(Accelerator& accelerator, Findings& findings);

// training_checks.cpp
void check_training(Accelerator& accelerator, Findings& findings);
void check_accumulation(Accelerator& accelerator, Findings& findings);
void check_schedules(Accelerator& accelerator, Findings& findings);
void check_precision(Accelerator& accelerator, Findings& findings);

// checkpoint_checks.cpp
void check_checkpoints(Accelerator& accelerator, Findings& findings);

}  // namespace accelerate::self_test
