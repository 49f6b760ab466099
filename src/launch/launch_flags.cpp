#include "launch/launch_flags.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <sstream>

namespace accelerate {
namespace {

using G = FlagGroup;
using K = FlagKind;

constexpr const char* kNoFallback = nullptr;
constexpr const char* kAlways = nullptr;
constexpr const char* kNoSection = nullptr;

// General sections come with every help; the others when a flag on the line calls for them.
constexpr std::array kLaunchFlagGroups = {
    FlagGroupInfo{G::general, "In general"},
    FlagGroupInfo{G::hardware, "What to run on"},
    FlagGroupInfo{G::resources, "How much of it, and how each process computes"},
    FlagGroupInfo{G::distributed, "How the processes meet", "multi_gpu"},
    FlagGroupInfo{G::output, "What becomes of the output", "multi_gpu"},
    FlagGroupInfo{G::failures, "When something fails", "multi_gpu"},
    FlagGroupInfo{G::mpi, "MPI", "mpirun_hostfile", "mpirun_config"},
    FlagGroupInfo{G::torchrun, "Names that torchrun and mpirun have for these", kAlways, kNoSection, true},
    FlagGroupInfo{G::paradigm, "How the training is shared out (Python programs)", kAlways, kNoSection, true},
    FlagGroupInfo{G::compiler, "The compiler of Python programs", "dynamo_backend", "dynamo_config", true},
    FlagGroupInfo{G::tpu, "TPU (Python programs)", "tpu", kNoSection, true},
    FlagGroupInfo{G::deepspeed, "DeepSpeed (Python programs)", "use_deepspeed", "deepspeed_config", true},
    FlagGroupInfo{G::fsdp, "FSDP (Python programs)", "use_fsdp", "fsdp_config", true},
    FlagGroupInfo{G::megatron, "Megatron-LM (Python programs)", "use_megatron_lm", "megatron_lm_config", true},
    FlagGroupInfo{G::fp8, "FP8 (Python programs)", "fp8_backend", "fp8_config", true},
    FlagGroupInfo{G::parallelism, "Parallelism in several dimensions (Python programs)", "use_parallelism_config",
                  "parallelism_config", true},
    FlagGroupInfo{G::without_effect, "Accepted as Python's, without effect", kAlways, kNoSection, true},
};

constexpr std::array kLaunchFlags = {
    LaunchFlag{"config_file", G::general, K::file,
               "config file to take what is not given here from (default: the one of `accelerate config`, if any)"},
    LaunchFlag{.name = "quiet",
               .group = G::general,
               .kind = K::on,
               .help = "say nothing of our own; the exit code tells",
               .letter = 'q'},
    LaunchFlag{.name = "module",
               .group = G::general,
               .kind = K::on,
               .help = "the program is a Python module: python3 -m",
               .letter = 'm'},
    LaunchFlag{"no_python", G::general, K::on, "start the program as it is, also when its name ends in .py"},
    LaunchFlag{.name = "debug",
               .group = G::general,
               .kind = K::on,
               .help = "let the processes check that their collectives match",
               .top_key = true},
    LaunchFlag{"dry_run", G::general, K::on, "print what would be started, with which environment, and start nothing"},

    LaunchFlag{"cpu", G::hardware, K::on, "run on the CPU even where there are GPUs", "false"},
    LaunchFlag{"multi_gpu", G::hardware, K::on, "run on several GPUs, one process for each", "false"},

    LaunchFlag{.name = "mixed_precision",
               .group = G::resources,
               .kind = K::text,
               .help = "precision of the computations (default: no)",
               .choices = "no fp16 bf16 fp8",
               .top_key = true},
    LaunchFlag{.name = "num_processes",
               .group = G::resources,
               .kind = K::integer,
               .help = "processes to start, on all machines together (default: one for each GPU, or one on the CPU)",
               .top_key = true},
    LaunchFlag{.name = "num_machines",
               .group = G::resources,
               .kind = K::integer,
               .help = "machines that take part; launch on each of them (default: 1)",
               .top_key = true},
    LaunchFlag{"num_cpu_threads_per_process", G::resources, K::integer,
               "OMP_NUM_THREADS of each process (default: that variable, else a share of the cores)"},
    LaunchFlag{.name = "enable_cpu_affinity",
               .group = G::resources,
               .kind = K::on,
               .help = "keep each process on the CPUs next to its GPU, or on its share of them",
               .fallback = "false",
               .top_key = true},
    LaunchFlag{"dynamo_backend", G::compiler, K::text, "compiler for Python programs (default: no)", kNoFallback,
               "no eager aot_eager inductor aot_ts_nvfuser nvprims_nvfuser cudagraphs ofi fx2trt onnxrt tensorrt "
               "aot_torchxla_trace_once torchxla_trace_once tvm hpu_backend neuron"},
    LaunchFlag{"dynamo_mode", G::compiler, K::text, "what that compiler optimizes for", "default",
               "default reduce-overhead max-autotune"},
    LaunchFlag{"dynamo_use_fullgraph", G::compiler, K::on, "it must take the model in one piece", "false"},
    LaunchFlag{"dynamo_use_dynamic", G::compiler, K::on, "it expects shapes that change", "false"},
    LaunchFlag{"dynamo_use_regional_compilation", G::compiler, K::on, "it compiles repeated blocks once", "false"},

    LaunchFlag{"use_deepspeed", G::paradigm, K::on, "train with DeepSpeed (Python programs)", "false"},
    LaunchFlag{"use_fsdp", G::paradigm, K::on, "shard the weights among the processes", "false"},
    LaunchFlag{"use_parallelism_config", G::paradigm, K::on,
               "share the work out in several dimensions; needs --use_fsdp and --fsdp_version 2", "false"},
    LaunchFlag{"use_megatron_lm", G::paradigm, K::on, "train with Megatron-LM (Python programs)", "false"},

    LaunchFlag{.name = "gpu_ids",
               .group = G::distributed,
               .kind = K::text,
               .help = "GPUs to use, separated by commas (CUDA_VISIBLE_DEVICES), or all (default: all)",
               .top_key = true},
    LaunchFlag{.name = "machine_rank",
               .group = G::distributed,
               .kind = K::integer,
               .help = "which of the machines this one is, from 0",
               .top_key = true},
    LaunchFlag{.name = "main_process_ip",
               .group = G::distributed,
               .kind = K::text,
               .help = "address of machine 0; several machines need it",
               .top_key = true},
    LaunchFlag{.name = "main_process_port",
               .group = G::distributed,
               .kind = K::integer,
               .help = "port on which rank 0 meets the others; 0: any free one (default: 29500 if free)",
               .top_key = true},
    LaunchFlag{.name = "same_network",
               .group = G::without_effect,
               .kind = K::on,
               .help = "here the machines always meet at --main_process_ip",
               .fallback = "false",
               .top_key = true},
    LaunchFlag{.name = "rdzv_backend",
               .group = G::without_effect,
               .kind = K::text,
               .help = "here the machines always meet at --main_process_ip",
               .fallback = "static",
               .choices = "static c10d etcd etcd-v2",
               .top_key = true},
    LaunchFlag{"rdzv_conf", G::without_effect, K::text, "settings of a rendezvous that is not used here: key=value,...", ""},
    LaunchFlag{"standalone", G::without_effect, K::on, "torchrun's; without --num_machines a launch stands alone", "false"},

    LaunchFlag{.name = "tee",
               .group = G::output,
               .kind = K::text,
               .help = "streams that go to files too: 0 none, 1 stdout, 2 stderr, 3 both; per local rank: 0:3,1:0",
               .fallback = "0",
               .letter = 't'},
    LaunchFlag{"log_dir", G::output, K::folder, "folder for these files; alone: both streams of every rank (default: a new one)"},
    LaunchFlag{"role", G::output, K::text, "ROLE_NAME of the processes, shown before teed lines", "default"},

    LaunchFlag{"max_restarts", G::failures, K::integer, "how often all ranks are started again after one failed", "0"},
    LaunchFlag{"grace_period", G::failures, K::number, "seconds that ranks may take to stop before they are killed", "30"},
    LaunchFlag{"monitor_interval", G::without_effect, K::number, "here the end of a process is noticed at once", "0.1"},

    LaunchFlag{"tpu", G::tpu, K::on, "run on a TPU", "false"},
    LaunchFlag{.name = "tpu_cluster",
               .group = G::tpu,
               .kind = K::on,
               .help = "use a pod of TPUs",
               .fallback = "false",
               .top_key = true,
               .value_name = "tpu_use_cluster"},
    LaunchFlag{.name = "no_tpu_cluster",
               .group = G::tpu,
               .kind = K::off,
               .help = "use this machine's TPU",
               .fallback = "false",
               .top_key = true,
               .value_name = "tpu_use_cluster"},
    LaunchFlag{"tpu_use_sudo", G::tpu, K::on, "use sudo on the machines of a pod", "false"},
    LaunchFlag{"vm", G::tpu, K::texts, "a machine of the pod; may be given again"},
    LaunchFlag{"env", G::tpu, K::texts, "a variable for the machines of the pod; may be given again"},
    LaunchFlag{.name = "main_training_function",
               .group = G::tpu,
               .kind = K::text,
               .help = "function of a Python script to run on a TPU (default: main)",
               .top_key = true},
    LaunchFlag{"downcast_bf16", G::tpu, K::on, "with bf16 on a TPU: double is computed in 32 bits, float in 16", "false"},

    LaunchFlag{"deepspeed_config_file", G::deepspeed, K::file, "DeepSpeed's own JSON config"},
    LaunchFlag{"zero_stage", G::deepspeed, K::integer, "stage of ZeRO, 0 to 3"},
    LaunchFlag{"offload_optimizer_device", G::deepspeed, K::text, "where optimizer states live: none, cpu or nvme"},
    LaunchFlag{"offload_param_device", G::deepspeed, K::text, "where parameters live: none, cpu or nvme"},
    LaunchFlag{"offload_optimizer_nvme_path", G::deepspeed, K::folder, "folder on NVMe for optimizer states"},
    LaunchFlag{"offload_param_nvme_path", G::deepspeed, K::folder, "folder on NVMe for parameters"},
    LaunchFlag{"gradient_accumulation_steps", G::deepspeed, K::integer, "batches before each optimizer step"},
    LaunchFlag{"gradient_clipping", G::deepspeed, K::number, "largest norm of the gradients"},
    LaunchFlag{"zero3_init_flag", G::deepspeed, K::truth, "make large models already shared out"},
    LaunchFlag{"zero3_save_16bit_model", G::deepspeed, K::truth, "gather 16-bit weights when saving in stage 3"},
    LaunchFlag{"deepspeed_hostfile", G::deepspeed, K::file, "the machines that take part"},
    LaunchFlag{"deepspeed_exclusion_filter", G::deepspeed, K::text, "machines or GPUs to leave out"},
    LaunchFlag{"deepspeed_inclusion_filter", G::deepspeed, K::text, "machines or GPUs to use"},
    LaunchFlag{"deepspeed_multinode_launcher", G::deepspeed, K::text, "how DeepSpeed starts other machines (default: pdsh)",
               kNoFallback, "pdsh standard openmpi mvapich mpich slurm nossh"},
    LaunchFlag{"deepspeed_moe_layer_cls_names", G::deepspeed, K::text, "classes of mixture-of-experts layers, by commas"},

    LaunchFlag{"fsdp_version", G::fsdp, K::text, "FSDP of the first or the second kind", "1", "1 2"},
    LaunchFlag{"fsdp_offload_params", G::fsdp, K::truth, "keep parameters and gradients in CPU memory", "false"},
    LaunchFlag{"fsdp_min_num_params", G::fsdp, K::integer, "size from which a module is wrapped, by SIZE_BASED_WRAP",
               "100000000"},
    LaunchFlag{"fsdp_sharding_strategy", G::fsdp, K::text, "what is shared out, in the first kind", "FULL_SHARD"},
    LaunchFlag{"fsdp_reshard_after_forward", G::fsdp, K::text, "give gathered weights up after the forward pass", "true"},
    LaunchFlag{"fsdp_auto_wrap_policy", G::fsdp, K::text,
               "which modules are wrapped: TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP"},
    LaunchFlag{"fsdp_transformer_layer_cls_to_wrap", G::fsdp, K::text, "classes to wrap, by commas; names count exactly"},
    LaunchFlag{"fsdp_backward_prefetch", G::fsdp, K::text, "BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH"},
    LaunchFlag{"fsdp_state_dict_type", G::fsdp, K::text, "FULL_STATE_DICT, LOCAL_STATE_DICT or SHARDED_STATE_DICT"},
    LaunchFlag{"fsdp_forward_prefetch", G::fsdp, K::truth, "gather the next weights during the forward pass", "false"},
    LaunchFlag{"fsdp_use_orig_params", G::fsdp, K::truth, "allow frozen and trained parameters in one unit", "true"},
    LaunchFlag{"fsdp_cpu_ram_efficient_loading", G::fsdp, K::truth, "only rank 0 reads the weights", "true"},
    LaunchFlag{"fsdp_sync_module_states", G::fsdp, K::truth, "every process begins with rank 0's weights", "true"},
    LaunchFlag{"fsdp_activation_checkpointing", G::fsdp, K::truth, "compute activations again instead of keeping them", "false"},
    LaunchFlag{"fsdp_activation_checkpointing_offload", G::fsdp, K::truth, "keep those that are kept in CPU memory", "false"},

    LaunchFlag{"megatron_lm_tp_degree", G::megatron, K::integer, "degree of tensor parallelism", "1"},
    LaunchFlag{"megatron_lm_use_custom_fsdp", G::megatron, K::boolean, "use its own FSDP", "false"},
    LaunchFlag{"megatron_lm_no_load_optim", G::megatron, K::boolean, "do not load optimizer states", "false"},
    LaunchFlag{"megatron_lm_eod_mask_loss", G::megatron, K::boolean, "no loss at ends of documents", "false"},
    LaunchFlag{"megatron_lm_overlap_cpu_optimizer_d2h_h2d", G::megatron, K::boolean, "copy to and from the CPU at once", "false"},
    LaunchFlag{"megatron_lm_no_save_optim", G::megatron, K::boolean, "do not save optimizer states", "false"},
    LaunchFlag{"megatron_lm_optimizer_cpu_offload", G::megatron, K::boolean, "optimizer states live in CPU memory", "false"},
    LaunchFlag{"megatron_lm_use_precision_aware_optimizer", G::megatron, K::boolean, "optimizer states of lower precision",
               "false"},
    LaunchFlag{"megatron_lm_decoder_last_pipeline_num_layers", G::megatron, K::integer, "layers of the last pipeline stage"},
    LaunchFlag{"megatron_lm_pp_degree", G::megatron, K::integer, "degree of pipeline parallelism", "1"},
    LaunchFlag{"megatron_lm_num_micro_batches", G::megatron, K::integer, "micro batches of the pipeline"},
    LaunchFlag{"megatron_lm_sequence_parallelism", G::megatron, K::truth, "share sequences out where tensors are"},
    LaunchFlag{"megatron_lm_recompute_activations", G::megatron, K::truth, "compute activations again"},
    LaunchFlag{"megatron_lm_use_distributed_optimizer", G::megatron, K::truth, "share optimizer states out"},
    LaunchFlag{"megatron_lm_gradient_clipping", G::megatron, K::number, "largest norm of the gradients, 0: any", "1.0"},
    LaunchFlag{"megatron_lm_recompute_granularity", G::megatron, K::text, "full or selective"},
    LaunchFlag{"megatron_lm_recompute_method", G::megatron, K::text, "uniform or block"},
    LaunchFlag{"megatron_lm_recompute_num_layers", G::megatron, K::integer, "layers to compute again"},
    LaunchFlag{"megatron_lm_attention_backend", G::megatron, K::text, "how attention is computed"},
    LaunchFlag{"megatron_lm_expert_model_parallel_size", G::megatron, K::integer, "degree of expert parallelism"},
    LaunchFlag{"megatron_lm_context_parallel_size", G::megatron, K::integer, "degree of context parallelism"},
    LaunchFlag{"megatron_lm_attention_dropout", G::megatron, K::number, "dropout of attention"},
    LaunchFlag{"megatron_lm_hidden_dropout", G::megatron, K::number, "dropout of hidden states"},
    LaunchFlag{"megatron_lm_attention_softmax_in_fp32", G::megatron, K::truth, "softmax of attention in 32 bits"},
    LaunchFlag{"megatron_lm_expert_tensor_parallel_size", G::megatron, K::integer, "degree of tensor parallelism of experts"},
    LaunchFlag{"megatron_lm_calculate_per_token_loss", G::megatron, K::truth, "average the loss over tokens"},
    LaunchFlag{"megatron_lm_use_rotary_position_embeddings", G::megatron, K::truth, "rotary positions"},

    LaunchFlag{"fp8_backend", G::fp8, K::text, "torchao, TransformerEngine or MS-AMP", kNoFallback, "ao te msamp"},
    LaunchFlag{"fp8_use_autocast_during_eval", G::fp8, K::on, "also while evaluating (te)", "false"},
    LaunchFlag{"fp8_margin", G::fp8, K::integer, "margin of the scaling factor (te)", "0"},
    LaunchFlag{"fp8_interval", G::fp8, K::integer, "steps between new scaling factors (te)", "1"},
    LaunchFlag{"fp8_format", G::fp8, K::text, "format of the numbers (te)", "HYBRID", "HYBRID E4M3 E5M2"},
    LaunchFlag{"fp8_amax_history_len", G::fp8, K::integer, "length of the history of maxima (te)", "1024"},
    LaunchFlag{"fp8_amax_compute_algo", G::fp8, K::text, "how a factor is made of it (te)", "most_recent", "max most_recent"},
    LaunchFlag{"fp8_override_linear_precision", G::fp8, K::booleans,
               "higher precision for forward, gradient of inputs, gradient of weights: three of true and false, by commas (te)",
               "false,false,false"},
    LaunchFlag{"fp8_opt_level", G::fp8, K::text, "what is kept in 8 bits (msamp)", "O2", "O1 O2"},
    LaunchFlag{"fp8_enable_fsdp_float8_all_gather", G::fp8, K::bit, "gather weights in 8 bits (ao)", "true"},
    LaunchFlag{"fp8_pad_inner_dim", G::fp8, K::bit, "pad matrices to a size that 8 bits need (ao)", "true"},

    LaunchFlag{"aws_access_key_id", G::without_effect, K::text, "SageMaker jobs are not started from here"},
    LaunchFlag{"aws_secret_access_key", G::without_effect, K::text, "SageMaker jobs are not started from here"},

    LaunchFlag{"nproc_per_node", G::torchrun, K::text, "processes to start on each machine; gpu: one for each GPU"},
    LaunchFlag{.name = "nnodes",
               .group = G::torchrun,
               .kind = K::integer,
               .help = "the same as --num_machines",
               .value_name = "num_machines"},
    LaunchFlag{.name = "node_rank",
               .group = G::torchrun,
               .kind = K::integer,
               .help = "the same as --machine_rank",
               .value_name = "machine_rank"},
    LaunchFlag{.name = "master_addr",
               .group = G::torchrun,
               .kind = K::text,
               .help = "the same as --main_process_ip",
               .value_name = "main_process_ip"},
    LaunchFlag{.name = "master_port",
               .group = G::torchrun,
               .kind = K::integer,
               .help = "the same as --main_process_port",
               .value_name = "main_process_port"},
    LaunchFlag{.name = "np",
               .group = G::torchrun,
               .kind = K::integer,
               .help = "the same as --num_processes; -np too",
               .letter = 'n',
               .value_name = "num_processes"},

    LaunchFlag{"mpirun_hostfile", G::mpi, K::file, "start the processes with mpirun, on the machines in this file"},

    LaunchFlag{"parallelism_config_dp_replicate_size", G::parallelism, K::integer, "processes with copies of the model", "1"},
    LaunchFlag{"parallelism_config_dp_shard_size", G::parallelism, K::integer, "processes that share each copy", "1"},
    LaunchFlag{"parallelism_config_tp_size", G::parallelism, K::integer, "processes that share each tensor", "1"},
    LaunchFlag{"parallelism_config_cp_size", G::parallelism, K::integer, "processes that share a context", "1"},
    LaunchFlag{"parallelism_config_cp_backend", G::parallelism, K::text, "how contexts are shared", "torch", "torch"},
    LaunchFlag{"parallelism_config_cp_comm_strategy", G::parallelism, K::text, "allgather or alltoall", "allgather"},
    LaunchFlag{"parallelism_config_sp_size", G::parallelism, K::integer, "processes that share a sequence", "1"},
    LaunchFlag{"parallelism_config_sp_backend", G::parallelism, K::text, "how sequences are shared", "deepspeed", "deepspeed"},
    LaunchFlag{"parallelism_config_sp_seq_length", G::parallelism, K::text, "length of the sequences"},
    LaunchFlag{"parallelism_config_sp_seq_length_is_variable", G::parallelism, K::boolean, "that length changes", "true"},
    LaunchFlag{"parallelism_config_sp_attn_implementation", G::parallelism, K::text, "how attention is computed", "sdpa"},
};

}  // namespace

std::vector<std::string> LaunchFlag::choice_list() const {
  std::istringstream words(choices != nullptr ? choices : "");
  return {std::istream_iterator<std::string>(words), {}};
}

std::span<const LaunchFlag> launch_flags() { return kLaunchFlags; }

std::span<const FlagGroupInfo> launch_flag_groups() { return kLaunchFlagGroups; }

const LaunchFlag* find_launch_flag(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  const auto found =
      std::find_if(kLaunchFlags.begin(), kLaunchFlags.end(), [&](const LaunchFlag& flag) { return flag.name == name; });
  return found == kLaunchFlags.end() ? nullptr : &*found;
}

const LaunchFlag* find_launch_flag(char letter) {
  const auto found =
      std::find_if(kLaunchFlags.begin(), kLaunchFlags.end(), [&](const LaunchFlag& flag) { return flag.letter == letter; });
  return found == kLaunchFlags.end() || letter == 0 ? nullptr : &*found;
}

}  // namespace accelerate
