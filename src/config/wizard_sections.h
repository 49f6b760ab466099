#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "config/interview.h"

/// The parts of the wizard that fill a section of the file. Each returns the section's mapping; an empty one is left out.
namespace accelerate::detail {

/// `dynamo_config`: torch.compile.
nlohmann::json ask_dynamo(Interview& interview);
/// `deepspeed_config`, once DeepSpeed is chosen.
nlohmann::json ask_deepspeed(Interview& interview, int64_t num_machines);
/// `fsdp_config`, once FSDP is chosen.
nlohmann::json ask_fsdp(Interview& interview);
/// `parallelism_config`, for version 2 of FSDP.
nlohmann::json ask_parallelism(Interview& interview);
/// `megatron_lm_config`, once Megatron-LM is chosen.
nlohmann::json ask_megatron(Interview& interview);
/// `fp8_config`, once fp8 is chosen.
nlohmann::json ask_fp8(Interview& interview);
/// Every value of a configuration for Amazon SageMaker.
nlohmann::json ask_sagemaker(Interview& interview);

}  // namespace accelerate::detail
