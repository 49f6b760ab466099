#include <fstream>
#include <set>

#include "checkpoint/host_copies.h"
#include "run_state/checkpoint_files.h"
#include "run_state/snapshot.h"
#include "sharding/sharded_model.h"
#include "sharding/sharded_nets.h"
#include "sharding/sharded_optimizer_state.h"
#include "support/error_text.h"

namespace {

using namespace sharded_nets;
using accelerate::Accelerator;
using accelerate::CheckpointError;
using accelerate::FsdpOptions;
using accelerate::StateDict;
using accelerate::StateDictType;
using accelerate::TensorDict;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

/// Layers whose weights are one, of another dtype, frozen, ignored, smaller than the ranks are many, and buffers.
struct OddNetImpl : torch::nn::Module {
  struct Borrower : torch::nn::Module {
    explicit Borrower(const torch::Tensor& lent) : weight(register_parameter("weight", lent)) {}
    torch::Tensor weight;
  };
  OddNetImpl() {
    first = register_module("first", torch::nn::Linear(5, 5));
    second = register_module("second", std::make_shared<Borrower>(first->weight));
    half = register_module("half", torch::nn::Linear(5, 3));
    half->to(torch::kBFloat16);
    frozen = register_module("frozen", torch::nn::Linear(3, 3));
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    ignored = register_module("ignored", torch::nn::Linear(3, 2));
    scale = register_parameter("scale", torch::ones({}));
    register_buffer("count", torch::tensor({3, 4}));
    steps = register_buffer("steps", torch::zeros({}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    steps.add_(1);
    const auto y = torch::tanh(torch::linear(first(x), second->weight)) * scale;
    return ignored(frozen(half(y.to(torch::kBFloat16)).to(torch::kFloat)));
  }
  torch::nn::Linear first{nullptr}, half{nullptr}, frozen{nullptr}, ignored{nullptr};
  std::shared_ptr<Borrower> second;
  torch::Tensor scale, steps;
};
TORCH_MODULE(OddNet);

/// Sharded on any number of ranks: one rank has nobody to share with, and offloads.
FsdpOptions sharded_on(int ranks, StateDictType type, FsdpOptions options = by_block()) {
  options.cpu_offload = ranks == 1;
  options.state_dict_type = type;
  return options;
}

FsdpOptions as_one_unit(FsdpOptions options) {
  options.transformer_layer_classes.clear();
  return options;
}

template <class Net>
struct StateRun {
  StateRun(std::optional<FsdpOptions> fsdp, int seed, Stepper stepper = Stepper::adamw, int accumulation = 1,
           bool sync_each_batch = false)
      : accelerator({.gradient_accumulation_steps = accumulation,
                     .gradient_accumulation = {.sync_each_batch = sync_each_batch},
                     .fsdp = std::move(fsdp),
                     .timeout = std::chrono::seconds(60)}),
        net(seeded(seed)),
        raw(make_optimizer(net, stepper)),
        model(accelerator.prepare_model(net)),
        optimizer(accelerator.prepare_optimizer(*raw)) {}
  static Net seeded(int seed) {
    torch::manual_seed(seed);
    return Net();
  }
  torch::Tensor loss(int step) {
    if constexpr (std::is_same_v<Net, OddNet>) {
      return model(torch::full({2, 5}, 0.1 * (step + 1) + accelerator.process_index(), accelerator.device())).square().mean();
    } else {
      return model(batch(accelerator, step)).square().mean();
    }
  }
  void train(int first, int end) {
    for (int step = first; step < end; ++step) {
      auto scope = accelerator.accumulate(model);
      accelerator.backward(loss(step));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  /// On the main process.
  TensorDict weights() {
    TensorDict copied;
    for (const auto& [name, tensor] : accelerator.get_state_dict(model)) {
      if (accelerator.is_main_process()) copied[name] = tensor.cpu().clone();
    }
    return copied;
  }
  /// In host memory.
  StateDict state() {
    StateDict whole = accelerate::state_dict(optimizer.optimizer());
    if (const auto* sharded = model.core()->sharded())
      whole = gather_optimizer_state(*sharded, optimizer.optimizer(), std::move(whole), accelerator.is_main_process());
    accelerate::detail::HostCopies copies;
    const auto copied = copied_value(whole, copies);
    copies.finish();
    return copied.template as<StateDict>();
  }

  Accelerator accelerator;
  Net net;
  std::unique_ptr<torch::optim::Optimizer> raw;
  decltype(std::declval<Accelerator>().prepare_model(std::declval<Net&>())) model;
  accelerate::AcceleratedOptimizer optimizer;
};
using GptRun = StateRun<TinyGpt>;
using OddRun = StateRun<OddNet>;

void expect_same_weights(const TensorDict& a, const TensorDict& b, const std::string& what) {
  EXPECT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, tensor] : a)
    EXPECT_TRUE(b.contains(name) && tensor.dtype() == b.at(name).dtype() && torch::equal(tensor, b.at(name)))
        << what << ": " << name;
}

/// Their tensors may be gathered on the main process alone.
template <class Net>
void expect_same_run(StateRun<Net>& a, StateRun<Net>& b, const std::string& what) {
  expect_same_weights(a.weights(), b.weights(), what);
  const StateDict before = a.state(), after = b.state();
  EXPECT_TRUE(!a.accelerator.is_main_process() || before == after) << what << ": the state of the optimizer";
}

std::set<std::string> files_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) names.insert(entry.path().lexically_relative(folder).string());
  }
  return names;
}

void change_byte(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(200);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(200);
  file.put(byte);
}

class TogetherShardedState : public Together {
 protected:
  FsdpOptions shards(FsdpOptions options = by_block()) const {
    return sharded_on(world(), StateDictType::sharded, std::move(options));
  }
  FsdpOptions whole() const { return sharded_on(world(), StateDictType::full); }
};

TEST_F(TogetherShardedState, EachRankWritesItsShardsAndNoFileHasTheWholeModel) {
  CommonFolder folder(accelerator());
  GptRun run(shards(), 3);
  run.train(0, 1);
  const std::string saved = run.accelerator.save_state(folder / "state");
  const auto names = files_in(saved);
  for (const std::string part : {"pytorch_model_fsdp_0/", "optimizer_0/"}) {
    EXPECT_TRUE(names.contains(part + ".metadata"));
    for (int i = 0; i < world(); ++i) EXPECT_TRUE(names.contains(part + "__" + std::to_string(i) + "_0.distcp")) << i;
  }
  for (const char* name : {"model.safetensors", "pytorch_model_fsdp.bin", "optimizer.bin"}) EXPECT_FALSE(names.contains(name));
  if (world() > 1) {
    const auto bytes = std::filesystem::file_size(saved + "/pytorch_model_fsdp_0/__0_0.distcp");
    // Each chunk has a header of about a kilobyte.
    EXPECT_LT(bytes, static_cast<uint64_t>(run.model.total_parameter_bytes() / world() + 60 * 1500));
  }
}

TEST_F(TogetherShardedState, TheWholeStateHasTheNamesThatPythonsFsdpLooksFor) {
  CommonFolder folder(accelerator());
  GptRun run(whole(), 3);
  run.train(0, 1);
  const auto names = files_in(run.accelerator.save_state(folder / "state"));
  EXPECT_TRUE(names.contains("pytorch_model_fsdp.bin") && names.contains("optimizer.bin"));
  EXPECT_FALSE(names.contains("model.safetensors") || names.contains("pytorch_model_fsdp_0/.metadata"));
}

TEST_F(TogetherShardedState, EveryKindOfRunLoadsEveryKindOfCheckpointToTheBit) {
  CommonFolder folder(accelerator());
  const std::vector<std::pair<std::string, std::optional<FsdpOptions>>> kinds = {
      {"shards", shards()}, {"one unit", as_one_unit(shards())}, {"whole", whole()}, {"not sharded", std::nullopt}};
  for (const auto& [from, options] : kinds) {
    GptRun saved(options, 3);
    saved.train(0, 2);
    saved.accelerator.save_state(folder / from);
    for (const auto& [into, others] : kinds) {
      GptRun loaded(others, 4);
      loaded.accelerator.load_state(folder / from);
      expect_same_run(saved, loaded, from + " into " + into);
    }
  }
}

TEST_F(TogetherShardedState, TiedFrozenIgnoredAndTinyWeightsOfAnyDtypeAndBuffersAreSaved) {
  CommonFolder folder(accelerator());
  FsdpOptions options = shards({});
  options.ignored_modules = {"ignored"};
  OddRun saved(options, 3);
  saved.train(0, 2);
  saved.accelerator.save_state(folder / "state");
  for (const bool is_sharded : {true, false}) {
    OddRun loaded(is_sharded ? std::optional(options) : std::nullopt, 4);
    loaded.accelerator.load_state(folder / "state");
    expect_same_run(saved, loaded, is_sharded ? "sharded" : "not sharded");
    EXPECT_EQ(loaded.net->steps.template item<double>(), 2);
  }
}

TEST_F(TogetherShardedState, ARunThatWasResumedTakesTheSameStepsToTheBit) {
  CommonFolder folder(accelerator());
  for (const int accumulation : {1, 3}) {
    // With accumulation it is saved between the batches of a step, with the gradients of each rank.
    GptRun run(shards(), 3, Stepper::adamw, accumulation);
    run.train(0, 4);
    run.accelerator.save_state(folder / std::to_string(accumulation));
    run.train(4, 9);
    GptRun resumed(shards(), 4, Stepper::adamw, accumulation);
    resumed.accelerator.load_state(folder / std::to_string(accumulation));
    resumed.train(4, 9);
    expect_same_run(run, resumed, "accumulation " + std::to_string(accumulation));
  }
}

/// What is accumulated lies on each rank, or, averaged, in pieces; in ignored modules and in tied weights, too.
TEST_F(TogetherShardedState, AnAccumulationGoesOnInRunsThatAreShardedInAnyWay) {
  CommonFolder folder(accelerator());
  const FsdpOptions by_layer{.transformer_layer_classes = {"Linear"}, .ignored_modules = {"ignored"}};
  for (const bool is_averaged : {false, true}) {
    const auto run_on = [&](std::optional<FsdpOptions> options, int seed) {
      return std::make_unique<OddRun>(std::move(options), seed, Stepper::momentum, 3, is_averaged);
    };
    const auto path = folder / (is_averaged ? "averaged" : "local");
    const auto run = run_on(shards(by_layer), 3);
    run->train(0, 5);
    run->accelerator.save_state(path);
    run->train(5, 9);
    const auto resumed = run_on(shards(by_layer), 4);
    resumed->accelerator.load_state(path);
    resumed->train(5, 9);
    expect_same_run(*run, *resumed, is_averaged ? "averaged" : "local");
    const auto expected = run->weights();
    for (const bool is_sharded : {true, false}) {
      const auto other = run_on(is_sharded ? std::optional(shards(as_one_unit(by_layer))) : std::nullopt, 5);
      other->accelerator.load_state(path);
      other->train(5, 9);
      for (const auto& [name, tensor] : other->weights())
        EXPECT_TRUE(torch::allclose(tensor, expected.at(name), name.starts_with("half") ? 1e-2 : 1e-5, 1e-6))
            << name << (is_averaged ? ", averaged" : ", local") << (is_sharded ? ", one unit" : ", replicated");
    }
  }
}

TEST_F(TogetherShardedState, AnAsynchronousSaveHasTheShardsOfItsCall) {
  CommonFolder folder(accelerator());
  GptRun run(shards(), 3), same(shards(), 3);
  run.train(0, 2);
  same.train(0, 2);
  run.accelerator.save_state(folder / "state", {.async = true});
  run.train(2, 5);
  run.accelerator.end_training();
  GptRun loaded(as_one_unit(shards()), 4);
  loaded.accelerator.load_state(folder / "state");
  expect_same_run(same, loaded, "asynchronous");
}

TEST_F(TogetherShardedState, WeightsThatChangeRightAfterAnAsynchronousSaveAreSavedAsTheyWere) {
  CommonFolder folder(accelerator());
  const auto make = [] {
    return Accelerator({.fsdp = sharded_on(world(), StateDictType::sharded, FsdpOptions{}), .timeout = std::chrono::seconds(60)});
  };
  {
    auto run = make();
    torch::nn::Linear net(1024, 4096);  // 16 MB: changed sooner than written
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = run.prepare(net, sgd);
    {
      torch::NoGradGuard no_grad;
      net->weight.fill_(1);
    }
    run.save_state(folder / "state", {.async = true});
    {
      torch::NoGradGuard no_grad;
      net->weight.fill_(2);
    }
    run.end_training();
  }
  auto run = make();
  torch::nn::Linear net(1024, 4096);
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = run.prepare(net, sgd);
  run.load_state(folder / "state");
  torch::NoGradGuard no_grad;
  EXPECT_TRUE((net->weight == 1).all().item<bool>());
}

TEST_F(TogetherShardedState, OfSeveralCopiesTheFirstOneIsSaved) {
  if (world() != 4) return;
  CommonFolder folder(accelerator());
  FsdpOptions options = shards();
  options.sharding_strategy = accelerate::ShardingStrategy::hybrid_shard;
  options.shard_group_size = 2;
  GptRun saved(options, 3);
  saved.train(0, 2);
  saved.accelerator.save_state(folder / "state");
  const auto names = files_in(folder / "state");
  EXPECT_TRUE(names.contains("pytorch_model_fsdp_0/__1_0.distcp") && names.contains("optimizer_0/__1_0.distcp"));
  EXPECT_FALSE(names.contains("pytorch_model_fsdp_0/__2_0.distcp") || names.contains("optimizer_0/__3_0.distcp"));
  for (const auto& into : {options, shards()}) {
    GptRun loaded(into, 4);
    loaded.accelerator.load_state(folder / "state");
    expect_same_run(saved, loaded, "hybrid");
  }
}

TEST_F(TogetherShardedState, AShardThatIsDamagedOrMissingIsAnErrorOnAllRanksThatNamesItAndChangesNothing) {
  CommonFolder folder(accelerator());
  GptRun run(shards(), 3);
  run.train(0, 1);
  run.accelerator.save_state(folder / "state");
  GptRun other(shards(), 4);
  const auto before = other.weights();
  const std::string file = "pytorch_model_fsdp_0/__" + std::to_string(world() - 1) + "_0.distcp";
  if (rank() == 0) change_byte(folder / ("state/" + file));
  accelerator().wait_for_everyone();
  expect_parts(message_of<CheckpointError>([&] { other.accelerator.load_state(folder / "state"); }), {file, "corrupt"});
  accelerator().wait_for_everyone();
  if (rank() == 0) std::filesystem::remove(folder / ("state/" + file));
  accelerator().wait_for_everyone();
  expect_parts(message_of<CheckpointError>([&] { other.accelerator.load_state(folder / "state"); }), {file, "missing"});
  accelerator().wait_for_everyone();
  // Without the manifest, as Python would have left it.
  if (rank() == 0) std::filesystem::remove(folder / "state/accelerate_manifest.json");
  accelerator().wait_for_everyone();
  expect_parts(message_of<CheckpointError>([&] { other.accelerator.load_state(folder / "state"); }), {file});
  expect_same_weights(before, other.weights(), "after failures");
}

TEST_F(TogetherShardedState, ACheckpointReplacesTheShardsOrTheWholeModelThatWereThere) {
  CommonFolder folder(accelerator());
  GptRun run(shards(), 3), other(whole(), 3);
  run.accelerator.save_state(folder / "state");
  if (rank() == 0) std::ofstream(folder / "state/pytorch_model_fsdp_0/notes.txt") << "kept";
  accelerator().wait_for_everyone();
  other.accelerator.save_state(folder / "state");
  auto names = files_in(folder / "state");
  EXPECT_TRUE(names.contains("pytorch_model_fsdp.bin") && names.contains("pytorch_model_fsdp_0/notes.txt"));
  EXPECT_FALSE(names.contains("pytorch_model_fsdp_0/.metadata") || names.contains("optimizer_0/.metadata"));
  EXPECT_FALSE(names.contains("pytorch_model_fsdp_0/__0_0.distcp"));
  accelerator().wait_for_everyone();
  run.accelerator.save_state(folder / "state");
  names = files_in(folder / "state");
  EXPECT_TRUE(names.contains("pytorch_model_fsdp_0/.metadata") && names.contains("optimizer_0/.metadata"));
  EXPECT_FALSE(names.contains("pytorch_model_fsdp.bin") || names.contains("optimizer.bin"));
}

TEST_F(TogetherShardedState, SaveModelStreamsTheWholeWeightsInOneFileOrSeveral) {
  CommonFolder folder(accelerator());
  FsdpOptions options = shards({});
  options.ignored_modules = {"ignored"};
  OddRun run(options, 3);
  run.train(0, 1);
  const auto expected = run.weights();
  for (const auto& [name, size] : {std::pair<std::string, std::string>{"one", "10GB"}, {"several", "100"}}) {
    run.accelerator.save_model(run.model, (folder / name).string(), {.max_shard_size = size});
    if (rank() != 0) continue;
    EXPECT_EQ(std::filesystem::exists(folder / (name + "/model.safetensors.index.json")), name == "several");
    auto saved = accelerate::load_weights((folder / name).string());
    EXPECT_FALSE(saved.contains("second.weight"));  // a safetensors file has weights that are tied once
    saved["second.weight"] = saved["first.weight"];
    expect_same_weights(expected, saved, name);
  }
  // One rank cannot write: the others wait for it in no collective.
  if (rank() == 0) std::ofstream(folder / "file") << "not a folder";
  accelerator().wait_for_everyone();
  expect_parts(message_of<CheckpointError>([&] { run.accelerator.save_model(run.model, (folder / "file").string()); }), {"file"});
}

TEST_F(TogetherShardedState, AModelThatAHookTakesOutIsNotSaved) {
  CommonFolder folder(accelerator());
  GptRun run(shards(), 3);
  auto handle = run.accelerator.register_save_state_pre_hook([](const auto&, auto& weights, const std::string&) {
    EXPECT_TRUE(weights.at(0).empty());
    weights.pop_back();
  });
  const auto names = files_in(run.accelerator.save_state(folder / "state"));
  EXPECT_FALSE(names.contains("pytorch_model_fsdp_0/.metadata"));
  EXPECT_TRUE(names.contains("optimizer_0/.metadata"));
}

TEST_F(TogetherShardedState, AnOptimizerWithOtherParametersIsRefusedByName) {
  CommonFolder folder(accelerator());
  OddRun run(shards({}), 3);
  run.train(0, 1);
  run.accelerator.save_state(folder / "state");
  Accelerator second({.fsdp = shards({}), .timeout = std::chrono::seconds(60)});
  auto net = OddRun::seeded(4);
  torch::optim::AdamW raw(net->first->parameters(), torch::optim::AdamWOptions(0.1));
  auto model = second.prepare_model(net);
  auto optimizer = second.prepare_optimizer(raw);
  expect_parts(message_of<CheckpointError>([&] { second.load_state(folder / "state"); }), {"has the parameter", "in group 0"});
}

TEST(ShardedStateNames, FilesOfShardsBelongToACheckpointAndOthersBesideThemDoNot) {
  using accelerate::detail::is_checkpoint_file;
  for (const char* name : {"pytorch_model_fsdp.bin", "pytorch_model_fsdp_1.bin", "pytorch_model_fsdp_0/.metadata",
                           "pytorch_model_fsdp_12/__3_0.distcp", "optimizer_0/.metadata", "optimizer_1/__10_2.distcp"})
    EXPECT_TRUE(is_checkpoint_file(name)) << name;
  for (const char* name :
       {"pytorch_model_fsdp/.metadata", "pytorch_model_fsdp_0", "pytorch_model_fsdp_0/notes", "optimizer/.metadata",
        "optimizer_0/__a_0.distcp", "optimizer_0/__0.distcp", "shards/.metadata", "optimizer_0/a/.metadata"})
    EXPECT_FALSE(is_checkpoint_file(name)) << name;
}

}  // namespace
