#include "config/config_wizard.h"

#include <fmt/format.h>

#include <filesystem>

#include "config/config_schema.h"
#include "config/interview.h"
#include "config/wizard_sections.h"

namespace accelerate::detail {
namespace {

using nlohmann::json;

struct MachineType {
  const char* type;
  const char* shown;
  /// What `num_processes` counts.
  const char* units;
};

constexpr std::array kMachineTypes = {
    MachineType{"NO", "No distributed training", ""}, MachineType{"MULTI_CPU", "multi-CPU", "processes"},
    MachineType{"MULTI_XPU", "multi-XPU", "XPUs"},    MachineType{"MULTI_HPU", "multi-HPU", "HPUs"},
    MachineType{"MULTI_GPU", "multi-GPU", "GPUs"},    MachineType{"MULTI_NPU", "multi-NPU", "NPUs"},
    MachineType{"MULTI_MLU", "multi-MLU", "MLUs"},    MachineType{"MULTI_SDAA", "multi-SDAA", "SDAAs"},
    MachineType{"MULTI_MUSA", "multi-MUSA", "MUSAs"}, MachineType{"MULTI_NEURON", "multi-NEURON", "Neuron cores"},
    MachineType{"XLA", "TPU", "TPU cores"},
};

/// The local branch: `values` grows with the answers, and later questions look at it.
class LocalWizard {
 public:
  LocalWizard(Interview interview, const Environment& environment) : interview_(interview), environment_(environment) {}

  json ask() {
    ask_machine_type();
    if (is_multi()) ask_machines();
    values_["use_cpu"] =
        type() == "MULTI_CPU" ||
        (type() == "NO" && interview_.yes("use_cpu", "Should training run on the CPU only, even if there are GPUs?"));
    if (type() == "MULTI_CPU") ask_mpirun();
    values_["dynamo_config"] = ask_dynamo(interview_);
    ask_engine();
    ask_processes();
    if (!values_["use_cpu"] && (is_multi() || type() == "NO")) {
      values_["gpu_ids"] =
          interview_.text("gpu_ids", "Which GPUs (by id) of this machine should be used? Give a comma-separated list.", "all");
    }
    if (!values_["use_cpu"] && (type() == "NO" || type() == "MULTI_GPU")) {
      values_["enable_cpu_affinity"] = interview_.yes(
          "enable_cpu_affinity", "Should each process be pinned to the CPUs near its GPU (NUMA affinity; NVIDIA only)?");
    }
    type() == "XLA" ? ask_tpu() : ask_precision();
    tell_without_effect();
    return std::move(values_);
  }

 private:
  std::string type() const { return values_.at("distributed_type"); }
  bool is_multi() const { return type().starts_with("MULTI_"); }
  bool is_multi_device() const { return is_multi() && type() != "MULTI_CPU"; }

  void ask_machine_type() {
    std::vector<std::string> types, shown;
    for (const MachineType& machine : kMachineTypes) {
      types.emplace_back(machine.type);
      shown.emplace_back(machine.shown);
    }
    values_["distributed_type"] = interview_.choice("distributed_type", "Which type of machine are you using?", types, 0, shown);
    for (const MachineType& machine : kMachineTypes) {
      if (type() == machine.type) units_ = machine.units;
    }
  }

  void ask_machines() {
    num_machines_ = interview_.integer("num_machines", "How many machines will you use?", 1, 1, 1'000'000);
    values_["num_machines"] = num_machines_;
    if (num_machines_ > 1) {
      values_["machine_rank"] =
          interview_.integer("machine_rank", "What is the rank of this machine, from 0?", 0, 0, num_machines_ - 1);
      values_["main_process_ip"] = interview_.text("main_process_ip", "What is the address of the machine with rank 0?");
      values_["main_process_port"] =
          interview_.integer("main_process_port", "Which port of that machine should be used for the rendezvous?", {}, 0, 65535);
      values_["same_network"] = interview_.yes("same_network", "Are all machines in the same local network?", true);
      if (!values_["same_network"]) {
        values_["rdzv_backend"] =
            interview_.text("rdzv_backend", "Which rendezvous backend should be used (static, c10d, ...)?", "static");
      }
    }
    values_["debug"] =
        interview_.yes("debug", "Should collectives be checked for mismatches while training? This finds errors but is slower.");
  }

  void ask_mpirun() {
    if (!interview_.yes("use_mpirun", "Should accelerate start the processes with mpirun?")) return;
    std::string file = interview_.text("mpirun_config.mpirun_hostfile", "Where is the hostfile of mpirun?", "~/hostfile");
    if (file == "~" || file.starts_with("~/")) file.replace(0, 1, environment_("HOME").value_or("~"));
    values_["mpirun_config"] = {{"mpirun_hostfile", file}};
  }

  /// DeepSpeed, FSDP or Megatron-LM: at most one of them, where the machine has devices for it.
  void ask_engine() {
    const bool neuron = type() == "MULTI_NEURON";  // none of them runs there
    if ((is_multi_device() || type() == "NO") && !neuron && interview_.yes("use_deepspeed", "Do you want to use DeepSpeed?")) {
      values_["distributed_type"] = "DEEPSPEED";
      values_["deepspeed_config"] = ask_deepspeed(interview_, num_machines_);
    }
    if (is_multi_device() && !neuron && interview_.yes("use_fsdp", "Do you want to use FullyShardedDataParallel?")) {
      values_["distributed_type"] = "FSDP";
      values_["fsdp_config"] = ask_fsdp(interview_);
      if (values_["fsdp_config"]["fsdp_version"] == 2) values_["parallelism_config"] = ask_parallelism(interview_);
    }
    if (type() == "MULTI_GPU" && interview_.yes("use_megatron_lm", "Do you want to use Megatron-LM (Python scripts only)?")) {
      values_["distributed_type"] = "MEGATRON_LM";
      values_["megatron_lm_config"] = ask_megatron(interview_);
    }
  }

  void ask_processes() {
    values_["num_processes"] = 1;
    if (type() == "NO") return;
    const bool engine = !is_multi() && type() != "XLA";
    const std::string text = fmt::format("How many {} should be used in total, over all machines?", engine ? "GPUs" : units_);
    // One GPU on one machine is not multi-GPU, and Python's wizard fails there with an error.
    const bool needs_two = type() == "MULTI_GPU" && num_machines_ == 1;
    values_["num_processes"] =
        needs_two
            ? interview_.integer("num_processes", text + " At least 2: training on one GPU is not distributed.", {}, 2, 1'000'000)
            : interview_.integer("num_processes", text, 1, 1, 1'000'000);
  }

  void ask_precision() {
    if (values_.contains("deepspeed_config") && values_["deepspeed_config"].contains("deepspeed_config_file")) return;
    values_["mixed_precision"] =
        interview_.choice("mixed_precision", "Which mixed precision should be used?", {"no", "fp16", "bf16", "fp8"});
    if (values_["mixed_precision"] == "fp8") values_["fp8_config"] = ask_fp8(interview_);
  }

  void ask_tpu() {
    values_["mixed_precision"] = "no";
    values_["main_training_function"] =
        interview_.text("main_training_function", "Which function of your script should run in every process?", "main");
    values_["tpu_use_cluster"] = interview_.yes("tpu_use_cluster", "Are you using a TPU cluster?");
    if (!values_["tpu_use_cluster"]) return;
    values_["tpu_name"] = interview_.text("tpu_name", "What is the name of the TPU cluster?");
    values_["tpu_zone"] = interview_.text("tpu_zone", "In which zone is the TPU cluster?");
    values_["tpu_use_sudo"] = interview_.yes("tpu_use_sudo", "Should `sudo` be used to run a script in a pod?");
    if (interview_.yes("use_commands", "Should something run in each pod when it starts?")) ask_pod_commands();
    values_["tpu_vm"] =
        ask_list("tpu_vm", "Which Compute VM instances should be used, if not an instance group? Separate them by commas.");
    values_["tpu_env"] = ask_list("tpu_env", "Which environment variables should be set in each pod? Separate them by commas.");
  }

  void ask_pod_commands() {
    if (interview_.yes("use_command_file", "Are the commands in a bash script?")) {
      const std::string file = interview_.text("command_file", "Where is that script?");
      values_["command_file"] = std::filesystem::absolute(file).lexically_normal().string();
      return;
    }
    values_["commands"] = json::array();
    do {
      values_["commands"].push_back(interview_.text("commands", "Enter a single command."));
    } while (interview_.yes("another_command", "Do you want to add another command?"));
  }

  /// Nothing is a list of one empty text, as Python splits it.
  json ask_list(const std::string& name, const std::string& text) {
    json list = json::array();
    std::string rest = interview_.text(name, text, "");
    for (size_t comma = rest.find(','); comma != std::string::npos; comma = rest.find(',')) {
      list.push_back(rest.substr(0, comma));
      rest.erase(0, comma + 1);
    }
    list.push_back(rest);
    return list;
  }

  /// Says which of the answers are for Python programs only.
  void tell_without_effect() {
    for (const ConfigKey& key : local_config_keys()) {
      const auto section = values_.find(key.name);
      if (key.without_effect.empty() || section == values_.end() || !section->is_object() || section->empty()) continue;
      interview_.tell(
          fmt::format("{} is kept for Python programs; it has no effect on C++ programs: {}.", key.name, key.without_effect));
    }
  }

  Interview interview_;
  const Environment& environment_;
  std::string units_;
  int64_t num_machines_ = 1;
  // What Python's wizard writes without asking.
  json values_ = {{"compute_environment", "LOCAL_MACHINE"},
                  {"debug", false},
                  {"same_network", true},
                  {"downcast_bf16", "no"},
                  {"tpu_env", json::array()}};
};

}  // namespace

Config ask_for_config(Asker& asker, const std::string& path, const Environment& environment) {
  Interview interview(asker);
  const auto place = interview.choice("compute_environment", "In which compute environment are you running?",
                                      {"LOCAL_MACHINE", "AMAZON_SAGEMAKER"}, 0, {"This machine", "AWS (Amazon SageMaker)"});
  const bool local = place == "LOCAL_MACHINE";
  return make_config(local ? LocalWizard(interview, environment).ask() : ask_sagemaker(interview), path);
}

}  // namespace accelerate::detail
