#include <accelerate/data/random_sampler.h>
#include <accelerate/distributed/random.h>
#include <torch/torch.h>
#include <torch/version.h>

#include "conformance/golden.h"
#include "data/collect.h"

namespace {

using accelerate::Indices;
using accelerate::RandomSampler;
using accelerate::SeedableRandomSampler;
using nlohmann::json;

at::Generator generator_of(const json& c) { return at::detail::createCPUGenerator(c.at("seed").get<uint64_t>()); }

/// Equal to a tensor of the golden data, which is written without the kind of node that it is.
bool same_tensor(const at::Tensor& ours, json theirs) {
  theirs["t"] = "tensor";
  return golden::same(ours, golden::value_of(theirs));
}

/// The options of the RandomSampler of a case.
accelerate::RandomSamplerOptions sampler_options_of(const json& c) {
  accelerate::RandomSamplerOptions options{.replacement = c.value("replacement", false)};
  if (c.contains("num_samples") && !c.at("num_samples").is_null()) options.num_samples = c.at("num_samples").get<int64_t>();
  return options;
}

TEST(Golden, Randperm) {
  golden::Tally tally("sampler.json, randperm");
  for (const auto& c : golden::read("sampler.json").value("randperm", json::array())) {
    const auto ours = torch::randperm(c.at("n").get<int64_t>(), generator_of(c), torch::kLong);
    const Indices order(ours.const_data_ptr<int64_t>(), ours.const_data_ptr<int64_t>() + ours.numel());
    tally.judge(c.dump(), order == c.at("randperm").get<Indices>(), json(order).dump());
  }
  EXPECT_GT(tally.cases(), 0);
}

/// The draw of that name, each from a generator that begins anew; undefined for a name that is not known.
at::Tensor draw(const std::string& name, const at::Generator& from) {
  const auto empty = [](at::IntArrayRef shape, at::ScalarType dtype) { return torch::empty(shape, dtype); };
  if (name == "rand_f32") return torch::rand({3, 5}, from, torch::kFloat);
  if (name == "rand_f64") return torch::rand({3, 5}, from, torch::kDouble);
  if (name == "randn_f32_below_16") return torch::randn({3, 5}, from, torch::kFloat);
  if (name == "randn_f32_at_least_16") return torch::randn({4, 9}, from, torch::kFloat);
  if (name == "randn_f64_below_16") return torch::randn({3, 5}, from, torch::kDouble);
  if (name == "randn_f64_at_least_16") return torch::randn({4, 9}, from, torch::kDouble);
  if (name == "randn_bf16_at_least_16") return torch::randn({4, 9}, from, torch::kBFloat16);
  if (name == "randint_0_10") return torch::randint(10, {12}, from, torch::kLong);
  if (name == "randint_-5_2e40") return torch::randint(-5, int64_t{1} << 40, {6}, from, torch::kLong);
  if (name == "random_int64") return empty({3}, torch::kLong).random_(from);
  if (name == "random_int32") return empty({3}, torch::kInt).random_(from);
  if (name == "uniform_-2_3") return empty({6}, torch::kFloat).uniform_(-2, 3, from);
  if (name == "normal_1_2") return empty({20}, torch::kFloat).normal_(1, 2, from);
  if (name == "bernoulli_0.3") return empty({16}, torch::kFloat).bernoulli_(0.3, from);
  if (name == "exponential_1") return empty({6}, torch::kFloat).exponential_(1, from);
  if (name == "multinomial") return torch::multinomial(torch::tensor({0.1, 0.2, 0.3, 0.4}), 8, true, from);
  return {};
}

std::vector<at::Tensor> draw_sequence(const at::Generator& from) {
  return {torch::rand({2}, from),
          torch::randn({3}, from),
          torch::randperm(6, from, torch::kLong),
          torch::randint(100, {4}, from, torch::kLong),
          torch::randn({17}, from),
          torch::rand({1}, from)};
}

/// The data are of torch 2.13.
constexpr const char* kOtherBf16Draws =
    TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13 ? "LibTorch before 2.13 draws other normal numbers in bfloat16" : "";

TEST(Golden, Draws) {
  golden::Tally tally("sampler.json, draws");
  for (const auto& c : golden::read("sampler.json").value("draws", json::array())) {
    for (const auto& [name, theirs] : c.items()) {
      if (name == "seed") continue;
      const std::string title = name + " of seed " + c.at("seed").dump();
      if (name == "sequence") {
        const auto ours = draw_sequence(generator_of(c));
        bool held = ours.size() == theirs.size();
        for (size_t i = 0; held && i < ours.size(); ++i) held = same_tensor(ours[i], theirs[i]);
        tally.judge(title, held, "another sequence");
        continue;
      }
      const at::Tensor ours = draw(name, generator_of(c));
      if (!ours.defined()) {
        tally.judge(title, false, "nothing: the draw is not known");
      } else {
        tally.judge(title, same_tensor(ours, theirs), ours.toString(), name == "randn_bf16_at_least_16" ? kOtherBf16Draws : "");
      }
    }
  }
  EXPECT_GT(tally.cases(), 0);
}

/// The layer that prints as `text`; null for one that is not known.
std::shared_ptr<torch::nn::Module> layer_of(const std::string& text) {
  namespace nn = torch::nn;
  if (text.starts_with("Linear(in_features=3, out_features=4, bias=True")) return nn::Linear(3, 4).ptr();
  if (text.starts_with("Linear(in_features=4, out_features=2, bias=False"))
    return nn::Linear(nn::LinearOptions(4, 2).bias(false)).ptr();
  if (text == "Embedding(5, 3)") return nn::Embedding(5, 3).ptr();
  if (text.starts_with("Conv2d(2, 3, kernel_size=(3, 3)")) return nn::Conv2d(nn::Conv2dOptions(2, 3, 3)).ptr();
  if (text.starts_with("LayerNorm((4,)")) return nn::LayerNorm(nn::LayerNormOptions({4})).ptr();
  if (text.starts_with("BatchNorm1d(3,")) return nn::BatchNorm1d(3).ptr();
  return nullptr;
}

bool same_layer(const torch::nn::Module& ours, const json& tensors) {
  std::map<std::string, at::Tensor> found;
  for (const auto& item : ours.named_parameters()) found[item.key()] = item.value().detach();
  for (const auto& item : ours.named_buffers()) found[item.key()] = item.value();
  bool same = found.size() == tensors.size();
  for (const auto& [name, theirs] : tensors.items()) same = same && found.contains(name) && same_tensor(found.at(name), theirs);
  return same;
}

TEST(Golden, DefaultInitialisation) {
  golden::Tally tally("sampler.json, default_initialisation");
  for (const auto& c : golden::read("sampler.json").value("default_initialisation", json::array())) {
    torch::manual_seed(c.at("seed").get<uint64_t>());
    for (const auto& layer : c.at("layers")) {
      const auto ours = layer_of(layer.at("module"));
      tally.judge(layer.at("module").get<std::string>() + " of seed " + c.at("seed").dump(),
                  ours && same_layer(*ours, layer.at("tensors")), ours ? "other weights" : "nothing: the layer is not known");
    }
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, Dropout) {
  golden::Tally tally("sampler.json, dropout");
  for (const auto& c : golden::read("sampler.json").value("dropout", json::array())) {
    torch::manual_seed(c.at("seed").get<uint64_t>());
    const auto ours = torch::nn::Dropout(c.at("p").get<double>())(torch::ones({4, 8}));
    tally.judge("seed " + c.at("seed").dump(), golden::same(ours, golden::value_of(c.at("dropout_of_ones"))), "other zeros");
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, RandomSampler) {
  golden::Tally tally("sampler.json, random_sampler");
  for (const auto& c : golden::read("sampler.json").value("random_sampler", json::array())) {
    auto options = sampler_options_of(c);
    options.generator = generator_of(c);
    RandomSampler sampler(c.at("n").get<int64_t>(), options);
    const Indices order = collected::pass_of(sampler);
    tally.judge(c.dump(), order == c.at("order").get<Indices>(), json(order).dump());
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, SeedableSampler) {
  golden::Tally tally("sampler.json, seedable_sampler");
  for (const auto& c : golden::read("sampler.json").value("seedable_sampler", json::array())) {
    SeedableRandomSampler sampler(c.at("n").get<int64_t>(), {.data_seed = c.at("seed").get<uint64_t>()}, sampler_options_of(c));
    json epochs;
    for (size_t i = 0; i < c.at("epochs").size(); ++i) epochs.push_back(collected::pass_of(sampler));
    tally.judge(c.dump(), epochs == c.at("epochs"), epochs.dump());
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, SeedableSamplerWithoutDataSeed) {
  golden::Tally tally("sampler.json, seedable_without_data_seed");
  for (const auto& c : golden::read("sampler.json").value("seedable_without_data_seed", json::array())) {
    torch::manual_seed(c.at("manual_seed").get<uint64_t>());
    SeedableRandomSampler sampler(c.at("n").get<int64_t>());
    json ours;
    for (int epoch = 0; epoch < 2; ++epoch) ours["epochs_0_1"].push_back(collected::pass_of(sampler));
    sampler.set_epoch(7);
    ours["epoch_7"] = collected::pass_of(sampler);
    tally.judge(c.dump(), ours["epochs_0_1"] == c.at("epochs_0_1") && ours["epoch_7"] == c.at("epoch_7"), ours.dump());
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, SetSeed) {
  golden::Tally tally("sampler.json, set_seed (torch's numbers; Python's own and numpy's have no counterpart)");
  for (const auto& c : golden::read("sampler.json").value("set_seed", json::array())) {
    accelerate::set_seed(c.at("seed").get<uint64_t>());
    tally.judge("seed " + c.at("seed").dump(), same_tensor(torch::rand({3}), c.at("torch_rand")), "other numbers");
  }
  EXPECT_GT(tally.cases(), 0);
}

}  // namespace
