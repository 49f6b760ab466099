#include "config/config_schema.h"

#include <algorithm>
#include <array>

namespace accelerate::detail {
namespace {

constexpr std::string_view kEnvironments = "LOCAL_MACHINE AMAZON_SAGEMAKER";
constexpr std::string_view kPrecisions = "no fp16 bf16 fp8";
constexpr std::string_view kLocalTypes =
    "NO MULTI_CPU MULTI_GPU MULTI_NPU MULTI_MLU MULTI_SDAA MULTI_MUSA MULTI_XPU MULTI_HPU MULTI_NEURON DEEPSPEED FSDP XLA "
    "MEGATRON_LM";
constexpr std::string_view kSageMakerTypes = "NO DATA_PARALLEL MODEL_PARALLEL";

constexpr std::string_view kNoCompiler = "LibTorch has no torch.compile";
constexpr std::string_view kNoMegatron = "Megatron-LM is a Python package";
constexpr std::string_view kNoFp8 = "the fp8 recipes are Python packages (TransformerEngine, torchao, MS-AMP)";
constexpr std::string_view kNoTpu = "LibTorch has no XLA devices";
constexpr std::string_view kNoSageMaker = "only the Python package launches Amazon SageMaker jobs";

using enum ConfigType;

constexpr std::array kLocalKeys = {
    ConfigKey{"compute_environment", text, "\"LOCAL_MACHINE\"", kEnvironments},
    ConfigKey{"distributed_type", text, "", kLocalTypes},
    ConfigKey{"mixed_precision", text, "null", kPrecisions},
    ConfigKey{"use_cpu", flag, "false"},
    ConfigKey{"debug", flag, "false"},
    ConfigKey{"num_processes", integer, "-1"},
    ConfigKey{"machine_rank", integer, "0"},
    ConfigKey{"num_machines", integer, "1"},
    ConfigKey{"gpu_ids", text, "null"},
    ConfigKey{"main_process_ip", text, "null"},
    ConfigKey{"main_process_port", integer, "null"},
    ConfigKey{"rdzv_backend", text, "\"static\""},
    ConfigKey{"same_network", flag, "false"},
    ConfigKey{"main_training_function", text, "\"main\""},
    ConfigKey{"enable_cpu_affinity", flag, "false"},
    ConfigKey{"fp8_config", mapping, "{}", {}, kNoFp8},
    ConfigKey{"deepspeed_config", mapping, "{}"},
    ConfigKey{"fsdp_config", mapping, "{}"},
    ConfigKey{"parallelism_config", mapping, "{}"},
    ConfigKey{"megatron_lm_config", mapping, "{}", {}, kNoMegatron},
    ConfigKey{"mpirun_config", mapping, "{}"},
    ConfigKey{"downcast_bf16", flag_or_text, "false", {}, kNoTpu},
    ConfigKey{"tpu_name", text, "null", {}, kNoTpu},
    ConfigKey{"tpu_zone", text, "null", {}, kNoTpu},
    ConfigKey{"tpu_use_cluster", flag, "false", {}, kNoTpu},
    ConfigKey{"tpu_use_sudo", flag, "false", {}, kNoTpu},
    ConfigKey{"command_file", text, "null", {}, kNoTpu},
    ConfigKey{"commands", list, "null", {}, kNoTpu},
    ConfigKey{"tpu_vm", list, "null", {}, kNoTpu},
    ConfigKey{"tpu_env", list, "null", {}, kNoTpu},
    ConfigKey{"dynamo_config", mapping, "{}", {}, kNoCompiler},
};

constexpr std::array kSageMakerKeys = {
    ConfigKey{"compute_environment", text, "\"LOCAL_MACHINE\"", kEnvironments, kNoSageMaker},
    ConfigKey{"distributed_type", text, "", kSageMakerTypes, kNoSageMaker},
    ConfigKey{"mixed_precision", text, "null", kPrecisions, kNoSageMaker},
    ConfigKey{"use_cpu", flag, "false", {}, kNoSageMaker},
    ConfigKey{"debug", flag, "false", {}, kNoSageMaker},
    ConfigKey{"ec2_instance_type", text, "", {}, kNoSageMaker},
    ConfigKey{"iam_role_name", text, "", {}, kNoSageMaker},
    ConfigKey{"image_uri", text, "null", {}, kNoSageMaker},
    ConfigKey{"profile", text, "null", {}, kNoSageMaker},
    ConfigKey{"region", text, "\"us-east-1\"", {}, kNoSageMaker},
    ConfigKey{"num_machines", integer, "1", {}, kNoSageMaker},
    ConfigKey{"gpu_ids", text, "\"all\"", {}, kNoSageMaker},
    ConfigKey{"base_job_name", text, "\"accelerate-sagemaker-1\"", {}, kNoSageMaker},
    ConfigKey{"pytorch_version", text, "\"1.10.2\"", {}, kNoSageMaker},
    ConfigKey{"transformers_version", text, "\"4.17.0\"", {}, kNoSageMaker},
    ConfigKey{"py_version", text, "\"py38\"", {}, kNoSageMaker},
    ConfigKey{"sagemaker_inputs_file", text, "null", {}, kNoSageMaker},
    ConfigKey{"sagemaker_metrics_file", text, "null", {}, kNoSageMaker},
    ConfigKey{"additional_args", mapping, "null", {}, kNoSageMaker},
    ConfigKey{"dynamo_config", mapping, "{}", {}, kNoSageMaker},
    ConfigKey{"enable_cpu_affinity", flag, "false", {}, kNoSageMaker},
};

}  // namespace

std::span<const ConfigKey> local_config_keys() { return kLocalKeys; }

std::span<const ConfigKey> sagemaker_config_keys() { return kSageMakerKeys; }

const ConfigKey* find_config_key(std::span<const ConfigKey> keys, std::string_view name) {
  const auto found = std::find_if(keys.begin(), keys.end(), [name](const ConfigKey& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

std::vector<std::string> config_choices(const ConfigKey& key) {
  std::vector<std::string> words;
  for (std::string_view rest = key.choices; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    words.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return words;
}

std::string expected_of(const ConfigKey& key) {
  if (!key.choices.empty()) {
    std::string text = "one of ";
    for (const auto& word : config_choices(key)) text += (text.size() > 7 ? ", " : "") + word;
    return text;
  }
  switch (key.type) {
    case ConfigType::integer:
      return "an integer";
    case ConfigType::flag:
    case ConfigType::flag_or_text:
      return "true or false";
    case ConfigType::mapping:
      return "a mapping of keys to values";
    case ConfigType::list:
      return "a list of strings";
    case ConfigType::text:
      break;
  }
  return "a string, in quotes if it looks like another type";
}

}  // namespace accelerate::detail
