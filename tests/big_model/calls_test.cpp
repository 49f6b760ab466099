// What a dispatched model does with its arguments and results. On the meta device they can be seen to move on any machine.
#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

using accelerate::Place;
using accelerate::StateDict;
using accelerate::Value;

namespace {

struct FilledCache {
  std::vector<torch::Tensor> keys;
};
struct NestedBatch {
  torch::Tensor tokens;
  std::vector<std::optional<torch::Tensor>> masks;
  std::map<std::string, torch::Tensor> more;
  int number = 0;
};
struct NestedResult {
  torch::Tensor first;
  std::map<std::string, torch::Tensor> more;
};

/// Keeps what it was called with.
struct CallProbeImpl : torch::nn::Module {
  CallProbeImpl() { weight = register_parameter("weight", torch::ones({2})); }
  NestedResult forward(const NestedBatch& batch, FilledCache& cache, at::TensorList list, Value value) {
    seen = batch;
    address = &batch;
    seen_list = list.vec();
    seen_value = std::move(value);
    cache.keys.push_back(torch::ones({1}));
    return {torch::ones({2}), {{"here", torch::ones({3})}, {"moves", torch::ones({4})}}};
  }
  torch::Tensor weight;
  NestedBatch seen;
  const NestedBatch* address = nullptr;
  std::vector<torch::Tensor> seen_list;
  Value seen_value;
};
TORCH_MODULE(CallProbe);

NestedBatch nested_batch_on(c10::Device device) {
  const auto make = [&] { return torch::ones({2}, device); };
  return {make(), {make(), std::nullopt}, {{"here", make()}, {"moves", make()}}, 7};
}

TEST(Calls, ArgumentsComeToTheDeviceInWhateverTheyAreNested) {
  CallProbe probe;
  const auto model = accelerate::dispatch_model(probe, {{"", "meta"}}, {.skip_keys = {"here"}});
  const NestedBatch batch = nested_batch_on(torch::kCPU);
  FilledCache cache{{torch::zeros({1})}};
  const std::vector<torch::Tensor> list = {torch::ones({2})};
  model(batch, cache, list, StateDict{{"a", Value::List{torch::ones({2}), "text"}}, {"here", torch::ones({2})}});
  EXPECT_TRUE(probe->seen.tokens.is_meta());
  EXPECT_TRUE(probe->seen.masks[0]->is_meta());
  EXPECT_FALSE(probe->seen.masks[1].has_value());
  EXPECT_TRUE(probe->seen.more["moves"].is_meta());
  EXPECT_TRUE(probe->seen.more["here"].is_cpu()) << "under a key that is skipped";
  EXPECT_EQ(probe->seen.number, 7);
  EXPECT_TRUE(probe->seen_list[0].is_meta());
  EXPECT_TRUE(probe->seen_value["a"].as<Value::List>()[0].as<torch::Tensor>().is_meta());
  EXPECT_TRUE(probe->seen_value["here"].as<torch::Tensor>().is_cpu());
  EXPECT_TRUE(batch.tokens.is_cpu()) << "the caller's stay where they are";
}

TEST(Calls, AnArgumentThatForwardFillsIsTheCallersOwn) {
  CallProbe probe;
  const auto model = accelerate::dispatch_model(probe, {{"", "meta"}});
  FilledCache cache{{torch::zeros({1})}};
  model(nested_batch_on(torch::kCPU), cache, at::TensorList(), Value());
  ASSERT_EQ(cache.keys.size(), 2u);
  EXPECT_TRUE(cache.keys[0].is_cpu()) << "not touched";
}

TEST(Calls, NothingIsCopiedWhenAllIsThere) {
  CallProbe probe;
  const auto model = accelerate::dispatch_model(probe, {{"", "cpu"}});
  FilledCache cache;
  const NestedBatch batch = nested_batch_on(torch::kCPU);
  model(batch, cache, at::TensorList(), Value());
  EXPECT_EQ(probe->address, &batch);
}

TEST(Calls, ResultsComeToWhereTheFirstArgumentWas) {
  CallProbe probe;
  const auto model = accelerate::dispatch_model(probe, {{"", "cpu"}}, {.skip_keys = {"here"}});
  FilledCache cache;
  auto result = model(nested_batch_on(torch::kMeta), cache, at::TensorList(), Value());
  EXPECT_TRUE(result.first.is_meta());
  EXPECT_TRUE(result.more["moves"].is_meta());
  EXPECT_TRUE(result.more["here"].is_cpu());
  result = model(NestedBatch(), cache, at::TensorList(), Value());
  EXPECT_TRUE(result.first.is_cpu()) << "no argument says where";
}

/// Forwards of other kinds.
struct ChangesItsArgumentImpl : torch::nn::Module {
  void forward(torch::Tensor& x) { x.add_(1); }
};
TORCH_MODULE(ChangesItsArgument);
struct TakesAnythingImpl : torch::nn::Module {
  TakesAnythingImpl() { register_parameter("weight", torch::ones({2})); }
  template <class... Everything>
  std::unique_ptr<int> forward(Everything&&... everything) {
    (look(everything), ...);
    return std::make_unique<int>(static_cast<int>(sizeof...(everything)));
  }
  void look(const torch::Tensor& tensor) { moved = tensor.is_meta(); }
  void look(FilledCache& cache) { cache.keys.push_back(torch::ones({1})); }
  void look(const std::unique_ptr<int>& pointer) { number = *pointer; }
  bool moved = false;
  int number = 0;
};
TORCH_MODULE(TakesAnything);

TEST(Calls, ForwardsOfAllKindsCanBeCalled) {
  const auto changes = accelerate::dispatch_model(ChangesItsArgument(), {{"", "cpu"}});
  auto x = torch::zeros({2});
  changes(x);
  EXPECT_TRUE(torch::equal(x, torch::ones({2})));

  TakesAnything takes;
  const auto anything = accelerate::dispatch_model(takes, {{"", "meta"}});
  FilledCache cache;
  EXPECT_EQ(*anything(x, cache, std::make_unique<int>(5)), 3);
  EXPECT_TRUE(takes->moved);
  EXPECT_EQ(cache.keys.size(), 1u);
  EXPECT_EQ(takes->number, 5);

  torch::nn::Sequential sequential(torch::nn::Linear(2, 3), torch::nn::Sigmoid());
  const auto dispatched = accelerate::dispatch_model(sequential, {{"", "meta"}});
  EXPECT_TRUE(dispatched(torch::ones({1, 2})).is_meta());
}

}  // namespace
