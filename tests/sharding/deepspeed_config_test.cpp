#include "sharding/deepspeed_config.h"

#include <accelerate/core/error.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "support/error_text.h"
#include "support/temporary_folder.h"

namespace {

using accelerate::ConfigError;
using accelerate::Precision;
using accelerate::ShardingStrategy;
using accelerate::detail::DeepSpeedSettings;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;
using DeepSpeedVariables = std::map<std::string, std::string>;

DeepSpeedSettings deepspeed_read(DeepSpeedVariables table) {
  table.emplace("ACCELERATE_USE_DEEPSPEED", "true");
  table.emplace("ACCELERATE_LOG_LEVEL", "critical");
  return *accelerate::detail::deepspeed_settings_from(
      [table = std::move(table)](const std::string& name) -> std::optional<std::string> {
        const auto found = table.find(name);
        return found == table.end() ? std::nullopt : std::optional(found->second);
      });
}

DeepSpeedSettings with_document(const std::string& text, DeepSpeedVariables table = {}) {
  table["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = text;
  return deepspeed_read(std::move(table));
}

std::string deepspeed_refusal(const DeepSpeedVariables& table) {
  return message_of<ConfigError>([&] { deepspeed_read(table); });
}

std::string document_refusal(const std::string& text, const DeepSpeedVariables& table = {}) {
  return message_of<ConfigError>([&] { with_document(text, table); });
}

/// A configuration with `more` beside the section that is always needed.
std::string document_of(const std::string& more, const std::string& zero = "\"stage\": 3") {
  return "{\"zero_optimization\": {" + zero + "}" + (more.empty() ? "" : ", ") + more + "}";
}

TEST(DeepSpeedConfig, NothingIsReadUnlessTheRunUsesDeepSpeed) {
  const auto nothing = [](const std::string&) { return std::optional<std::string>(); };
  EXPECT_EQ(accelerate::detail::deepspeed_settings_from(nothing), std::nullopt);
}

TEST(DeepSpeedConfig, WithoutVariablesItIsStage2ClippedAt1AsInPython) {
  const auto settings = deepspeed_read({});
  EXPECT_EQ(settings.zero_stage, 2);
  EXPECT_EQ(settings.fsdp.sharding_strategy, ShardingStrategy::shard_grad_op);
  EXPECT_EQ(settings.gradient_accumulation_steps, std::nullopt);
  EXPECT_EQ(settings.gradient_clipping, 1.0);
  EXPECT_EQ(settings.mixed_precision, Precision::no);
  EXPECT_FALSE(settings.zero3_init_flag);
  EXPECT_FALSE(settings.fsdp.cpu_offload);
}

TEST(DeepSpeedConfig, StagesAreStrategies) {
  const ShardingStrategy strategies[] = {ShardingStrategy::no_shard, ShardingStrategy::shard_grad_op,
                                         ShardingStrategy::shard_grad_op, ShardingStrategy::full_shard};
  for (int stage = 0; stage < 4; ++stage) {
    const auto settings = deepspeed_read({{"ACCELERATE_DEEPSPEED_ZERO_STAGE", std::to_string(stage)}});
    EXPECT_EQ(settings.fsdp.sharding_strategy, strategies[stage]);
    EXPECT_EQ(settings.zero3_init_flag, stage == 3);
    EXPECT_EQ(settings.zero_stage, with_document(document_of("", "\"stage\": " + std::to_string(stage))).zero_stage);
  }
  EXPECT_EQ(with_document("{\"zero_optimization\": {}}").fsdp.sharding_strategy, ShardingStrategy::no_shard)
      << "a file that names no stage has DeepSpeed's default";
}

TEST(DeepSpeedConfig, EveryVariableReachesItsSetting) {
  const auto settings = deepspeed_read({{"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"},
                                        {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"},
                                        {"ACCELERATE_GRADIENT_CLIPPING", "0.5"},
                                        {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "cpu"},
                                        {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "cpu"},
                                        {"ACCELERATE_DEEPSPEED_ZERO3_INIT", "false"},
                                        {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "true"},
                                        {"ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "Expert,Router"},
                                        {"ACCELERATE_MIXED_PRECISION", "bf16"}});
  EXPECT_EQ(settings.gradient_accumulation_steps, 4);
  EXPECT_EQ(settings.gradient_clipping, 0.5);
  EXPECT_TRUE(settings.fsdp.cpu_offload);
  EXPECT_FALSE(settings.zero3_init_flag);
  EXPECT_TRUE(settings.save_16bit_model);
  EXPECT_EQ(settings.fsdp.transformer_layer_classes, (std::vector<std::string>{"Expert", "Router"}));
  EXPECT_EQ(settings.mixed_precision, Precision::bf16);
  EXPECT_EQ(deepspeed_read({{"ACCELERATE_GRADIENT_CLIPPING", "0"}}).gradient_clipping, std::nullopt);
}

TEST(DeepSpeedConfig, ADocumentIsAFileTextOrBase64) {
  const accelerate::testing::TemporaryFolder folder;
  std::ofstream(folder / "ds.json") << document_of("", "\"stage\": 1");
  EXPECT_EQ(with_document(folder / "ds.json").zero_stage, 1);
  EXPECT_EQ(with_document(" " + document_of("", "\"stage\": 1")).zero_stage, 1);
  EXPECT_EQ(with_document("eyJ6ZXJvX29wdGltaXphdGlvbiI6IHsic3RhZ2UiOiAxfX0=").zero_stage, 1);
  expect_parts(document_refusal(folder / "none.json"), {"ACCELERATE_DEEPSPEED_CONFIG_FILE=", "none.json", "base64"});
  expect_parts(document_refusal("{\"zero_optimization\": {\"stage\": }"), {"invalid JSON"});
  std::ofstream(folder / "list.json") << "[]";
  expect_parts(document_refusal(folder / "list.json"), {"list.json", "mapping"});
  std::ofstream(folder / "deep.json") << std::string(100000, '[');
  expect_parts(document_refusal(folder / "deep.json"), {"deep.json", "nesting"});
}

TEST(DeepSpeedConfig, AutoIsFilledAsPythonFillsIt) {
  const std::string text = document_of(
      R"("gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
         "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"})",
      R"("stage": "auto", "offload_optimizer": {"device": "auto"}, "stage3_gather_16bit_weights_on_model_save": "auto",
         "stage3_prefetch_bucket_size": "auto")");
  const auto alone = with_document(text);
  EXPECT_EQ(alone.zero_stage, 2);
  EXPECT_EQ(alone.gradient_accumulation_steps, std::nullopt);
  EXPECT_EQ(alone.gradient_clipping, 1.0);
  EXPECT_EQ(alone.mixed_precision, Precision::no);
  EXPECT_FALSE(alone.fsdp.cpu_offload);
  const auto filled = with_document(text, {{"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"},
                                           {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"},
                                           {"ACCELERATE_GRADIENT_CLIPPING", "2.5"},
                                           {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "cpu"},
                                           {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "true"},
                                           {"ACCELERATE_MIXED_PRECISION", "fp16"}});
  EXPECT_EQ(filled.zero_stage, 3);
  EXPECT_EQ(filled.gradient_accumulation_steps, 8);
  EXPECT_EQ(filled.gradient_clipping, 2.5);
  EXPECT_TRUE(filled.fsdp.cpu_offload);
  EXPECT_TRUE(filled.save_16bit_model);
  EXPECT_EQ(filled.mixed_precision, Precision::fp16);
}

TEST(DeepSpeedConfig, AConcreteValueOfTheFileComesBeforeTheVariable) {
  const auto settings =
      with_document(document_of("\"gradient_accumulation_steps\": 2"),
                    {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"}, {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "1"}});
  EXPECT_EQ(settings.gradient_accumulation_steps, 2);
  EXPECT_EQ(settings.zero_stage, 3);
  EXPECT_EQ(with_document(document_of("")).gradient_accumulation_steps, 1) << "what the file leaves out";
  EXPECT_EQ(with_document(document_of("")).gradient_clipping, std::nullopt);
}

TEST(DeepSpeedConfig, SettingsThatTheFileMakesVoidAreRefused) {
  expect_parts(document_refusal(document_of(""), {{"ACCELERATE_CONFIG_DS_FIELDS", "deepspeed_config_file,zero_stage"}}),
               {"zero_stage", "deepspeed_config_file"});
  EXPECT_EQ(with_document(document_of(""), {{"ACCELERATE_CONFIG_DS_FIELDS", "deepspeed_config_file,zero3_init_flag"}}).zero_stage,
            3);
}

TEST(DeepSpeedConfig, APrecisionMustAgreeWithTheFile) {
  const std::string bf16 = document_of(R"("bf16": {"enabled": true})");
  EXPECT_EQ(with_document(bf16).mixed_precision, Precision::bf16);
  EXPECT_EQ(with_document(bf16, {{"ACCELERATE_MIXED_PRECISION", "bf16"}}).mixed_precision, Precision::bf16);
  expect_parts(document_refusal(bf16, {{"ACCELERATE_MIXED_PRECISION", "fp16"}}), {"mixed_precision is fp16", "bf16.enabled"});
  expect_parts(document_refusal(document_of(R"("bf16": {"enabled": false})"), {{"ACCELERATE_MIXED_PRECISION", "bf16"}}),
               {"mixed_precision is bf16", "bf16.enabled is false"});
  expect_parts(document_refusal(document_of(R"("bf16": {"enabled": true}, "fp16": {"enabled": true})")), {"both"});
}

TEST(DeepSpeedConfig, LossScalingIsThatOfTheFile) {
  const auto settings =
      with_document(document_of(R"("fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500,
                     "hysteresis": 2, "min_loss_scale": 1})"));
  EXPECT_EQ(settings.grad_scaler->init_scale, 4096);
  EXPECT_EQ(settings.grad_scaler->growth_interval, 500);
  expect_parts(document_refusal(document_of(R"("fp16": {"enabled": true, "loss_scale": 128})")), {"fp16.loss_scale is 128"});
}

TEST(DeepSpeedConfig, GradientsAreReducedInTheDtypeOfTheFile) {
  const auto settings = with_document(document_of(R"("bf16": {"enabled": true}, "communication_data_type": "fp32")"));
  EXPECT_EQ(settings.fsdp.mixed_precision->reduce_dtype, c10::ScalarType::Float);
  EXPECT_EQ(settings.fsdp.mixed_precision->param_dtype, c10::ScalarType::BFloat16);
  expect_parts(document_refusal(document_of(R"("communication_data_type": "int8")")), {"communication_data_type is \"int8\""});
}

TEST(DeepSpeedConfig, WhatOnlyTunesDeepSpeedIsAccepted) {
  const auto settings = with_document(document_of(
      R"("steps_per_print": 10, "wall_clock_breakdown": false, "zero_allow_untested_optimizer": true,
         "flops_profiler": {"enabled": false, "profile_step": 1})",
      R"("stage": 3, "overlap_comm": true, "contiguous_gradients": true, "reduce_bucket_size": 5e8, "sub_group_size": 1e9,
         "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 1e6,
         "stage3_param_persistence_threshold": "auto",
         "offload_param": {"device": "cpu", "pin_memory": true}, "offload_optimizer": {"device": "none", "nvme_path": null})"));
  EXPECT_TRUE(settings.fsdp.cpu_offload);
  EXPECT_EQ(settings.fsdp.min_num_params, 1000000);
}

TEST(DeepSpeedConfig, OffloadingToNvmeKeepsShardsAndOptimizerStateInOneFolder) {
  const auto settings = with_document(document_of("", R"("stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/second"},
             "offload_optimizer": {"device": "nvme", "nvme_path": "auto"})"),
                                      {{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "/first"}});
  EXPECT_EQ(settings.fsdp.offload_folder, "/first");
  EXPECT_EQ(with_document(document_of("", R"("stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/second"})"))
                .fsdp.offload_folder,
            "/second");
  EXPECT_EQ(with_document(document_of("", R"("stage": 3, "offload_param": {"device": "cpu", "nvme_path": "/unused"})"))
                .fsdp.offload_folder,
            "");
}

TEST(DeepSpeedConfig, ShardsInsideOfGroupsAreHybridSharding) {
  const auto settings = with_document(document_of("", "\"stage\": 3, \"mics_shard_size\": 4"));
  EXPECT_EQ(settings.fsdp.sharding_strategy, ShardingStrategy::hybrid_shard);
  EXPECT_EQ(settings.fsdp.shard_group_size, 4);
}

TEST(DeepSpeedConfig, AKeyThatIsNotSupportedIsNamedWithItsFullPath) {
  expect_parts(document_refusal(document_of("\"sparse_attention\": {}")), {"sparse_attention is not supported"});
  expect_parts(document_refusal(document_of("", "\"stage\": 3, \"overlap_com\": true")),
               {"zero_optimization.overlap_com is not supported", "zero_optimization.overlap_comm"});
  EXPECT_EQ(document_refusal(document_of("", "\"magic\": 3")),
            "DeepSpeed's zero_optimization.magic is not supported by C++ programs. Remove it from the DeepSpeed configuration.");
  expect_parts(document_refusal(document_of("", "\"" + std::string(500000, 'a') + "\": 3")), {"zero_optimization.aaaa", "..."});
  expect_parts(document_refusal(document_of("", "\"stage\": 3, \"zero_quantized_weights\": true")),
               {"zero_optimization.zero_quantized_weights is true", "expected false"});
  expect_parts(document_refusal(document_of("\"optimizer\": {\"type\": \"Adam\"}")), {"optimizer is not supported", "in code"});
  expect_parts(document_refusal(document_of("\"scheduler\": {\"type\": \"WarmupLR\"}")),
               {"scheduler is not supported", "in code"});
  expect_parts(document_refusal(document_of("\"tensorboard\": {\"enabled\": true}")), {"tensorboard.enabled is true"});
  expect_parts(document_refusal(document_of("\"bf16\": true")), {"bf16 is true", "section"});
  expect_parts(document_refusal("{\"train_batch_size\": 8}"), {"zero_optimization"});
}

TEST(DeepSpeedConfig, ARefusedValueIsNamed) {
  expect_parts(deepspeed_refusal({{"ACCELERATE_DEEPSPEED_ZERO_STAGE", "4"}}),
               {"ACCELERATE_DEEPSPEED_ZERO_STAGE=4", "0, 1, 2 or 3"});
  expect_parts(deepspeed_refusal({{"ACCELERATE_GRADIENT_CLIPPING", "much"}}), {"ACCELERATE_GRADIENT_CLIPPING=much"});
  expect_parts(deepspeed_refusal({{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "0"}}),
               {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS=0"});
  expect_parts(document_refusal(document_of("", "\"stage\": 5")), {"zero_optimization.stage is 5", "0 to 3"});
  expect_parts(deepspeed_refusal({{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme"}}),
               {"zero_optimization.offload_optimizer.nvme_path is \"none\"", "a folder"});
  expect_parts(deepspeed_refusal({{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "tape"}}),
               {"zero_optimization.offload_optimizer.device is \"tape\"", "none, cpu or nvme"});
  expect_parts(deepspeed_refusal({{"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "cpu"}}), {"offload_param.device", "stage 3"});
}

TEST(DeepSpeedConfig, ATrainBatchSizeMustBeWhatAStepTakes) {
  const DeepSpeedVariables four = {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "4"}};
  const auto sizes = [](const std::string& train) {
    return document_of("\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 3, \"train_batch_size\": " +
                       train);
  };
  EXPECT_EQ(with_document(sizes("24"), four).train_batch_size, 24);
  expect_parts(document_refusal(sizes("16"), four), {"train_batch_size is 16", "24 samples"});
  const auto later = with_document(document_of("\"train_batch_size\": 16"), four);
  accelerate::detail::check_train_batch_size(later, 4, 1, 4);
  EXPECT_THROW(accelerate::detail::check_train_batch_size(later, 8, 1, 4), ConfigError);
}

}  // namespace
