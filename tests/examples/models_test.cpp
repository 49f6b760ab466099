// What examples/models promise beside the numbers of transformers, which tests/conformance/models_test.cpp compares.
#include <accelerate/checkpoint/module_state.h>
#include <accelerate/checkpoint/save_file.h>
#include <accelerate/checkpoint/weights.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "examples/models/generation.h"
#include "examples/models/layers.h"
#include "examples/models/loading.h"
#include "support/error_text.h"
#include "support/paths.h"
#include "support/together.h"

namespace {

using accelerate::TensorDict;
using accelerate::testing::message_of;
using models::KeyValueCache;

const std::vector<std::string> kCausalFolders = {"gpt2", "llama", "llama3", "mixtral"};

std::string model_folder(const std::string& name) { return std::string(kProjectFolder) + "/tests/golden/models/" + name; }

TensorDict model_expectation(const std::string& name) {
  return accelerate::load_file(model_folder(name) + "/expected.safetensors");
}

bool nearly(const at::Tensor& a, const at::Tensor& b, double allowed = 1e-4) {
  return a.sizes() == b.sizes() && (a - b).abs().max().item<double>() <= allowed;
}

/// A copy of a golden model whose weights or config a test changes.
class ChangedModel {
 public:
  explicit ChangedModel(const std::string& name) {
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(model_folder(name) + "/" + file, folder_ / file);
    }
    config_ = nlohmann::json::parse(std::ifstream(folder_ / "config.json"));
  }
  std::string path() const { return folder_.path().string(); }
  void set_config(const std::string& key, const nlohmann::json& value) {
    config_[key] = value;
    std::ofstream(folder_ / "config.json") << config_;
  }
  void remove_config(const std::string& key) {
    config_.erase(key);
    std::ofstream(folder_ / "config.json") << config_;
  }
  void change_weights(const std::function<TensorDict(const TensorDict&)>& change) {
    accelerate::save_file(change(accelerate::load_weights(path())), (folder_ / "model.safetensors").string());
  }

 private:
  TemporaryFolder folder_;
  nlohmann::json config_;
};

TEST(Models, AHeadThatIsFilledUpHasTheSameValuesAndGradients) {
  for (const bool with_bias : {false, true}) {
    const auto x = torch::randn({2, 3, 5}, torch::requires_grad()), weight = torch::randn({7, 5}, torch::requires_grad());
    const auto bias = with_bias ? std::optional(torch::randn({7}, torch::requires_grad())) : std::nullopt;
    std::vector<at::Tensor> results;
    for (const int64_t multiple : {1, 4}) {
      const auto logits = models::linear_filled_up(x, weight, bias, multiple);
      logits.square().sum().backward();
      results.insert(results.end(), {logits.detach(), x.grad(), weight.grad(), with_bias ? bias->grad() : x.grad()});
      for (const auto& tensor : {x, weight, bias.value_or(x)}) tensor.mutable_grad().reset();
    }
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(nearly(results[i], results[i + 4])) << i;
  }
}

TEST(Models, TheLossOfNextTokensIsTheCrossEntropyOfLogits) {
  const auto x = torch::randn({2, 3, 5}, torch::requires_grad()), weight = torch::randn({7, 5}, torch::requires_grad());
  const auto labels = torch::tensor({{1, 2, 6}, {0, -100, 3}});
  const auto logits = at::linear(x, weight).narrow(1, 0, 2).reshape({-1, 7});
  torch::cross_entropy_loss(logits, labels.narrow(1, 1, 2).reshape({-1}), {}, at::Reduction::Mean, -100).backward();
  const auto expected_x = x.grad(), expected_weight = weight.grad();
  for (const int64_t multiple : {1, 4}) {
    for (const auto& tensor : {x, weight}) tensor.mutable_grad().reset();
    models::next_token_loss(x, weight, labels, multiple).backward();
    EXPECT_TRUE(nearly(x.grad(), expected_x)) << multiple;
    EXPECT_TRUE(nearly(weight.grad(), expected_weight)) << multiple;
  }
  for (const auto& name : kCausalFolders) {
    const auto model = models::load_causal_lm(model_folder(name));
    const auto ids = model_expectation(name).at("greedy");
    const auto count = ids.size(1) - 1;
    const auto named = model->forward(ids).narrow(1, 0, count).reshape({ids.size(0) * count, -1});
    const auto expected = torch::cross_entropy_loss(named, ids.narrow(1, 1, count).reshape({-1}));
    EXPECT_TRUE(nearly(model->forward(ids, {.labels = ids}), expected)) << name;
  }
}

class TogetherCudaModels : public Together {};

TEST_F(TogetherCudaModels, TheLossInHalfPrecisionIsThatInSingle) {
  const auto device = accelerator().device();
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const auto x = torch::randn({2, 200, 64}, device).requires_grad_(),
               weight = torch::randn({1001, 64}, device).requires_grad_();
    const auto labels = torch::randint(1001, {2, 200}, torch::TensorOptions(device).dtype(torch::kLong));
    std::vector<at::Tensor> losses, gradients;
    for (const bool half : {false, true}) {
      for (const auto& tensor : {x, weight}) tensor.mutable_grad().reset();
      const auto loss = [&] {
        if (!half) return models::next_token_loss(x.to(dtype).to(torch::kFloat), weight.to(dtype).to(torch::kFloat), labels, 1);
        const accelerate::AutocastScope scope(device.type(), dtype);
        return models::next_token_loss(x, weight, labels);
      }();
      EXPECT_EQ(loss.scalar_type(), torch::kFloat);
      loss.backward();
      losses.push_back(loss.detach());
      gradients.insert(gradients.end(), {x.grad(), weight.grad()});
    }
    EXPECT_TRUE(torch::allclose(losses[1], losses[0], 1e-3, 1e-3)) << losses;
    for (const size_t i : {0, 1}) {
      const auto error = (gradients[i + 2] - gradients[i]).norm() / gradients[i].norm();
      EXPECT_LT(error.item<double>(), 0.02) << i;
    }
  }
}

TEST(Models, ACacheGivesTheLogitsOfTheWholeTextHoweverItIsCut) {
  const torch::NoGradGuard no_grad;
  for (const auto& name : kCausalFolders) {
    const auto expected = model_expectation(name);
    const auto model = models::load_causal_lm(model_folder(name));
    const auto ids = expected.at("greedy");
    const auto whole = model->forward(ids);
    // Less room than is needed, so that the cache grows.
    KeyValueCache cache(4);
    std::vector<at::Tensor> parts;
    int64_t at = 0;
    for (const int64_t count : {3, 1, 7, 1, 1, 12}) {
      parts.push_back(model->forward(ids.narrow(1, at, count), {.cache = &cache}));
      at += count;
      EXPECT_EQ(cache.length(), at);
    }
    EXPECT_TRUE(nearly(torch::cat(parts, 1), whole)) << name;
  }
}

TEST(Models, LastOnlyGivesTheLastOfAllLogits) {
  const torch::NoGradGuard no_grad;
  for (const auto& name : kCausalFolders) {
    const auto model = models::load_causal_lm(model_folder(name));
    const auto ids = model_expectation(name).at("ids");
    EXPECT_TRUE(nearly(model->forward(ids, {.last_only = true}), model->forward(ids).narrow(1, 8, 1))) << name;
  }
}

TEST(Models, GradientsReachEveryParameter) {
  for (const auto& name : kCausalFolders) {
    const auto model = models::load_causal_lm(model_folder(name));
    const auto ids = torch::arange(40).view({2, 20});
    model->forward(ids).square().sum().backward();
    for (const auto& item : model->named_parameters()) EXPECT_TRUE(item.value().grad().defined()) << name << " " << item.key();
  }
}

TEST(KeyValueCache, PositionsCountOnlyWhenAForwardHasEnded) {
  KeyValueCache cache;
  const auto first = torch::ones({1, 2, 3, 4}), second = torch::full({1, 2, 3, 4}, 2.0);
  cache.append(0, first, first);
  EXPECT_EQ(cache.length(), 0);
  const auto keys = cache.append(0, second, second).first;  // as after an exception: what was written does not count
  EXPECT_TRUE(torch::equal(keys, second));
  cache.advance(3);
  const auto both = cache.append(0, first, second);
  EXPECT_TRUE(torch::equal(both.first, torch::cat({second, first}, 2)));
  EXPECT_TRUE(torch::equal(both.second, torch::cat({second, second}, 2)));
}

TEST(KeyValueCache, AnotherBatchIsRefused) {
  KeyValueCache cache;
  const auto two = torch::ones({2, 1, 1, 1}), three = torch::ones({3, 1, 1, 1});
  cache.append(0, two, two);
  EXPECT_NE(message_of<accelerate::UsageError>([&] { cache.append(0, three, three); }).find("a batch of 3"), std::string::npos);
}

TEST(Generation, ASeedGivesTheSameTextAndAnotherSeedAnother) {
  const auto model = models::load_causal_lm(model_folder("llama"));
  const auto ids = model_expectation("llama").at("ids");
  models::GenerationOptions options{.sample = true, .temperature = 3, .seed = 1};
  const auto text = models::generate(*model, ids, options);
  EXPECT_TRUE(torch::equal(models::generate(*model, ids, options), text));
  options.use_cache = false;
  EXPECT_TRUE(torch::equal(models::generate(*model, ids, options), text)) << "without a cache";
  options.seed = 2;
  EXPECT_FALSE(torch::equal(models::generate(*model, ids, options), text));
}

TEST(Generation, TorchsOwnRandomNumbersAreNotTouched) {
  const auto model = models::load_causal_lm(model_folder("gpt2"));
  torch::manual_seed(5);
  const auto untouched = torch::rand({4});
  torch::manual_seed(5);
  models::generate(*model, torch::tensor({{1, 2}}), {.max_new_tokens = 3, .sample = true});
  EXPECT_TRUE(torch::equal(torch::rand({4}), untouched));
}

TEST(Generation, SamplingTheLikeliestTokenAloneIsGreedy) {
  const auto model = models::load_causal_lm(model_folder("mixtral"));
  const auto expected = model_expectation("mixtral");
  for (const auto& options : {models::GenerationOptions{.max_new_tokens = 16, .sample = true, .top_k = 1},
                              models::GenerationOptions{.max_new_tokens = 16, .sample = true, .top_p = 1e-6}}) {
    EXPECT_TRUE(torch::equal(models::generate(*model, expected.at("ids"), options), expected.at("greedy")));
  }
}

TEST(Generation, DrawsFollowTheProbabilities) {
  const auto logits = torch::tensor({0.0, 1.0, 2.0}, at::kFloat).view({1, 1, 3});
  const models::NextTokenLogits constant = [&](const at::Tensor& ids, KeyValueCache*) {
    return logits.expand({ids.size(0), 1, 3});
  };
  const auto ids = torch::zeros({4000, 1}, at::kLong);
  const auto drawn =
      models::generate(constant, ids, {.max_new_tokens = 1, .sample = true, .temperature = 2, .seed = 3}).select(1, 1);
  const auto wanted = (logits / 2).softmax(-1).view({3});
  for (int64_t token = 0; token < 3; ++token) {
    const double share = (drawn == token).to(at::kFloat).mean().item<double>();
    EXPECT_NEAR(share, wanted[token].item<double>(), 0.03) << token;
  }
}

TEST(Generation, ARowThatHasEndedIsFilledUpWhileOthersGoOn) {
  const auto model = models::load_causal_lm(model_folder("llama"));
  const auto expected = model_expectation("llama");
  const auto greedy = expected.at("greedy");
  const int64_t end = greedy[0][12].item<int64_t>();
  const auto text = models::generate(*model, expected.at("ids"), {.max_new_tokens = 16, .end_tokens = {end}, .pad_token = 7});
  const auto length_to_end = [&](int64_t row) {
    for (int64_t at = 9; at < 25; ++at) {
      if (greedy[row][at].item<int64_t>() == end) return at + 1;
    }
    return int64_t{25};
  };
  EXPECT_LT(length_to_end(0), 25);
  EXPECT_EQ(text.size(1), std::max(length_to_end(0), length_to_end(1)));
  for (int64_t row = 0; row < 2; ++row) {
    const int64_t own = length_to_end(row);
    EXPECT_TRUE(torch::equal(text[row].narrow(0, 0, own), greedy[row].narrow(0, 0, own)));
    EXPECT_TRUE((text[row].narrow(0, own, text.size(1) - own) == 7).all().item<bool>());
  }
  const auto one = models::generate(*model, expected.at("ids").narrow(0, 0, 1), {.max_new_tokens = 16, .end_tokens = {end}});
  EXPECT_EQ(one.size(1), length_to_end(0)) << "nothing is generated behind the end";
}

TEST(Generation, WhatCannotBeMeantIsRefused) {
  const auto model = models::load_causal_lm(model_folder("gpt2"));
  const auto ids = torch::tensor({{1, 2, 3}});
  const auto refusal = [&](const at::Tensor& given, const models::GenerationOptions& options) {
    return message_of<accelerate::UsageError>([&] { models::generate(*model, given, options); });
  };
  const auto expect_says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect_says(refusal(ids[0], {}), "[batch, positions]");
  expect_says(refusal(ids.narrow(1, 0, 0), {}), "at least one token");
  expect_says(refusal(ids.to(at::kInt), {}), "int64");
  expect_says(refusal(ids + 1000, {}), "tokens from 0 to 319");
  expect_says(refusal(ids - 2, {}), "ids reach from -1");
  expect_says(refusal(ids, {.max_new_tokens = -1}), "max_new_tokens");
  expect_says(refusal(ids, {.max_new_tokens = 60}), "48 positions");
  expect_says(refusal(ids, {.sample = true, .temperature = 0}), "temperature");
  expect_says(refusal(ids, {.sample = true, .top_k = -1}), "top_k");
  expect_says(refusal(ids, {.sample = true, .top_p = 0}), "top_p");
  expect_says(refusal(ids, {.sample = true, .top_p = std::nan("")}), "top_p");
}

TEST(LoadingModels, NamesOfBaseModelsAndOfOlderVersionsAreUnderstood) {
  const torch::NoGradGuard no_grad;
  ChangedModel gpt2("gpt2");
  gpt2.change_weights([](const TensorDict& weights) {
    auto base = renamed(weights, {{"transformer.", ""}});
    base["h.0.attn.bias"] = torch::ones({1, 1, 4, 4});
    base["h.0.attn.masked_bias"] = torch::tensor(-1e4);
    base["lm_head.weight"] = base.at("wte.weight").clone();
    return base;
  });
  const auto expected = model_expectation("gpt2");
  EXPECT_TRUE(nearly(models::load_causal_lm(gpt2.path())->forward(expected.at("ids")), expected.at("logits")));

  ChangedModel bert("bert_masked");
  bert.change_weights([](const TensorDict& weights) {
    auto old = renamed(weights, [](const std::string& name) {
      const auto at = name.find("LayerNorm.");
      if (at == std::string::npos) return name;
      return name.substr(0, at + 10) + (name.ends_with("weight") ? "gamma" : "beta");
    });
    old["bert.embeddings.position_ids"] = torch::arange(24).unsqueeze(0);
    old["bert.pooler.dense.weight"] = torch::ones({32, 32});
    old["bert.pooler.dense.bias"] = torch::ones({32});
    old["cls.seq_relationship.weight"] = torch::ones({2, 32});
    old["cls.seq_relationship.bias"] = torch::ones({2});
    return old;
  });
  const auto masked = model_expectation("bert_masked");
  const models::BertInputs inputs{masked.at("ids"), masked.at("attention_mask"), masked.at("token_types")};
  const auto real = masked.at("attention_mask").unsqueeze(2);
  EXPECT_TRUE(nearly(models::load_bert_for_masked_lm(bert.path())->forward(inputs) * real, masked.at("logits") * real));
}

TEST(LoadingModels, ABaseModelTakesItsPartOfACheckpointWithAHead) {
  const auto model = models::load_bert(model_folder("bert_masked"));
  const auto weights = accelerate::load_weights(model_folder("bert_masked"));
  for (const auto& [name, tensor] : accelerate::state_dict(*model)) EXPECT_TRUE(torch::equal(tensor, weights.at("bert." + name)));
}

TEST(LoadingModels, AnUntiedHeadIsRead) {
  const torch::NoGradGuard no_grad;
  ChangedModel gpt2("gpt2");
  gpt2.set_config("tie_word_embeddings", false);
  gpt2.change_weights([](const TensorDict& weights) {
    auto untied = weights;
    untied["lm_head.weight"] = weights.at("transformer.wte.weight") * 2;
    return untied;
  });
  const auto expected = model_expectation("gpt2");
  EXPECT_TRUE(nearly(models::load_causal_lm(gpt2.path())->forward(expected.at("ids")), expected.at("logits") * 2, 2e-4));

  ChangedModel bert("bert_masked");
  bert.set_config("tie_word_embeddings", false);
  bert.change_weights([](const TensorDict& weights) {
    auto untied = weights;
    untied["cls.predictions.decoder.weight"] = weights.at("bert.embeddings.word_embeddings.weight") * 2;
    untied["cls.predictions.decoder.bias"] = weights.at("cls.predictions.bias") * 2;
    return untied;
  });
  const auto masked = model_expectation("bert_masked");
  const models::BertInputs inputs{masked.at("ids"), masked.at("attention_mask"), masked.at("token_types")};
  const auto real = masked.at("attention_mask").unsqueeze(2);
  EXPECT_TRUE(nearly(models::load_bert_for_masked_lm(bert.path())->forward(inputs) * real, masked.at("logits") * real * 2, 2e-4));
}

TEST(LoadingModels, LinearRotaryScalingIsPositionsDivided) {
  models::RopeConfig linear;
  linear.type = "linear";
  linear.factor = 4;
  const auto like = torch::zeros({1});
  const auto stretched = models::rotation_of(linear, 8, 0, 9, like), plain = models::rotation_of({}, 8, 0, 3, like);
  EXPECT_TRUE(nearly(stretched.cosine.index({torch::tensor({0, 4, 8})}), plain.cosine, 1e-6));
  EXPECT_TRUE(nearly(stretched.sine.index({torch::tensor({0, 4, 8})}), plain.sine, 1e-6));
}

TEST(LoadingModels, WeightsThatDoNotFitAreNamed) {
  const auto refusal = [](const std::function<TensorDict(const TensorDict&)>& change) {
    ChangedModel model("llama");
    model.change_weights(change);
    return message_of<accelerate::CheckpointError>([&] { models::load_causal_lm(model.path()); });
  };
  const auto missing = refusal([](const TensorDict& weights) {
    TensorDict fewer;
    for (const auto& [name, tensor] : weights) {
      if (name != "model.layers.1.mlp.up_proj.weight") fewer[name] = tensor;
    }
    return fewer;
  });
  EXPECT_NE(missing.find("missing: model.layers.1.mlp.up_proj.weight"), std::string::npos) << missing;
  const auto unexpected = refusal([](const TensorDict& weights) {
    auto more = weights;
    more["model.layers.7.surprise"] = torch::ones({1});
    return more;
  });
  EXPECT_NE(unexpected.find("unexpected: model.layers.7.surprise"), std::string::npos) << unexpected;
  const auto misshapen = refusal([](const TensorDict& weights) {
    auto other = weights;
    other["model.norm.weight"] = torch::ones({31});
    return other;
  });
  EXPECT_NE(misshapen.find("shape mismatch: model.norm.weight"), std::string::npos) << misshapen;
}

TEST(ModelConfig, WhatIsWrongIsNamedWithFileAndKey) {
  const auto refusal = [](const std::string& key, const nlohmann::json& value) {
    ChangedModel model("mixtral");
    model.set_config(key, value);
    return message_of<accelerate::ConfigError>([&] { models::load_causal_lm(model.path()); });
  };
  const auto expect_says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find("config.json"), std::string::npos) << text;
  };
  expect_says(refusal("model_type", "mamba"), "'mamba'");
  expect_says(refusal("hidden_size", "wide"), "\"wide\" for 'hidden_size'");
  expect_says(refusal("hidden_size", 0), "at least 1");
  expect_says(refusal("num_hidden_layers", nullptr), "lacks 'num_hidden_layers'");
  expect_says(refusal("num_attention_heads", 5), "5 heads");
  expect_says(refusal("num_key_value_heads", 3), "3 heads of keys and values");
  expect_says(refusal("num_experts_per_tok", 9), "9 of 4 experts");
  expect_says(refusal("rope_parameters", {{"rope_type", "yarn"}}), "'yarn'");
  expect_says(refusal("dtype", "int8"), "'int8'");
  expect_says(message_of<accelerate::ConfigError>([] { models::read_config("/no/such/folder"); }), "cannot be opened");
  TemporaryFolder folder;
  std::ofstream(folder / "config.json") << "{ \"vocab_size\": ";
  expect_says(message_of<accelerate::ConfigError>([&] { models::read_config(folder.path().string()); }), "not JSON");
  EXPECT_NE(refusal("hidden_act", "quick_gelu").find("'quick_gelu'"), std::string::npos);
}

TEST(ModelConfig, AnEncoderIsNoCausalModelNorTheOtherWayRound) {
  EXPECT_NE(message_of<accelerate::UsageError>([] { models::load_causal_lm(model_folder("bert")); }).find("'bert'"),
            std::string::npos);
  EXPECT_NE(message_of<accelerate::UsageError>([] { models::load_bert(model_folder("gpt2")); }).find("'gpt2'"),
            std::string::npos);
}

}  // namespace
