#include "config/wizard_sections.h"

namespace accelerate::detail {
namespace {

/// An optional answer: first whether to give one, then which.
nlohmann::json ask_optional(Interview& interview, const std::string& key, const std::string& wanted, const std::string& text) {
  if (!interview.yes("use_" + key, wanted)) return nullptr;
  return interview.text(key, text);
}

}  // namespace

nlohmann::json ask_sagemaker(Interview& interview) {
  interview.tell(
      "Only the Python package launches Amazon SageMaker jobs; C++ programs cannot run there. The following questions write a "
      "config file for Python's `accelerate launch`. It stores no credentials.");
  nlohmann::json values = {{"compute_environment", "AMAZON_SAGEMAKER"}, {"use_cpu", false}};
  if (interview.yes("use_profile", "Do you have an AWS profile?", true)) {
    values["profile"] = interview.text("profile", "What is the name of your AWS profile?", "default");
  }
  values["region"] = interview.text("region", "In which AWS region should jobs run?", "us-east-1");
  values["iam_role_name"] = interview.text("iam_role_name", "What is the name of the IAM role that runs training jobs?");
  values["image_uri"] =
      ask_optional(interview, "image_uri", "Do you want to use a Docker image of your own?", "Which Docker image?");
  values["sagemaker_inputs_file"] =
      ask_optional(interview, "sagemaker_inputs_file", "Do you want to provide input channels with data locations?",
                   "Where is the TSV file of inputs (channel_name, data_location)?");
  values["sagemaker_metrics_file"] = ask_optional(interview, "sagemaker_metrics_file", "Do you want to use SageMaker's metrics?",
                                                  "Where is the TSV file of metrics (metric_name, metric_regex)?");
  const auto type = interview.choice("distributed_type", "How should training be distributed?", {"NO", "DATA_PARALLEL"}, 0,
                                     {"No distributed training", "Data parallelism"});
  values["distributed_type"] = type;
  values["dynamo_config"] = ask_dynamo(interview);
  const std::string instance = "Which type of EC2 instance should be used?";
  values["ec2_instance_type"] =
      type == "NO" ? interview.text("ec2_instance_type", instance, "ml.p3.2xlarge")
                   : interview.choice("ec2_instance_type", instance, {"ml.p3.16xlarge", "ml.p3dn.24xlarge", "ml.p4dn.24xlarge"});
  values["debug"] = false;
  if (type != "NO") {
    values["debug"] =
        interview.yes("debug", "Should collectives be checked for mismatches while training? This finds errors but is slower.");
    values["num_machines"] = interview.integer("num_machines", "How many machines do you want to use?", 1, 1);
  } else {
    interview.tell("Python Accelerate 1.15 writes the same file, but cannot read it back unless training is distributed.");
  }
  values["mixed_precision"] =
      interview.choice("mixed_precision", "Which mixed precision should be used?", {"no", "fp16", "bf16", "fp8"});
  return values;
}

}  // namespace accelerate::detail
