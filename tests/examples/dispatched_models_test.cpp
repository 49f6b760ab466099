// Real models whose weights are wherever they fit.
#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "examples/models/generation.h"
#include "examples/models/loading.h"
#include "support/paths.h"

namespace {

/// What this process has allocated, in bytes.
uint64_t own_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

std::shared_ptr<models::CausalLM> empty_causal_lm(const models::ModelConfig& config) {
  const accelerate::InitEmptyWeights empty;
  return models::make_causal_lm(config);
}

TEST(DispatchedModels, GiveTheLogitsOfTheResidentOnesToTheBit) {
  const torch::NoGradGuard no_grad;
  const auto ids = torch::arange(12).reshape({2, 6}) * 3 + 1;
  for (const std::string name : {"gpt2", "llama", "llama3", "llama_bf16", "mixtral"}) {
    const std::string folder = std::string(kProjectFolder) + "/tests/golden/models/" + name;
    const auto config = models::read_config(folder);
    const auto resident = models::load_causal_lm(folder);
    const auto expected = resident->forward(ids);
    const std::vector<accelerate::LoadCheckpointOptions> placements = {
        {.device_map = "cpu"},
        {.device_map = "disk"},
        {.device_map = "disk", .offload_budget = 1},
        {.device_map = "disk", .mmap = true},
        {.device_map = "auto",
         .max_memory = {{torch::kCPU, "60KB"}},
         .no_split_module_classes = {"GPT2Block", "LlamaDecoderLayer", "MixtralDecoderLayer"}},
    };
    for (size_t i = 0; i < placements.size(); ++i) {
      const auto net = empty_causal_lm(config);
      auto options = placements[i];
      options.dtype = expected.scalar_type();
      options.strict = true;
      options.key_mapping = [&](const std::string& given) { return models::name_in_module(*net, config, given).value_or(""); };
      const auto model = accelerate::load_checkpoint_and_dispatch(net, folder, options);
      for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(torch::equal(model(ids), expected)) << name << ", placement " << i;
    }
  }
}

TEST(DispatchedModels, AMixtralOf47BillionParametersTakesNoMemoryWhenEmpty) {
  models::ModelConfig config;
  config.model_type = "mixtral";
  config.vocab_size = 32000;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.layers = 32;
  config.heads = 32;
  config.kv_heads = 8;
  config.head_dim = 128;
  config.max_positions = 32768;
  config.experts = 8;
  config.experts_per_token = 2;
  const uint64_t before = own_memory();
  const auto begin = std::chrono::steady_clock::now();
  const auto net = empty_causal_lm(config);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  int64_t count = 0;
  for (const auto& parameter : net->parameters()) count += parameter.numel();
  EXPECT_EQ(count, 46702792704);
  EXPECT_LT(own_memory() - before, 100'000'000U);
  RecordProperty("milliseconds", std::to_string(took.count()));
  std::cout << "  built in " << took.count() << " ms, " << static_cast<double>(own_memory() - before) / 1e6 << " MB\n";
}

}  // namespace
