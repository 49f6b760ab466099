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
    FlagGroupInfo{G::compiler, "The compiler of Python programs", "dynamo_backend", "dynamo_config", true, "ACCELERATE_"},
    FlagGroupInfo{G::tpu, "TPU (Python programs)", "tpu", kNoSection, true},
    FlagGroupInfo{G::deepspeed, "DeepSpeed (Python programs)", "use_deepspeed", "deepspeed_config", true},
    FlagGroupInfo{G::fsdp, "FSDP (Python programs)", "use_fsdp", "fsdp_config", true},
    FlagGroupInfo{G::megatron, "Megatron-LM (Python programs)", "use_megatron_lm", "megatron_lm_config", true},
    FlagGroupInfo{G::fp8, "FP8 (Python programs)", "fp8_backend", "fp8_config", true, "ACCELERATE_"},
    FlagGroupInfo{G::parallelism, "Parallelism in several dimensions (Python programs)", "use_parallelism_config",
                  "parallelism_config", true},
    FlagGroupInfo{G::without_effect, "Accepted as Python's, without effect", kAlways, kNoSection, true},
};

constexpr std::array kLaunchFlags = {
    own(G::general,
        {"config_file", K::file,
         "config file to take what is not given here from (default: the one of `accelerate config`, if any)"},
        &S::config_file),
    own(G::general, {.name = "quiet", .kind = K::on, .help = "say nothing of our own; the exit code tells", .letter = 'q'},
        &S::quiet),
    own(G::general, {.name = "module", .kind = K::on, .help = "the program is a Python module: python3 -m", .letter = 'm'},
        &S::module),
    own(G::general, {"no_python", K::on, "start the program as it is, also when its name ends in .py"}, &S::no_python),
    in_file(G::general, {"debug", K::on, "let the processes check that their collectives match"}, &S::debug),
    own(G::general, {"dry_run", K::on, "print what would be started, with which environment, and start nothing"}, &S::dry_run),

    own(G::hardware, {"cpu", K::on, "run on the CPU even where there are GPUs"}, &S::cpu),
    own(G::hardware, {"multi_gpu", K::on, "run on several GPUs, one process for each"}, &S::multi_gpu),

    in_file(G::resources,
            {"mixed_precision", K::text, "precision of the computations (default: no)", kNoFallback, "no fp16 bf16 fp8"},
            &S::mixed_precision),
    in_file(G::resources,
            {"num_processes", K::integer,
             "processes to start, on all machines together (default: one for each GPU, or one on the CPU)"},
            &S::num_processes),
    in_file(G::resources, {"num_machines", K::integer, "machines that take part; launch on each of them (default: 1)"},
            &S::num_machines),
    own(G::resources,
        {"num_cpu_threads_per_process", K::integer,
         "OMP_NUM_THREADS of each process (default: that variable, else a share of the cores)"},
        &S::num_cpu_threads_per_process),
    in_file(G::resources,
            {"enable_cpu_affinity", K::on, "keep each process on the CPUs next to its GPU, or on its share of them"},
            &S::enable_cpu_affinity),
    own(G::compiler,
        {"dynamo_backend", K::text, "compiler for Python programs (default: no)", kNoFallback,
         "no eager aot_eager inductor aot_ts_nvfuser nvprims_nvfuser cudagraphs ofi fx2trt onnxrt tensorrt "
         "aot_torchxla_trace_once torchxla_trace_once tvm hpu_backend neuron"},
        &S::dynamo_backend),
    passed(G::compiler,
           {"dynamo_mode", K::text, "what that compiler optimizes for", "default", "default reduce-overhead max-autotune"}),
    passed(G::compiler, {"dynamo_use_fullgraph", K::on, "it must take the model in one piece", "false"}),
    passed(G::compiler, {"dynamo_use_dynamic", K::on, "it expects shapes that change", "false"}),
    passed(G::compiler, {"dynamo_use_regional_compilation", K::on, "it compiles repeated blocks once", "false"}),

    own(G::paradigm, {"use_deepspeed", K::on, "train with DeepSpeed (Python programs)"}, &S::use_deepspeed),
    own(G::paradigm, {"use_fsdp", K::on, "shard the weights among the processes"}, &S::use_fsdp),
    own(G::paradigm,
        {"use_parallelism_config", K::on, "share the work out in several dimensions; needs --use_fsdp and --fsdp_version 2"},
        &S::use_parallelism_config),
    own(G::paradigm, {"use_megatron_lm", K::on, "train with Megatron-LM (Python programs)"}, &S::use_megatron_lm),

    in_file(G::distributed,
            {"gpu_ids", K::text, "GPUs to use, separated by commas (CUDA_VISIBLE_DEVICES), or all (default: all)"}, &S::gpu_ids),
    in_file(G::distributed, {"machine_rank", K::integer, "which of the machines this one is, from 0"}, &S::machine_rank),
    in_file(G::distributed, {"main_process_ip", K::text, "address of machine 0; several machines need it"}, &S::main_process_ip),
    in_file(G::distributed,
            {"main_process_port", K::integer, "port on which rank 0 meets the others; 0: any free one (default: 29500 if free)"},
            &S::main_process_port),
    in_file(G::without_effect, {"same_network", K::on, "here the machines always meet at --main_process_ip"}, kUnused),
    in_file(G::without_effect,
            {"rdzv_backend", K::text, "here the machines always meet at --main_process_ip", "static", "static c10d etcd etcd-v2"},
            &S::rdzv_backend),
    own(G::without_effect, {"rdzv_conf", K::text, "settings of a rendezvous that is not used here: key=value,...", ""},
        &S::rdzv_conf),
    own(G::without_effect, {"standalone", K::on, "torchrun's; without --num_machines a launch stands alone"}, kUnused),

    own(G::output,
        {.name = "tee",
         .kind = K::text,
         .help = "streams that go to files too: 0 none, 1 stdout, 2 stderr, 3 both; per local rank: 0:3,1:0",
         .fallback = "0",
         .letter = 't'},
        &S::tee),
    own(G::output, {"log_dir", K::folder, "folder for these files; alone: both streams of every rank (default: a new one)"},
        &S::log_dir),
    own(G::output, {"role", K::text, "ROLE_NAME of the processes, shown before teed lines", "default"}, &S::role),

    own(G::failures, {"max_restarts", K::integer, "how often all ranks are started again after one failed", "0"},
        &S::max_restarts),
    own(G::failures, {"grace_period", K::number, "seconds that ranks may take to stop before they are killed", "30"},
        &S::grace_period),
    own(G::without_effect, {"monitor_interval", K::number, "here the end of a process is noticed at once", "0.1"},
        &S::monitor_interval),

    own(G::tpu, {"tpu", K::on, "run on a TPU"}, &S::tpu),
    in_file(G::tpu, {"tpu_cluster", K::on, "use a pod of TPUs"}, &S::tpu_use_cluster, "tpu_use_cluster"),
    in_file(G::tpu, {"no_tpu_cluster", K::off, "use this machine's TPU"}, &S::tpu_use_cluster, "tpu_use_cluster"),
    own(G::tpu, {"tpu_use_sudo", K::on, "use sudo on the machines of a pod"}, kUnused),
    own(G::tpu, {"vm", K::text, "a machine of the pod; may be given again"}, kUnused),
    own(G::tpu, {"env", K::text, "a variable for the machines of the pod; may be given again"}, kUnused),
    in_file(G::tpu, {"main_training_function", K::text, "function of a Python script to run on a TPU (default: main)"}, kUnused),
    own(G::tpu, {"downcast_bf16", K::on, "with bf16 on a TPU: double is computed in 32 bits, float in 16"}, &S::downcast_bf16),

    passed(G::deepspeed, {"deepspeed_config_file", K::file, "DeepSpeed's own JSON config"}, "ACCELERATE_DEEPSPEED_CONFIG_FILE"),
    passed(G::deepspeed, {"zero_stage", K::integer, "stage of ZeRO, 0 to 3"}, "ACCELERATE_DEEPSPEED_ZERO_STAGE"),
    lowered(G::deepspeed, {"offload_optimizer_device", K::text, "where optimizer states live: none, cpu or nvme"},
            "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"),
    lowered(G::deepspeed, {"offload_param_device", K::text, "where parameters live: none, cpu or nvme"},
            "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"),
    passed(G::deepspeed, {"offload_optimizer_nvme_path", K::folder, "folder on NVMe for optimizer states"},
           "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH"),
    passed(G::deepspeed, {"offload_param_nvme_path", K::folder, "folder on NVMe for parameters"},
           "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"),
    passed(G::deepspeed, {"gradient_accumulation_steps", K::integer, "batches before each optimizer step"},
           "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    lowered(G::deepspeed, {"gradient_clipping", K::number, "largest norm of the gradients"}, "ACCELERATE_GRADIENT_CLIPPING"),
    lowered(G::deepspeed, {"zero3_init_flag", K::truth, "make large models already shared out"},
            "ACCELERATE_DEEPSPEED_ZERO3_INIT"),
    lowered(G::deepspeed, {"zero3_save_16bit_model", K::truth, "gather 16-bit weights when saving in stage 3"},
            "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"),
    own(G::deepspeed, {"deepspeed_hostfile", K::file, "the machines that take part"}, &S::deepspeed_hostfile),
    own(G::deepspeed, {"deepspeed_exclusion_filter", K::text, "machines or GPUs to leave out"}, &S::deepspeed_exclusion_filter),
    own(G::deepspeed, {"deepspeed_inclusion_filter", K::text, "machines or GPUs to use"}, &S::deepspeed_inclusion_filter),
    own(G::deepspeed,
        {"deepspeed_multinode_launcher", K::text, "how DeepSpeed starts other machines (default: pdsh)", kNoFallback,
         "pdsh standard openmpi mvapich mpich slurm nossh"},
        &S::deepspeed_multinode_launcher),
    passed(G::deepspeed, {"deepspeed_moe_layer_cls_names", K::text, "classes of mixture-of-experts layers, by commas"},
           "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"),

    passed(G::fsdp, {"fsdp_version", K::text, "FSDP of the first or the second kind", "1", "1 2"}, kByName, &S::fsdp_version),
    lowered(G::fsdp, {"fsdp_offload_params", K::truth, "keep parameters and gradients in CPU memory", "false"}),
    passed(G::fsdp, {"fsdp_min_num_params", K::integer, "size from which a module is wrapped, by SIZE_BASED_WRAP", "100000000"}),
    passed(G::fsdp, {"fsdp_sharding_strategy", K::text, "what is shared out, in the first kind", "FULL_SHARD"}),
    lowered(G::fsdp, {"fsdp_reshard_after_forward", K::text, "give gathered weights up after the forward pass", "true"}),
    passed(G::fsdp,
           {"fsdp_auto_wrap_policy", K::text, "which modules are wrapped: TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP"}),
    passed(G::fsdp, {"fsdp_transformer_layer_cls_to_wrap", K::text, "classes to wrap, by commas; names count exactly"},
           "FSDP_TRANSFORMER_CLS_TO_WRAP"),
    passed(G::fsdp, {"fsdp_backward_prefetch", K::text, "BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH"}),
    passed(G::fsdp, {"fsdp_state_dict_type", K::text, "FULL_STATE_DICT, LOCAL_STATE_DICT or SHARDED_STATE_DICT"}),
    lowered(G::fsdp, {"fsdp_forward_prefetch", K::truth, "gather the next weights during the forward pass", "false"}),
    lowered(G::fsdp, {"fsdp_use_orig_params", K::truth, "allow frozen and trained parameters in one unit", "true"}),
    lowered(G::fsdp, {"fsdp_cpu_ram_efficient_loading", K::truth, "only rank 0 reads the weights", "true"}, kByName,
            &S::fsdp_cpu_ram_efficient_loading),
    lowered(G::fsdp, {"fsdp_sync_module_states", K::truth, "every process begins with rank 0's weights", "true"}, kByName,
            &S::fsdp_sync_module_states),
    lowered(G::fsdp, {"fsdp_activation_checkpointing", K::truth, "compute activations again instead of keeping them", "false"}),
    lowered(G::fsdp, {"fsdp_activation_checkpointing_offload", K::truth, "keep those that are kept in CPU memory", "false"}),

    passed(G::megatron, {"megatron_lm_tp_degree", K::integer, "degree of tensor parallelism", "1"}),
    passed(G::megatron, {"megatron_lm_use_custom_fsdp", K::boolean, "use its own FSDP", "false"}),
    passed(G::megatron, {"megatron_lm_no_load_optim", K::boolean, "do not load optimizer states", "false"}),
    passed(G::megatron, {"megatron_lm_eod_mask_loss", K::boolean, "no loss at ends of documents", "false"}),
    passed(G::megatron, {"megatron_lm_overlap_cpu_optimizer_d2h_h2d", K::boolean, "copy to and from the CPU at once", "false"}),
    passed(G::megatron, {"megatron_lm_no_save_optim", K::boolean, "do not save optimizer states", "false"}),
    passed(G::megatron, {"megatron_lm_optimizer_cpu_offload", K::boolean, "optimizer states live in CPU memory", "false"}),
    passed(G::megatron,
           {"megatron_lm_use_precision_aware_optimizer", K::boolean, "optimizer states of lower precision", "false"}),
    passed(G::megatron, {"megatron_lm_decoder_last_pipeline_num_layers", K::integer, "layers of the last pipeline stage"}),
    passed(G::megatron, {"megatron_lm_pp_degree", K::integer, "degree of pipeline parallelism", "1"}),
    passed(G::megatron, {"megatron_lm_num_micro_batches", K::integer, "micro batches of the pipeline"}),
    passed(G::megatron, {"megatron_lm_sequence_parallelism", K::truth, "share sequences out where tensors are"}),
    passed(G::megatron, {"megatron_lm_recompute_activations", K::truth, "compute activations again"}),
    passed(G::megatron, {"megatron_lm_use_distributed_optimizer", K::truth, "share optimizer states out"}),
    passed(G::megatron, {"megatron_lm_gradient_clipping", K::number, "largest norm of the gradients, 0: any", "1.0"}),
    passed(G::megatron, {"megatron_lm_recompute_granularity", K::text, "full or selective"}),
    passed(G::megatron, {"megatron_lm_recompute_method", K::text, "uniform or block"}),
    passed(G::megatron, {"megatron_lm_recompute_num_layers", K::integer, "layers to compute again"}),
    passed(G::megatron, {"megatron_lm_attention_backend", K::text, "how attention is computed"}),
    passed(G::megatron, {"megatron_lm_expert_model_parallel_size", K::integer, "degree of expert parallelism"}),
    passed(G::megatron, {"megatron_lm_context_parallel_size", K::integer, "degree of context parallelism"}),
    passed(G::megatron, {"megatron_lm_attention_dropout", K::number, "dropout of attention"}),
    passed(G::megatron, {"megatron_lm_hidden_dropout", K::number, "dropout of hidden states"}),
    passed(G::megatron, {"megatron_lm_attention_softmax_in_fp32", K::truth, "softmax of attention in 32 bits"}),
    passed(G::megatron, {"megatron_lm_expert_tensor_parallel_size", K::integer, "degree of tensor parallelism of experts"}),
    passed(G::megatron, {"megatron_lm_calculate_per_token_loss", K::truth, "average the loss over tokens"}),
    passed(G::megatron, {"megatron_lm_use_rotary_position_embeddings", K::truth, "rotary positions"}),

    passed(G::fp8, {"fp8_backend", K::text, "torchao, TransformerEngine or MS-AMP", kNoFallback, "ao te msamp"}),
    passed(G::fp8, {"fp8_use_autocast_during_eval", K::on, "also while evaluating (te)", "false"}),
    passed(G::fp8, {"fp8_margin", K::integer, "margin of the scaling factor (te)", "0"}),
    passed(G::fp8, {"fp8_interval", K::integer, "steps between new scaling factors (te)", "1"}),
    passed(G::fp8, {"fp8_format", K::text, "format of the numbers (te)", "HYBRID", "HYBRID E4M3 E5M2"}),
    passed(G::fp8, {"fp8_amax_history_len", K::integer, "length of the history of maxima (te)", "1024"}),
    passed(G::fp8, {"fp8_amax_compute_algo", K::text, "how a factor is made of it (te)", "most_recent", "max most_recent"}),
    own(G::fp8,
        {"fp8_override_linear_precision", K::booleans,
         "higher precision for forward, gradient of inputs, gradient of weights: three of true and false, by commas (te)",
         "false,false,false"},
        &S::fp8_override_linear_precision),
    passed(G::fp8, {"fp8_opt_level", K::text, "what is kept in 8 bits (msamp)", "O2", "O1 O2"}),
    passed(G::fp8, {"fp8_enable_fsdp_float8_all_gather", K::bit, "gather weights in 8 bits (ao)", "true"}),
    passed(G::fp8, {"fp8_pad_inner_dim", K::bit, "pad matrices to a size that 8 bits need (ao)", "true"}),

    own(G::without_effect, {"aws_access_key_id", K::text, "SageMaker jobs are not started from here"}, &S::aws_access_key_id),
    own(G::without_effect, {"aws_secret_access_key", K::text, "SageMaker jobs are not started from here"},
        &S::aws_secret_access_key),

    own(G::torchrun, {"nproc_per_node", K::text, "processes to start on each machine; gpu: one for each GPU"},
        &S::nproc_per_node),
    own(G::torchrun, {"nnodes", K::integer, "the same as --num_machines"}, &S::num_machines, "num_machines"),
    own(G::torchrun, {"node_rank", K::integer, "the same as --machine_rank"}, &S::machine_rank, "machine_rank"),
    own(G::torchrun, {"master_addr", K::text, "the same as --main_process_ip"}, &S::main_process_ip, "main_process_ip"),
    own(G::torchrun, {"master_port", K::integer, "the same as --main_process_port"}, &S::main_process_port, "main_process_port"),
    own(G::torchrun,
        {.name = "np", .kind = K::integer, .help = "the same as --num_processes; -np too", .letter = 'n', .single_dash = true},
        &S::num_processes, "num_processes"),

    own(G::mpi, {"mpirun_hostfile", K::file, "start the processes with mpirun, on the machines in this file"},
        &S::mpirun_hostfile),

    passed(G::parallelism, {"parallelism_config_dp_replicate_size", K::integer, "processes with copies of the model", "1"}),
    passed(G::parallelism, {"parallelism_config_dp_shard_size", K::integer, "processes that share each copy", "1"}),
    passed(G::parallelism, {"parallelism_config_tp_size", K::integer, "processes that share each tensor", "1"}),
    passed(G::parallelism, {"parallelism_config_cp_size", K::integer, "processes that share a context", "1"}, kByName,
           &S::parallelism_config_cp_size),
    passed(G::parallelism, {"parallelism_config_cp_backend", K::text, "how contexts are shared", "torch", "torch"}),
    passed(G::parallelism, {"parallelism_config_cp_comm_strategy", K::text, "allgather or alltoall", "allgather"}),
    passed(G::parallelism, {"parallelism_config_sp_size", K::integer, "processes that share a sequence", "1"}, kByName,
           &S::parallelism_config_sp_size),
    passed(G::parallelism, {"parallelism_config_sp_backend", K::text, "how sequences are shared", "deepspeed", "deepspeed"}),
    passed(G::parallelism, {"parallelism_config_sp_seq_length", K::text, "length of the sequences"}),
    passed(G::parallelism, {"parallelism_config_sp_seq_length_is_variable", K::boolean, "that length changes", "true"}),
    passed(G::parallelism, {"parallelism_config_sp_attn_implementation", K::text, "how attention is computed", "sdpa"}),
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
