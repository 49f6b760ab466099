#include "launch/launch_flags.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace accelerate::detail {
namespace {

using G = FlagGroup;
using K = FlagKind;
using S = LaunchSettings;

constexpr const char* kNoFallback = nullptr;
constexpr const char* kAlways = nullptr;
constexpr const char* kNoSection = nullptr;
constexpr const char* kByName = nullptr;
constexpr SettingMember kUnused = {};

/// A flag of ours.
constexpr LaunchFlag own(G group, const Flag& flag, const SettingMember& member, const char* key = nullptr) {
  return {flag, group, member, false, key};
}

/// A flag that the top of a config file has a key for.
constexpr LaunchFlag in_file(G group, const Flag& flag, const SettingMember& member, const char* key = nullptr) {
  return {flag, group, member, true, key};
}

/// A flag whose value is passed on to Python programs.
constexpr LaunchFlag passed(G group, const Flag& flag, const char* variable = kByName, const SettingMember& member = {}) {
  return {flag, group, member, false, nullptr, PassedAs::text, variable};
}

/// The same in lower case.
constexpr LaunchFlag lowered(G group, const Flag& flag, const char* variable = kByName, const SettingMember& member = {}) {
  return {flag, group, member, false, nullptr, PassedAs::lower_case, variable};
}

// `--help` always shows the general sections, and the others when a flag on the line selects them.
constexpr std::array kLaunchFlagGroups = {
    FlagGroupInfo{G::general, "General"},
    FlagGroupInfo{G::hardware, "Hardware selection"},
    FlagGroupInfo{G::resources, "Resource selection"},
    FlagGroupInfo{G::distributed, "Devices and rendezvous", "multi_gpu"},
    FlagGroupInfo{G::output, "Output and logs", "multi_gpu"},
    FlagGroupInfo{G::failures, "Failures and restarts", "multi_gpu"},
    FlagGroupInfo{G::mpi, "MPI", "mpirun_hostfile", "mpirun_config"},
    FlagGroupInfo{G::cluster, "Slurm", "submit", kNoSection, true},
    FlagGroupInfo{G::torchrun, "Aliases from torchrun and mpirun", kAlways, kNoSection, true},
    FlagGroupInfo{G::paradigm, "Training paradigm"},
    FlagGroupInfo{G::compiler, "torch.compile (Python programs)", "dynamo_backend", "dynamo_config", true, "ACCELERATE_"},
    FlagGroupInfo{G::tpu, "TPU (Python programs)", "tpu", kNoSection, true},
    FlagGroupInfo{G::deepspeed, "DeepSpeed", "use_deepspeed", "deepspeed_config", true},
    FlagGroupInfo{G::fsdp, "FSDP", "use_fsdp", "fsdp_config", true},
    FlagGroupInfo{G::megatron, "Megatron-LM (Python programs)", "use_megatron_lm", "megatron_lm_config", true},
    FlagGroupInfo{G::fp8, "FP8 (Python programs)", "fp8_backend", "fp8_config", true, "ACCELERATE_"},
    FlagGroupInfo{G::parallelism, "Multi-dimensional parallelism", "use_parallelism_config", "parallelism_config", true},
    FlagGroupInfo{G::without_effect, "Accepted for compatibility, without effect", kAlways, kNoSection, true},
};

constexpr std::array kLaunchFlags = {
    own(G::general, {"config_file", K::file, "settings that are not given here (default: the file of `accelerate config`)"},
        &S::config_file),
    own(G::general, {.name = "quiet", .kind = K::on, .help = "suppress the launcher's own messages", .letter = 'q'}, &S::quiet),
    own(G::general, {.name = "module", .kind = K::on, .help = "run the program as a Python module: python3 -m", .letter = 'm'},
        &S::module),
    own(G::general, {"no_python", K::on, "run the program directly, even if its name ends in .py"}, &S::no_python),
    in_file(G::general, {"debug", K::on, "check that the collectives of all ranks match"}, &S::debug),
    own(G::general, {"dry_run", K::on, "print each process's command and environment, and start nothing"}, &S::dry_run),

    own(G::hardware, {"cpu", K::on, "run on the CPU even if there are GPUs"}, &S::cpu),
    own(G::hardware, {"multi_gpu", K::on, "run on several GPUs, one process per GPU"}, &S::multi_gpu),

    in_file(G::resources, {"mixed_precision", K::text, "mixed-precision mode (default: no)", kNoFallback, "no fp16 bf16 fp8"},
            &S::mixed_precision),
    in_file(G::resources, {"num_processes", K::integer, "processes of all machines (default: one per GPU, or one on the CPU)"},
            &S::num_processes),
    in_file(G::resources,
            {"num_machines", K::integer, "number of machines, or MIN:MAX; run the launch on each of them (default: 1)"},
            &S::num_machines),
    own(G::resources,
        {"num_cpu_threads_per_process", K::integer,
         "OMP_NUM_THREADS of each process (default: that variable, else an equal share of the cores)"},
        &S::num_cpu_threads_per_process),
    in_file(G::resources,
            {"enable_cpu_affinity", K::on, "pin each process to the CPUs near its GPU (NUMA), or to its share of the CPUs"},
            &S::enable_cpu_affinity),
    own(G::compiler,
        {"dynamo_backend", K::text, "torch.compile backend (default: no)", kNoFallback,
         "no eager aot_eager inductor aot_ts_nvfuser nvprims_nvfuser cudagraphs ofi fx2trt onnxrt tensorrt "
         "aot_torchxla_trace_once torchxla_trace_once tvm hpu_backend neuron"},
        &S::dynamo_backend),
    passed(G::compiler, {"dynamo_mode", K::text, "torch.compile mode", "default", "default reduce-overhead max-autotune"}),
    passed(G::compiler, {"dynamo_use_fullgraph", K::on, "compile the model as a single graph", "false"}),
    passed(G::compiler, {"dynamo_use_dynamic", K::on, "compile for dynamic shapes", "false"}),
    passed(G::compiler, {"dynamo_use_regional_compilation", K::on, "compile repeated blocks only once", "false"}),

    own(G::paradigm, {"use_deepspeed", K::on, "shard the model as DeepSpeed's settings say; `--use_deepspeed --help` shows them"},
        &S::use_deepspeed),
    own(G::paradigm,
        {"use_fsdp", K::on, "shard weights, gradients and optimizer state (FSDP); `--use_fsdp --help` shows the settings"},
        &S::use_fsdp),
    own(G::paradigm,
        {"use_parallelism_config", K::on,
         "replicate groups of ranks that shard (hybrid sharding); needs --use_fsdp of version 2"},
        &S::use_parallelism_config),
    own(G::paradigm, {"use_megatron_lm", K::on, "train with Megatron-LM (Python programs)"}, &S::use_megatron_lm),

    in_file(G::distributed, {"gpu_ids", K::text, "GPUs to use, separated by commas, or all (default: all)"}, &S::gpu_ids),
    in_file(G::distributed, {"machine_rank", K::integer, "rank of this machine, from 0"}, &S::machine_rank),
    in_file(G::distributed,
            {"main_process_ip", K::text, "address of machine 0, as the others reach it; required with several machines"},
            &S::main_process_ip),
    in_file(G::distributed,
            {"main_process_port", K::integer,
             "port on which rank 0 listens, or with several machines machine 0's launcher; 0 picks a free one (default: 29500 if "
             "free)"},
            &S::main_process_port),
    in_file(G::without_effect, {"same_network", K::on, "the rendezvous is always at --main_process_ip"}, kUnused),
    in_file(G::distributed,
            {"rdzv_backend", K::text, "c10d: machines have no rank and are numbered as they join", "static",
             "static c10d etcd etcd-v2"},
            &S::rdzv_backend),
    own(G::distributed, {"rdzv_conf", K::text, "key=value,...: timeout, last_call_timeout (seconds), is_host", ""},
        &S::rdzv_conf),
    own(G::distributed, {"rdzv_id", K::text, "name of the job (default: that of the program)"}, &S::rdzv_id),
    own(G::distributed, {"heterogeneous", K::on, "machines may start different numbers of processes"}, &S::heterogeneous),

    own(G::output,
        {.name = "tee",
         .kind = K::text,
         .help = "streams to write to log files as well: 0 none, 1 stdout, 2 stderr, 3 both; per local rank: 0:3,1:0",
         .fallback = "0",
         .letter = 't'},
        &S::tee),
    own(G::output,
        {"log_dir", K::folder,
         "folder for log files; without --tee, logs both streams of every rank (default: a temporary folder)"},
        &S::log_dir),
    own(G::output, {"role", K::text, "ROLE_NAME of the processes, shown before teed lines", "default"}, &S::role),

    own(G::failures, {"max_restarts", K::integer, "how often to restart all ranks after a failure", "0"}, &S::max_restarts),
    own(G::failures, {"grace_period", K::number, "seconds that ranks get to stop before SIGKILL", "30"}, &S::grace_period),
    own(G::without_effect,
        {"monitor_interval", K::number, "the launcher does not poll: it notices at once when a process exits", "0.1"},
        &S::monitor_interval),

    own(G::tpu, {"tpu", K::on, "run on a TPU"}, &S::tpu),
    in_file(G::tpu, {"tpu_cluster", K::on, "use a TPU pod"}, &S::tpu_use_cluster, "tpu_use_cluster"),
    in_file(G::tpu, {"no_tpu_cluster", K::off, "use this machine's TPU"}, &S::tpu_use_cluster, "tpu_use_cluster"),
    own(G::tpu, {"tpu_use_sudo", K::on, "use sudo on the VMs of a TPU pod"}, kUnused),
    own(G::tpu, {"vm", K::text, "a VM of the TPU pod; may be repeated"}, kUnused),
    own(G::tpu, {"env", K::text, "an environment variable for the VMs of the TPU pod; may be repeated"}, kUnused),
    in_file(G::tpu, {"main_training_function", K::text, "function of a Python script to run on a TPU (default: main)"}, kUnused),
    own(G::tpu, {"downcast_bf16", K::on, "with bf16 on a TPU: float becomes bfloat16, and double becomes float32"},
        &S::downcast_bf16),

    passed(G::deepspeed, {"deepspeed_config_file", K::file, "DeepSpeed's own JSON config"}, "ACCELERATE_DEEPSPEED_CONFIG_FILE"),
    passed(G::deepspeed, {"zero_stage", K::integer, "stage of ZeRO, 0 to 3"}, "ACCELERATE_DEEPSPEED_ZERO_STAGE"),
    lowered(G::deepspeed, {"offload_optimizer_device", K::text, "where to offload optimizer states: none, cpu or nvme"},
            "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"),
    lowered(G::deepspeed, {"offload_param_device", K::text, "where to offload parameters: none, cpu or nvme"},
            "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"),
    passed(G::deepspeed, {"offload_optimizer_nvme_path", K::folder, "folder for optimizer states that are offloaded to nvme"},
           "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH"),
    passed(G::deepspeed, {"offload_param_nvme_path", K::folder, "folder for parameters that are offloaded to nvme"},
           "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"),
    passed(G::deepspeed, {"gradient_accumulation_steps", K::integer, "number of gradient accumulation steps"},
           "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    lowered(G::deepspeed, {"gradient_clipping", K::number, "maximum gradient norm"}, "ACCELERATE_GRADIENT_CLIPPING"),
    lowered(G::deepspeed, {"zero3_init_flag", K::truth, "build large models already sharded (deepspeed.zero.Init)"},
            "ACCELERATE_DEEPSPEED_ZERO3_INIT"),
    lowered(G::deepspeed, {"zero3_save_16bit_model", K::truth, "gather and save 16-bit weights in ZeRO stage 3"},
            "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"),
    own(G::deepspeed,
        {"deepspeed_hostfile", K::file, "hostfile in DeepSpeed's format (NAME slots=N): start the program on these hosts"},
        &S::deepspeed_hostfile),
    own(G::deepspeed, {"deepspeed_exclusion_filter", K::text, "hosts, or slots of hosts, to leave out: worker-0@worker-1:0,2"},
        &S::deepspeed_exclusion_filter),
    own(G::deepspeed, {"deepspeed_inclusion_filter", K::text, "hosts, or slots of hosts, to use: worker-0@worker-1:0,2"},
        &S::deepspeed_inclusion_filter),
    own(G::deepspeed,
        {"deepspeed_multinode_launcher", K::text,
         "how the hosts of the hostfile are reached: pdsh, ssh, or nossh and standard where every host runs the command "
         "(default: pdsh, or "
         "ssh where that is not installed)",
         kNoFallback, "pdsh standard openmpi mvapich mpich slurm nossh ssh"},
        &S::deepspeed_multinode_launcher),
    passed(G::deepspeed, {"deepspeed_moe_layer_cls_names", K::text, "classes of mixture-of-experts layers, separated by commas"},
           "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"),

    passed(G::fsdp, {"fsdp_version", K::text, "FSDP version", "1", "1 2"}, kByName, &S::fsdp_version),
    lowered(G::fsdp, {"fsdp_offload_params", K::truth, "offload parameters and gradients to the CPU", "false"}),
    passed(G::fsdp, {"fsdp_min_num_params", K::integer, "minimum number of parameters for SIZE_BASED_WRAP", "100000000"}),
    passed(G::fsdp, {"fsdp_sharding_strategy", K::text,
                     "sharding strategy of version 1: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2",
                     "FULL_SHARD"}),
    lowered(G::fsdp, {"fsdp_reshard_after_forward", K::text, "reshard parameters after the forward pass (version 2)", "true"}),
    passed(G::fsdp, {"fsdp_auto_wrap_policy", K::text, "auto-wrap policy: TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP"}),
    passed(G::fsdp, {"fsdp_transformer_layer_cls_to_wrap", K::text, "layer classes to wrap, separated by commas; case-sensitive"},
           "FSDP_TRANSFORMER_CLS_TO_WRAP"),
    passed(G::fsdp, {"fsdp_backward_prefetch", K::text, "backward prefetch policy: BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH"}),
    passed(G::fsdp, {"fsdp_state_dict_type", K::text,
                     "state dict type: FULL_STATE_DICT, SHARDED_STATE_DICT, or LOCAL_STATE_DICT (Python programs)"}),
    lowered(G::fsdp, {"fsdp_forward_prefetch", K::truth,
                      "prefetch the next parameters in the forward pass; C++ programs do unless false is given", "false"}),
    lowered(G::fsdp, {"fsdp_use_orig_params", K::truth, "allow frozen and trainable parameters in one FSDP unit", "true"}),
    lowered(G::fsdp, {"fsdp_cpu_ram_efficient_loading", K::truth, "load the weights on rank 0 only", "true"}, kByName,
            &S::fsdp_cpu_ram_efficient_loading),
    lowered(G::fsdp, {"fsdp_sync_module_states", K::truth, "broadcast rank 0's weights to all ranks at the start", "true"},
            kByName, &S::fsdp_sync_module_states),
    lowered(G::fsdp, {"fsdp_activation_checkpointing", K::truth, "recompute activations in the backward pass", "false"}),
    lowered(G::fsdp, {"fsdp_activation_checkpointing_offload", K::truth, "offload checkpointed activations to the CPU", "false"}),

    passed(G::megatron, {"megatron_lm_tp_degree", K::integer, "degree of tensor parallelism", "1"}),
    passed(G::megatron, {"megatron_lm_use_custom_fsdp", K::boolean, "use Megatron-LM's custom FSDP", "false"}),
    passed(G::megatron, {"megatron_lm_no_load_optim", K::boolean, "do not load optimizer states", "false"}),
    passed(G::megatron, {"megatron_lm_eod_mask_loss", K::boolean, "mask the loss at end-of-document tokens", "false"}),
    passed(G::megatron, {"megatron_lm_overlap_cpu_optimizer_d2h_h2d", K::boolean,
                         "overlap device-to-host and host-to-device copies", "false"}),
    passed(G::megatron, {"megatron_lm_no_save_optim", K::boolean, "do not save optimizer states", "false"}),
    passed(G::megatron, {"megatron_lm_optimizer_cpu_offload", K::boolean, "offload optimizer states to the CPU", "false"}),
    passed(G::megatron,
           {"megatron_lm_use_precision_aware_optimizer", K::boolean, "keep optimizer states in lower precision", "false"}),
    passed(G::megatron,
           {"megatron_lm_decoder_last_pipeline_num_layers", K::integer, "number of layers in the last pipeline stage"}),
    passed(G::megatron, {"megatron_lm_pp_degree", K::integer, "degree of pipeline parallelism", "1"}),
    passed(G::megatron, {"megatron_lm_num_micro_batches", K::integer, "number of micro-batches"}),
    passed(G::megatron, {"megatron_lm_sequence_parallelism", K::truth, "use sequence parallelism with tensor parallelism"}),
    passed(G::megatron, {"megatron_lm_recompute_activations", K::truth, "recompute activations in the backward pass"}),
    passed(G::megatron, {"megatron_lm_use_distributed_optimizer", K::truth, "shard optimizer states over data-parallel ranks"}),
    passed(G::megatron, {"megatron_lm_gradient_clipping", K::number, "maximum gradient norm; 0: no clipping", "1.0"}),
    passed(G::megatron, {"megatron_lm_recompute_granularity", K::text, "recompute granularity: full or selective"}),
    passed(G::megatron, {"megatron_lm_recompute_method", K::text, "recompute method: uniform or block"}),
    passed(G::megatron, {"megatron_lm_recompute_num_layers", K::integer, "number of layers to recompute"}),
    passed(G::megatron, {"megatron_lm_attention_backend", K::text, "attention implementation"}),
    passed(G::megatron, {"megatron_lm_expert_model_parallel_size", K::integer, "degree of expert parallelism"}),
    passed(G::megatron, {"megatron_lm_context_parallel_size", K::integer, "degree of context parallelism"}),
    passed(G::megatron, {"megatron_lm_attention_dropout", K::number, "attention dropout probability"}),
    passed(G::megatron, {"megatron_lm_hidden_dropout", K::number, "hidden-state dropout probability"}),
    passed(G::megatron, {"megatron_lm_attention_softmax_in_fp32", K::truth, "compute the attention softmax in float32"}),
    passed(G::megatron, {"megatron_lm_expert_tensor_parallel_size", K::integer, "degree of expert tensor parallelism"}),
    passed(G::megatron, {"megatron_lm_calculate_per_token_loss", K::truth, "compute the loss per token"}),
    passed(G::megatron, {"megatron_lm_use_rotary_position_embeddings", K::truth, "use rotary position embeddings"}),

    passed(G::fp8, {"fp8_backend", K::text, "torchao, TransformerEngine or MS-AMP", kNoFallback, "ao te msamp"}),
    passed(G::fp8, {"fp8_use_autocast_during_eval", K::on, "use FP8 autocast during evaluation (te)", "false"}),
    passed(G::fp8, {"fp8_margin", K::integer, "margin of the scaling factor (te)", "0"}),
    passed(G::fp8, {"fp8_interval", K::integer, "steps between updates of the scaling factor (te)", "1"}),
    passed(G::fp8, {"fp8_format", K::text, "FP8 format (te)", "HYBRID", "HYBRID E4M3 E5M2"}),
    passed(G::fp8, {"fp8_amax_history_len", K::integer, "length of the amax history (te)", "1024"}),
    passed(G::fp8, {"fp8_amax_compute_algo", K::text, "how to compute the scaling factor from the amax history (te)",
                    "most_recent", "max most_recent"}),
    own(G::fp8,
        {"fp8_override_linear_precision", K::booleans,
         "higher precision for fprop, dgrad, wgrad: three booleans, separated by commas (te)", "false,false,false"},
        &S::fp8_override_linear_precision),
    passed(G::fp8, {"fp8_opt_level", K::text, "MS-AMP optimization level (msamp)", "O2", "O1 O2"}),
    passed(G::fp8, {"fp8_enable_fsdp_float8_all_gather", K::bit, "all-gather weights in float8 (ao)", "true"}),
    passed(G::fp8, {"fp8_pad_inner_dim", K::bit, "pad the inner dimension of weights for float8 (ao)", "true"}),

    own(G::without_effect, {"aws_access_key_id", K::text, "SageMaker jobs are not supported"}, &S::aws_access_key_id),
    own(G::without_effect, {"aws_secret_access_key", K::text, "SageMaker jobs are not supported"}, &S::aws_secret_access_key),

    own(G::torchrun, {"nproc_per_node", K::text, "processes per machine; gpu: one per GPU"}, &S::nproc_per_node),
    own(G::torchrun, {"standalone", K::on, "launch on this machine alone, also where Slurm has started launches on several"},
        &S::standalone),
    own(G::torchrun, {"nnodes", K::integer, "the same as --num_machines"}, &S::num_machines, "num_machines"),
    own(G::torchrun, {"rdzv_endpoint", K::text, "HOST:PORT, the same as --main_process_ip and --main_process_port"},
        &S::rdzv_endpoint),
    own(G::torchrun, {"node_rank", K::integer, "the same as --machine_rank"}, &S::machine_rank, "machine_rank"),
    own(G::torchrun, {"master_addr", K::text, "the same as --main_process_ip"}, &S::main_process_ip, "main_process_ip"),
    own(G::torchrun, {"master_port", K::integer, "the same as --main_process_port"}, &S::main_process_port, "main_process_port"),
    own(G::torchrun,
        {.name = "np", .kind = K::integer, .help = "the same as --num_processes; -np too", .letter = 'n', .single_dash = true},
        &S::num_processes, "num_processes"),

    own(G::cluster,
        {"submit", K::on,
         "write a job file and submit it with sbatch: a launcher on each of --num_machines nodes; with --dry_run, "
         "print it"},
        &S::submit),
    own(G::cluster,
        {.name = "sbatch",
         .kind = K::text,
         .help = "more options of sbatch for --submit, in quotes: \"--time=2:00:00 --partition=gpu\"",
         .fallback = "",
         .value_is_options = true},
        &S::sbatch),

    own(G::mpi, {"mpirun_hostfile", K::file, "launch with mpirun on the hosts in this file"}, &S::mpirun_hostfile),

    passed(G::parallelism, {"parallelism_config_dp_replicate_size", K::integer, "number of data-parallel replicas", "1"}),
    passed(G::parallelism, {"parallelism_config_dp_shard_size", K::integer, "number of ranks that shard each replica", "1"}),
    passed(G::parallelism, {"parallelism_config_tp_size", K::integer, "tensor-parallel size (Python programs)", "1"}),
    passed(G::parallelism, {"parallelism_config_cp_size", K::integer, "context-parallel size (Python programs)", "1"}, kByName,
           &S::parallelism_config_cp_size),
    passed(G::parallelism, {"parallelism_config_cp_backend", K::text, "context-parallel backend", "torch", "torch"}),
    passed(G::parallelism, {"parallelism_config_cp_comm_strategy", K::text,
                            "context-parallel communication: allgather or alltoall", "allgather"}),
    passed(G::parallelism, {"parallelism_config_sp_size", K::integer, "sequence-parallel size (Python programs)", "1"}, kByName,
           &S::parallelism_config_sp_size),
    passed(G::parallelism, {"parallelism_config_sp_backend", K::text, "sequence-parallel backend", "deepspeed", "deepspeed"}),
    passed(G::parallelism, {"parallelism_config_sp_seq_length", K::text, "sequence length"}),
    passed(G::parallelism, {"parallelism_config_sp_seq_length_is_variable", K::boolean, "the sequence length varies", "true"}),
    passed(G::parallelism, {"parallelism_config_sp_attn_implementation", K::text, "attention implementation", "sdpa"}),
};

// Calls `use` with the member, if there is one.
template <typename Settings, typename Use>
void with_member(Settings& settings, const SettingMember& member, const Use& use) {
  std::visit(
      [&](auto pointer) {
        if constexpr (!std::is_same_v<decltype(pointer), std::monostate>) use(settings.*pointer);
      },
      member);
}

template <typename Value>
PythonValue as_python(const std::optional<Value>& value) {
  return value ? PythonValue(*value) : PythonValue();
}

template <typename Value>
PythonValue as_python(const Value& value) {
  return value;
}

void take(PythonValue& member, const PythonValue& value) { member = value; }

template <typename Value>
void take(std::optional<Value>& member, const PythonValue& value) {
  member = value.get<Value>();
}

template <typename Value>
void take(Value& member, const PythonValue& value) {
  member = value.get<Value>();
}

}  // namespace

std::span<const LaunchFlag> launch_flags() { return kLaunchFlags; }

std::span<const FlagGroupInfo> launch_flag_groups() { return kLaunchFlagGroups; }

FlagTable launch_flag_table() {
  FlagTable table = {.flags = {}, .program_follows = true, .unknown = {}};
  for (const LaunchFlag& flag : kLaunchFlags) table.flags.push_back(&flag);
  return table;
}

const LaunchFlag* find_launch_flag(const std::string& name) {
  return static_cast<const LaunchFlag*>(launch_flag_table().find(name));
}

const LaunchFlag* find_launch_flag(char letter) { return static_cast<const LaunchFlag*>(launch_flag_table().find(letter)); }

const LaunchFlag* flag_of_key(const std::string& key) {
  const auto found =
      std::find_if(kLaunchFlags.begin(), kLaunchFlags.end(), [&](const LaunchFlag& flag) { return flag.key() == key; });
  return found == kLaunchFlags.end() ? nullptr : &*found;
}

std::string key_of(const SettingMember& member) {
  const auto found =
      std::find_if(kLaunchFlags.begin(), kLaunchFlags.end(), [&](const LaunchFlag& flag) { return flag.member == member; });
  if (found == kLaunchFlags.end()) throw std::logic_error("no flag sets this member");
  return found->key();
}

PythonValue value_of(const LaunchSettings& settings, const LaunchFlag& flag) {
  PythonValue value;
  if (const auto found = settings.passed_on.find(&flag); found != settings.passed_on.end()) value = found->second;
  with_member(settings, flag.member, [&](const auto& member) { value = as_python(member); });
  return value;
}

void set_value(LaunchSettings& settings, const LaunchFlag& flag, const PythonValue& value) {
  if (flag.has_member()) {
    with_member(settings, flag.member, [&](auto& member) { take(member, value); });
  } else if (flag.passed != PassedAs::nothing) {
    settings.passed_on[&flag] = value;
  }
}

}  // namespace accelerate::detail
