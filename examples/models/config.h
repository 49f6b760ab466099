#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace models {

/// How rotary positions are made: the base, and what stretches them beyond the length of pretraining.
struct RopeConfig {
  double theta = 10000;
  /// "default", "linear" or "llama3".
  std::string type = "default";
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_positions = 0;
};

/// What config.json says of a model, under one name for all families. Members that a family does not have keep their defaults.
struct ModelConfig {
  /// "gpt2", "llama", "mixtral" or "bert".
  std::string model_type;
  /// The class of transformers that wrote the checkpoint, such as "BertForMaskedLM"; may be empty.
  std::string architecture;
  /// The name that transformers gives the dtype of the weights: "float32", "bfloat16", "float16".
  std::string dtype = "float32";
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t max_positions = 0;
  int64_t type_vocab_size = 2;
  double norm_eps = 1e-5;
  std::string activation = "silu";
  bool tied = false;
  bool attention_bias = false, mlp_bias = false;
  bool scale_attention = true, scale_attention_by_layer = false;
  RopeConfig rope;
  int64_t experts = 0, experts_per_token = 0;
  /// How far back a position sees; 0: to the beginning.
  int64_t sliding_window = 0;
  /// Tokens that end a text.
  std::vector<int64_t> end_tokens;
};

/// Reads config.json of a folder that transformers wrote, also in its older spellings, and the end tokens of
/// generation_config.json where there is one. accelerate::ConfigError names the file, the key and what was expected.
ModelConfig read_config(const std::string& folder);

}  // namespace models
