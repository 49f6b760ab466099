#include "config/wizard_sections.h"

namespace accelerate::detail {
namespace {

/// A file that is asked for only when it is wanted.
nlohmann::json ask_optional(Interview& interview, const std::string& key, const std::string& wanted, const std::string& text) {
  if (!interview.yes("use_" + key, wanted)) return nullptr;
  return interview.text(key, text);
}

}  // namespace

nlohmann::json ask_sagemaker(Interview& interview) {
  interview.tell(
      "Jobs on Amazon SageMaker are started by the Python package; programs of this one cannot run there. What follows writes "
      "the "
      "file that `accelerate launch` of the Python package takes. Credentials are not stored in it.");
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
    values["debug"] = interview.yes("debug", "Should collectives be checked while training? Mistakes are found; it is slower.");
    values["num_machines"] = interview.integer("num_machines", "How many machines do you want to use?", 1, 1);
  } else {
    interview.tell(
        "Accelerate 1.15 for Python writes such a file too, but refuses to read it back unless training is distributed.");
  }
  values["mixed_precision"] =
      interview.choice("mixed_precision", "Which mixed precision should be used?", {"no", "fp16", "bf16", "fp8"});
  return values;
}

}  // namespace accelerate::detail
