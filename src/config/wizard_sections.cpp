#include "config/wizard_sections.h"

namespace accelerate::detail {
namespace {

using nlohmann::json;

/// Asks the questions of one section and stores each answer under its own name.
class Section {
 public:
  Section(Interview& interview, std::string name) : interview_(interview), name_(std::move(name)) {}

  bool yes(const std::string& key, const std::string& text, bool fallback = false) {
    const bool answer = interview_.yes(name_ + "." + key, text, fallback);
    values_[key] = answer;
    return answer;
  }
  int64_t integer(const std::string& key, const std::string& text, int64_t fallback, int64_t least = 1) {
    const int64_t answer = interview_.integer(name_ + "." + key, text, fallback, least);
    values_[key] = answer;
    return answer;
  }
  void number(const std::string& key, const std::string& text, double fallback) {
    values_[key] = interview_.number(name_ + "." + key, text, fallback);
  }
  void text(const std::string& key, const std::string& text, std::optional<std::string> fallback = {}) {
    values_[key] = interview_.text(name_ + "." + key, text, std::move(fallback));
  }
  std::string choice(const std::string& key, const std::string& text, const std::vector<std::string>& options,
                     size_t fallback = 0) {
    const std::string answer = interview_.choice(name_ + "." + key, text, options, fallback);
    values_[key] = answer;
    return answer;
  }
  /// A question that decides which others are asked, and is not stored itself.
  bool wants(const std::string& what, const std::string& text, bool fallback = false) {
    return interview_.yes(name_ + "." + what, text, fallback);
  }
  json& operator[](const std::string& key) { return values_[key]; }
  Interview& interview() { return interview_; }
  json values() { return std::move(values_); }

 private:
  Interview& interview_;
  std::string name_;
  json values_ = json::object();
};

void ask_zero_stage(Section& section) {
  const std::vector<std::string> devices = {"none", "cpu", "nvme"};
  const std::string stage = section.interview().choice("deepspeed_config.zero_stage", "Which stage of ZeRO should DeepSpeed use?",
                                                       {"0", "1", "2", "3"}, 2, {"stage 0", "stage 1", "stage 2", "stage 3"});
  section["zero_stage"] = std::stoi(stage);
  if (stage >= "2") {
    const auto optimizer = section.choice("offload_optimizer_device", "Where should optimizer states be offloaded to?", devices);
    const auto parameters = section.choice("offload_param_device", "Where should parameters be offloaded to?", devices);
    if (parameters == "nvme")
      section.text("offload_param_nvme_path", "Which NVMe path should parameters be offloaded to?", "/nvme");
    if (optimizer == "nvme") {
      section.text("offload_optimizer_nvme_path", "Which NVMe path should optimizer states be offloaded to?", "/nvme");
    }
  }
  section.integer("gradient_accumulation_steps", "Over how many steps does your script accumulate gradients?", 1);
  if (section.wants("use_gradient_clipping", "Should gradients be clipped?")) {
    section.number("gradient_clipping", "What is the gradient clipping value?", 1.0);
  }
  if (stage == "3") section.yes("zero3_save_16bit_model", "Should 16-bit weights be saved when ZeRO stage 3 is used?");
}

void ask_deepspeed_machines(Section& section) {
  const auto launcher = section.choice("deepspeed_multinode_launcher", "Which multi-node launcher should DeepSpeed use?",
                                       {"pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"});
  if (launcher == "standard") return;
  section.text("deepspeed_hostfile", "Where is DeepSpeed's hostfile? Each of its lines reads `hostname slots=number_of_gpus`.");
  if (section.wants("use_exclusion_filter", "Should hosts or GPUs be excluded?")) {
    section.text("deepspeed_exclusion_filter", "What is DeepSpeed's exclusion filter?");
  }
  if (section.wants("use_inclusion_filter", "Should only some hosts or GPUs be included?")) {
    section.text("deepspeed_inclusion_filter", "What is DeepSpeed's inclusion filter?");
  }
}

void ask_wrap_policy(Section& section) {
  const auto policy = section.choice("fsdp_auto_wrap_policy", "Which auto-wrap policy should FSDP use?",
                                     {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"});
  if (policy == "SIZE_BASED_WRAP") {
    section.integer("fsdp_min_num_params", "What is the minimum number of parameters of a wrapped module?", 100'000'000, 0);
  } else if (policy == "TRANSFORMER_BASED_WRAP" &&
             !section.wants("use_no_split_modules",
                            "Should the `_no_split_modules` of the model be wrapped (Transformers models only)?")) {
    section.text(
        "fsdp_transformer_layer_cls_to_wrap",
        "Which classes of layers should be wrapped? Separate them by commas, as in `BertLayer,BertEmbeddings`; case matters.");
  }
}

void ask_transformer_engine(Section& section) {
  section.yes("use_autocast_during_eval", "Should FP8 autocast be used during evaluation? Metrics are mostly better without it.");
  section.integer("margin", "Which margin should be used for gradient scaling?", 0, 0);
  section.integer("interval", "Every how many steps should the scaling factor be recomputed?", 1);
  section.choice("fp8_format", "Which FP8 format should be used for weights?", {"HYBRID", "E4M3", "E5M2"});
  section.integer("amax_history_length", "How long should the amax history be for computing the scaling factor?", 1024);
  section.choice("amax_compute_algorithm", "Which algorithm should compute the scaling factor?", {"max", "most_recent"});
  json higher = {false, false, false};
  if (section.wants("override_linear_precision", "Should any of `fprop`, `dgrad`, `wgrad` run in higher precision?")) {
    size_t index = 0;
    for (const char* product : {"fprop", "dgrad", "wgrad"}) {
      higher[index++] = section.wants(product, std::string("Should `") + product + "` run in higher precision?");
    }
  }
  section["override_linear_precision"] = higher;
}

}  // namespace

nlohmann::json ask_dynamo(Interview& interview) {
  if (!interview.yes("use_dynamo", "Should your script be compiled with torch dynamo (Python scripts only)?"))
    return json::object();
  Section section(interview, "dynamo_config");
  const std::vector<std::string> backends = {
      "EAGER",  "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER",          "NVPRIMS_NVFUSER",     "CUDAGRAPHS", "OFI",
      "FX2TRT", "ONNXRT",    "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "TVM"};
  section.choice("dynamo_backend", "Which backend should dynamo use?", backends, 2);
  if (section.wants("customize", "Do you want to customize the defaults sent to torch.compile?")) {
    section.choice("dynamo_mode", "Which mode should be used?", {"default", "reduce-overhead", "max-autotune"});
    section.yes("dynamo_use_fullgraph", "Should the model be compiled as a single graph (fullgraph)?");
    section.yes("dynamo_use_dynamic", "Should dynamic shape tracing be used?");
    section.yes("dynamo_use_regional_compilation", "Should repeated blocks be compiled once (regional compilation)?");
  }
  return section.values();
}

nlohmann::json ask_deepspeed(Interview& interview, int64_t num_machines) {
  Section section(interview, "deepspeed_config");
  if (section.wants("use_config_file", "Do you have a DeepSpeed JSON configuration file?")) {
    section.text("deepspeed_config_file", "Where is DeepSpeed's JSON configuration file?", "none");
  } else {
    ask_zero_stage(section);
  }
  section.yes("zero3_init_flag", "Should `deepspeed.zero.Init` be used to build very large models under ZeRO stage 3?");
  if (section.wants("use_moe", "Does the model have a mixture of experts (MoE)?")) {
    section.text("deepspeed_moe_layer_cls_names",
                 "Which classes are its MoE layers? Separate them by commas, as in `JetMoEAttention,JetMoEBlock`; case matters.");
  }
  if (num_machines > 1) ask_deepspeed_machines(section);
  return section.values();
}

nlohmann::json ask_fsdp(Interview& interview) {
  Section section(interview, "fsdp_config");
  const auto version = interview.choice("fsdp_config.fsdp_version", "Which version of FSDP should be used?", {"1", "2"}, 1,
                                        {"version 1", "version 2"});
  const bool first = version == "1";
  section["fsdp_version"] = first ? 1 : 2;
  if (first) {
    // Python's wizard stores the strategy under this name too.
    section.choice("fsdp_reshard_after_forward", "What should be sharded?",
                   {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"});
  } else {
    section.yes("fsdp_reshard_after_forward", "Should parameters be sharded again after the forward pass?", true);
  }
  section.yes("fsdp_offload_params", "Should parameters and gradients be offloaded to the CPU?");
  ask_wrap_policy(section);
  if (first) {
    section.choice("fsdp_backward_prefetch", "Which backward prefetch policy should FSDP use?",
                   {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"});
  }
  const std::vector<std::string> first_types = {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"};
  const std::vector<std::string> second_types = {"SHARDED_STATE_DICT", "FULL_STATE_DICT"};
  section.choice("fsdp_state_dict_type", "Which kind of state dict should be saved?", first ? first_types : second_types);
  if (first) {
    section.yes("fsdp_forward_prefetch", "Should parameters be prefetched in the forward pass?");
    section.yes("fsdp_use_orig_params", "Should the original parameters be kept (`use_orig_params`)?", true);
  }
  const bool efficient = section.yes("fsdp_cpu_ram_efficient_loading",
                                     "Should only rank 0 load the pretrained weights (Transformers models only)?", true);
  if (first && efficient) section["fsdp_sync_module_states"] = true;
  if (first && !efficient)
    section.yes("fsdp_sync_module_states", "Should each FSDP unit broadcast its parameters from rank 0 at the start?", true);
  section.yes("fsdp_activation_checkpointing",
              "Should activations be recomputed in the backward pass (activation checkpointing)?");
  return section.values();
}

nlohmann::json ask_parallelism(Interview& interview) {
  if (!interview.yes("use_parallelism_config", "Do you want to combine several kinds of parallelism?")) return json::object();
  Section section(interview, "parallelism_config");
  section.integer("parallelism_config_dp_replicate_size", "How many replicas should data parallelism have?", 1);
  section.integer("parallelism_config_dp_shard_size", "Over how many processes should FSDP shard?", 1);
  section.integer("parallelism_config_tp_size", "What is the tensor parallelism degree?", 1);
  if (section.integer("parallelism_config_cp_size", "What is the context parallelism degree?", 1) > 1) {
    section.choice("parallelism_config_cp_comm_strategy", "Which communication strategy should context parallelism use?",
                   {"allgather", "alltoall"});
  }
  return section.values();
}

nlohmann::json ask_megatron(Interview& interview) {
  Section section(interview, "megatron_lm_config");
  if (section.integer("megatron_lm_tp_degree", "What is the tensor parallelism degree?", 1) > 1) {
    section.yes("megatron_lm_sequence_parallelism", "Should sequence parallelism be used?", true);
  }
  if (section.integer("megatron_lm_pp_degree", "What is the pipeline parallelism degree?", 1) > 1) {
    section.integer("megatron_lm_num_micro_batches", "How many micro-batches should there be?", 1);
  }
  section.yes("megatron_lm_recompute_activations", "Should some activations be recomputed in the backward pass?", true);
  section.yes("megatron_lm_use_distributed_optimizer",
              "Should the distributed optimizer shard its state and gradients over data parallel ranks?", true);
  section.number("megatron_lm_gradient_clipping", "What is the gradient clipping value, by global L2 norm (0 disables it)?", 1.0);
  return section.values();
}

nlohmann::json ask_fp8(Interview& interview) {
  Section section(interview, "fp8_config");
  const auto backend = interview.choice("fp8_config.backend", "Which package should compute in FP8?", {"AO", "TE", "MSAMP"}, 0,
                                        {"torchao", "TransformerEngine", "MS-AMP"});
  section["backend"] = backend;
  if (backend == "TE") ask_transformer_engine(section);
  if (backend == "MSAMP") section.choice("optimization_level", "Which level of optimization should be used?", {"O1", "O2"}, 1);
  if (backend == "AO") {
    section.yes("enable_fsdp_float8_all_gather", "Should FSDP2 all-gather in float8? It is faster.", true);
    section.yes("pad_inner_dim",
                "Should the inner dimension of weight matrices be padded? float8 matmuls need it; it may take more memory.",
                true);
  }
  return section.values();
}

}  // namespace accelerate::detail
