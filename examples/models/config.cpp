#include "config.h"

#include <accelerate/core/error.h>

#include <filesystem>

#include "json_file.h"

namespace models {
namespace {

using nlohmann::json;

/// The values of one config.json, asked for by key. A key may be absent or null, and both mean the default.
class Fields {
 public:
  Fields(json content, std::string path) : content_(std::move(content)), path_(std::move(path)) {
    if (!content_.is_object()) fail("is not a JSON object");
  }

  bool has(const std::string& key) const { return content_.contains(key) && !content_.at(key).is_null(); }

  Fields inside(const std::string& key) const { return {content_.at(key), path_ + " (" + key + ")"}; }

  int64_t size(const std::string& key) const {
    if (!has(key)) fail("lacks '" + key + "', which this kind of model needs");
    return size(key, 0);
  }

  int64_t size(const std::string& key, int64_t otherwise) const {
    const auto value = get<int64_t>(key, otherwise, "a whole number");
    if (has(key) && value <= 0) fail("has " + std::to_string(value) + " for '" + key + "', which must be at least 1");
    return value;
  }

  double number(const std::string& key, double otherwise) const { return get<double>(key, otherwise, "a number"); }
  bool flag(const std::string& key, bool otherwise) const { return get<bool>(key, otherwise, "true or false"); }
  std::string text(const std::string& key, const std::string& otherwise) const {
    return get<std::string>(key, otherwise, "a text");
  }

  /// A number or a list of them.
  std::vector<int64_t> numbers(const std::string& key) const {
    if (!has(key)) return {};
    if (content_.at(key).is_array()) return get<std::vector<int64_t>>(key, {}, "a list of whole numbers");
    return {get<int64_t>(key, 0, "a whole number or a list of them")};
  }

  [[noreturn]] void fail(const std::string& what) const { throw accelerate::ConfigError(path_ + " " + what + "."); }

 private:
  template <class T>
  T get(const std::string& key, T otherwise, const char* expected) const {
    if (!has(key)) return otherwise;
    try {
      return content_.at(key).get<T>();
    } catch (const json::exception&) {
      fail("has " + content_.at(key).dump() + " for '" + key + "'; expected " + expected);
    }
  }

  json content_;
  std::string path_;
};

RopeConfig read_rope(const Fields& fields) {
  RopeConfig rope;
  rope.theta = fields.number("rope_theta", 10000);
  // transformers 5 gathers everything in one object; before it there was a base, and an object for what stretches it.
  const std::string key = fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!fields.has(key)) return rope;
  const Fields inner = fields.inside(key);
  rope.theta = inner.number("rope_theta", rope.theta);
  rope.type = inner.text("rope_type", inner.text("type", "default"));
  if (rope.type != "default" && rope.type != "linear" && rope.type != "llama3") {
    inner.fail("asks for rotary positions of the type '" + rope.type + "'; default, linear and llama3 are supported");
  }
  rope.factor = inner.number("factor", 1);
  rope.low_freq_factor = inner.number("low_freq_factor", 1);
  rope.high_freq_factor = inner.number("high_freq_factor", 4);
  rope.original_max_positions = inner.size("original_max_position_embeddings", fields.size("max_position_embeddings", 2048));
  return rope;
}

void read_gpt2(const Fields& fields, ModelConfig& config) {
  config.hidden_size = fields.size("n_embd");
  config.layers = fields.size("n_layer");
  config.heads = config.kv_heads = fields.size("n_head");
  config.max_positions = fields.size("n_positions");
  config.intermediate_size = fields.size("n_inner", 4 * config.hidden_size);
  config.norm_eps = fields.number("layer_norm_epsilon", 1e-5);
  config.activation = fields.text("activation_function", "gelu_new");
  config.tied = fields.flag("tie_word_embeddings", true);
  config.scale_attention = fields.flag("scale_attn_weights", true);
  config.scale_attention_by_layer = fields.flag("scale_attn_by_inverse_layer_idx", false);
}

/// What Llama, Mixtral and BERT spell alike.
void read_sizes(const Fields& fields, ModelConfig& config) {
  config.hidden_size = fields.size("hidden_size");
  config.layers = fields.size("num_hidden_layers");
  config.heads = fields.size("num_attention_heads");
  config.kv_heads = fields.size("num_key_value_heads", config.heads);
  config.intermediate_size = fields.size("intermediate_size");
  config.max_positions = fields.size("max_position_embeddings", 2048);
}

void read_llama(const Fields& fields, ModelConfig& config) {
  read_sizes(fields, config);
  config.norm_eps = fields.number("rms_norm_eps", config.model_type == "mixtral" ? 1e-5 : 1e-6);
  config.activation = fields.text("hidden_act", "silu");
  config.tied = fields.flag("tie_word_embeddings", false);
  config.attention_bias = fields.flag("attention_bias", false);
  config.mlp_bias = fields.flag("mlp_bias", false);
  config.rope = read_rope(fields);
  config.head_dim = fields.size("head_dim", 0);
}

void read_mixtral(const Fields& fields, ModelConfig& config) {
  read_llama(fields, config);
  config.experts = fields.size("num_local_experts");
  config.experts_per_token = fields.size("num_experts_per_tok", 2);
  config.sliding_window = fields.size("sliding_window", 0);
  if (config.experts_per_token > config.experts) {
    fields.fail("sends each token to " + std::to_string(config.experts_per_token) + " of " + std::to_string(config.experts) +
                " experts");
  }
}

void read_bert(const Fields& fields, ModelConfig& config) {
  read_sizes(fields, config);
  config.norm_eps = fields.number("layer_norm_eps", 1e-12);
  config.activation = fields.text("hidden_act", "gelu");
  config.tied = fields.flag("tie_word_embeddings", true);
  config.type_vocab_size = fields.size("type_vocab_size", 2);
  const auto positions = fields.text("position_embedding_type", "absolute");
  if (positions != "absolute")
    fields.fail("asks for positions of the type '" + positions + "'; only absolute ones are supported");
}

void check_heads(const Fields& fields, ModelConfig& config) {
  if (config.head_dim == 0) {
    if (config.hidden_size % config.heads != 0) {
      fields.fail("has " + std::to_string(config.heads) + " heads, which do not divide the width " +
                  std::to_string(config.hidden_size));
    }
    config.head_dim = config.hidden_size / config.heads;
  }
  if (config.heads % config.kv_heads != 0) {
    fields.fail("has " + std::to_string(config.kv_heads) + " heads of keys and values, which do not divide its " +
                std::to_string(config.heads) + " heads");
  }
}

}  // namespace

ModelConfig read_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const json content = read_json(path);
  const Fields fields(content, path);
  ModelConfig config;
  config.model_type = fields.text("model_type", "");
  if (fields.has("architectures") && !content["architectures"].empty()) {
    config.architecture = content["architectures"][0].get<std::string>();
  }
  config.dtype = fields.text("dtype", fields.text("torch_dtype", "float32"));
  config.vocab_size = fields.size("vocab_size");
  if (config.model_type == "gpt2") {
    read_gpt2(fields, config);
  } else if (config.model_type == "llama") {
    read_llama(fields, config);
  } else if (config.model_type == "mixtral") {
    read_mixtral(fields, config);
  } else if (config.model_type == "bert") {
    read_bert(fields, config);
  } else {
    fields.fail("describes a model of the type '" + config.model_type + "'; gpt2, llama, mixtral and bert are supported");
  }
  check_heads(fields, config);
  config.end_tokens = fields.numbers("eos_token_id");
  const std::string generation = folder + "/generation_config.json";
  if (std::filesystem::exists(generation)) {
    const Fields of_generation(read_json(generation), generation);
    if (of_generation.has("eos_token_id")) config.end_tokens = of_generation.numbers("eos_token_id");
  }
  return config;
}

}  // namespace models
