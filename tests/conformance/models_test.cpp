// The models and the tokenizer of examples/models beside what transformers and tokenizers gave (make_models.py).
#include <accelerate/checkpoint/save_file.h>
#include <torch/torch.h>

#include "conformance/golden.h"
#include "examples/models/generation.h"
#include "examples/models/loading.h"
#include "examples/models/tokenizer.h"

namespace {

using accelerate::TensorDict;
using nlohmann::json;

std::string golden_model(const std::string& name) { return golden::path("models/" + name); }

TensorDict expected_of_model(const std::string& name) {
  return accelerate::load_file(golden_model(name) + "/expected.safetensors");
}

double largest_difference(const at::Tensor& ours, const at::Tensor& theirs) {
  if (ours.sizes() != theirs.sizes()) return std::numeric_limits<double>::infinity();
  return (ours.to(at::kFloat) - theirs.to(at::kFloat)).abs().max().item<double>();
}

void judge_difference(golden::Tally& tally, const std::string& what, const at::Tensor& ours, const at::Tensor& theirs,
                      double allowed = 1e-4) {
  const double difference = largest_difference(ours, theirs);
  tally.judge(what, difference <= allowed, "differs by " + std::to_string(difference));
}

TEST(Golden, LogitsOfCausalModelsEqualTransformers) {
  golden::Tally tally("models, logits");
  const torch::NoGradGuard no_grad;
  for (const std::string name : {"gpt2", "llama", "llama3", "mixtral", "mixtral_fused"}) {
    const auto expected = expected_of_model(name);
    const auto model = models::load_causal_lm(golden_model(name));
    judge_difference(tally, name, model->forward(expected.at("ids")), expected.at("logits"));
  }
}

TEST(Golden, GreedyTokensEqualTransformers) {
  golden::Tally tally("models, greedy tokens");
  for (const std::string name : {"gpt2", "llama", "llama3", "mixtral", "mixtral_fused"}) {
    const auto expected = expected_of_model(name);
    const auto model = models::load_causal_lm(golden_model(name));
    for (const bool use_cache : {true, false}) {
      const auto tokens = models::generate(*model, expected.at("ids"), {.max_new_tokens = 16, .use_cache = use_cache});
      tally.judge(name + (use_cache ? "" : " without a cache"), torch::equal(tokens, expected.at("greedy")), "other tokens");
    }
  }
}

TEST(Golden, TextsOfGreedyGenerationEqualTransformers) {
  golden::Tally tally("models/texts.json");
  const json all = golden::read("models/texts.json");
  for (const auto& [name, cases] : all.items()) {
    const models::Tokenizer tokenizer(golden_model(name) + "/tokenizer.json");
    const auto model = models::load_causal_lm(golden_model(name));
    for (const auto& entry : cases) {
      const auto prompt = torch::tensor(tokenizer.encode(entry.at("prompt").get<std::string>()), at::kLong).unsqueeze(0);
      const auto ids = models::generate(*model, prompt, {.max_new_tokens = 16, .end_tokens = model->config().end_tokens});
      const auto text = tokenizer.decode({ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + ids.numel()});
      tally.judge(name + " " + entry.at("prompt").get<std::string>(), text == entry.at("text").get<std::string>(), text);
    }
  }
}

TEST(Golden, ABfloat16CheckpointGivesTheLogitsOfTransformersInBothPrecisions) {
  golden::Tally tally("models, bfloat16");
  const torch::NoGradGuard no_grad;
  const auto expected = expected_of_model("llama_bf16");
  const auto wide = models::load_causal_lm(golden_model("llama_bf16"), {.dtype = at::kFloat});
  judge_difference(tally, "read into float32", wide->forward(expected.at("ids")), expected.at("logits"));
  const auto narrow = models::load_causal_lm(golden_model("llama_bf16"));
  const auto logits = narrow->forward(expected.at("ids"));
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  // Two steps of its eight bits at the size of the largest logit: kernels of other machines add in other orders.
  const double step = expected.at("logits_bf16").abs().max().item<double>() / 128;
  judge_difference(tally, "computed in bfloat16", logits, expected.at("logits_bf16"), 2 * step);
}

TEST(Golden, BertEqualsTransformers) {
  golden::Tally tally("models, bert");
  const torch::NoGradGuard no_grad;
  const auto base = expected_of_model("bert"), masked = expected_of_model("bert_masked");
  const auto inputs = [](const TensorDict& of) {
    return models::BertInputs{of.at("ids"), of.at("attention_mask"), of.at("token_types")};
  };
  const auto result = models::load_bert(golden_model("bert"))->forward(inputs(base));
  // What a padded position holds is nobody's business, and kernels differ in it.
  const auto real = base.at("attention_mask").unsqueeze(2);
  judge_difference(tally, "last_hidden_state", result.last_hidden_state * real, base.at("last_hidden_state") * real);
  judge_difference(tally, "pooler_output", result.pooler_output, base.at("pooler_output"));
  const auto logits = models::load_bert_for_masked_lm(golden_model("bert_masked"))->forward(inputs(masked));
  const auto real_masked = masked.at("attention_mask").unsqueeze(2);
  judge_difference(tally, "masked tokens", logits * real_masked, masked.at("logits") * real_masked);
}

TEST(Golden, ProbabilitiesOfSamplingEqualTransformers) {
  golden::Tally tally("models/sampling.json");
  for (const auto& entry : golden::read("models/sampling.json")) {
    const auto rows = [&](const char* key) {
      const auto values = entry.at(key).get<std::vector<std::vector<float>>>();
      std::vector<at::Tensor> tensors;
      for (const auto& row : values) tensors.push_back(torch::tensor(row));
      return torch::stack(tensors);
    };
    const models::GenerationOptions options{
        .sample = true, .temperature = entry.at("temperature"), .top_k = entry.at("top_k"), .top_p = entry.at("top_p")};
    judge_difference(tally, entry.at("temperature").dump() + " " + entry.at("top_k").dump() + " " + entry.at("top_p").dump(),
                     models::sampling_probabilities(rows("logits"), options), rows("probabilities"), 1e-6);
  }
}

std::string shown(const std::vector<int64_t>& ids) { return json(ids).dump(); }

TEST(Golden, TokenIdsAndTextsEqualThoseOfTokenizers) {
  golden::Tally tally("models/tokenizers.json");
  const json all = golden::read("models/tokenizers.json");
  for (const auto& [name, cases] : all.items()) {
    const models::Tokenizer tokenizer(golden_model(name) + "/tokenizer.json");
    for (const auto& entry : cases) {
      const std::string text = entry.at("text"), title = name + " " + entry.at("text").dump(-1, ' ', true);
      const auto ids = tokenizer.encode(text, {.add_special_tokens = false});
      tally.judge(title, ids == entry.at("ids").get<std::vector<int64_t>>(), shown(ids));
      const auto with_special = tokenizer.encode(text);
      tally.judge(title + " with special tokens", with_special == entry.at("with_special").get<std::vector<int64_t>>(),
                  shown(with_special));
      const auto wanted = entry.at("ids").get<std::vector<int64_t>>();
      const auto decoded = tokenizer.decode(wanted, {.skip_special_tokens = false});
      tally.judge(title + " decoded", decoded == entry.at("decoded").get<std::string>(), decoded);
      const auto without_special = tokenizer.decode(wanted);
      tally.judge(title + " decoded without special tokens", without_special == entry.at("without_special").get<std::string>(),
                  without_special);
      if (wanted.size() < 2) continue;
      const auto cut = tokenizer.decode({wanted.begin() + 1, wanted.end() - 1}, {.skip_special_tokens = false});
      tally.judge(title + " cut", cut == entry.at("cut").get<std::string>(), cut);
    }
  }
}

}  // namespace
