#pragma once

// Accelerate for C++. The table of contents, lowest level first.

#include <accelerate/console/logging.h>
#include <accelerate/console/progress.h>
#include <accelerate/core/byte_size.h>
#include <accelerate/core/error.h>
#include <accelerate/core/format.h>
#include <accelerate/core/launch_environment.h>
#include <accelerate/core/ordered_map.h>
#include <accelerate/core/version.h>

#include <accelerate/distributed/collectives.h>
#include <accelerate/distributed/format_tensor.h>
#include <accelerate/distributed/point_to_point.h>
#include <accelerate/distributed/process_state.h>
#include <accelerate/distributed/random.h>
#include <accelerate/distributed/value.h>

#include <accelerate/checkpoint/module_state.h>
#include <accelerate/checkpoint/offload_folder.h>
#include <accelerate/checkpoint/optimizer_state.h>
#include <accelerate/checkpoint/save_file.h>
#include <accelerate/checkpoint/stateful.h>
#include <accelerate/checkpoint/tensor_dict.h>
#include <accelerate/checkpoint/weights.h>

#include <accelerate/residency/init_empty_weights.h>
#include <accelerate/residency/materialized.h>

#include <accelerate/activations/activation_checkpoint.h>
#include <accelerate/activations/save_on_cpu.h>

#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/accelerated_scheduler.h>
#include <accelerate/training/autocast.h>
#include <accelerate/training/clip.h>
#include <accelerate/training/composed_schedulers.h>
#include <accelerate/training/find_executable_batch_size.h>
#include <accelerate/training/grad_scaler.h>
#include <accelerate/training/gradient_state.h>
#include <accelerate/training/lr_scheduler.h>
#include <accelerate/training/one_cycle_lr.h>
#include <accelerate/training/precision.h>
#include <accelerate/training/torch_schedulers.h>
#include <accelerate/training/warmup_schedulers.h>

#include <accelerate/data/active_loaders.h>
#include <accelerate/data/batch_sampler.h>
#include <accelerate/data/data_loader.h>
#include <accelerate/data/gather_for_metrics.h>
#include <accelerate/data/prepared_loader.h>
#include <accelerate/data/random_sampler.h>
#include <accelerate/data/sampler.h>
#include <accelerate/data/sharding.h>
#include <accelerate/data/tensor_dataset.h>
#include <accelerate/data/torch_dataset.h>

#include <accelerate/sharding/fsdp_options.h>

#include <accelerate/parallel/ddp_options.h>
#include <accelerate/parallel/join_scope.h>
#include <accelerate/parallel/model.h>
#include <accelerate/parallel/sync_batch_norm.h>

#include <accelerate/big_model/cpu_offload_hook.h>
#include <accelerate/big_model/device_map.h>
#include <accelerate/big_model/dispatch.h>
#include <accelerate/big_model/infer_auto_device_map.h>
#include <accelerate/big_model/load_checkpoint.h>
#include <accelerate/big_model/max_memory.h>
#include <accelerate/big_model/module_sizes.h>
#include <accelerate/big_model/place.h>
#include <accelerate/big_model/tied_parameters.h>

#include <accelerate/accelerator/accelerator.h>
#include <accelerate/accelerator/local_sgd.h>
#include <accelerate/accelerator/notebook_launcher.h>
#include <accelerate/accelerator/options.h>
