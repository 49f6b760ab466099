// Checkpoints that are loaded by a run that is not quite the one that saved: what would go wrong without a word is an error.
#include <torch/torch.h>

#include <map>

#include "accelerator/small_run.h"
#include "checkpoint/value_file.h"
#include "core/file.h"
#include "support/error_text.h"

namespace run_safety {
namespace {

using accelerate::DataLoader;
using accelerate::DataLoaderOptions;
using accelerate::testing::message_of;

/// Sample i is i.
struct Positions {
  size_t size() const { return static_cast<size_t>(length); }
  int64_t get(size_t i) const { return static_cast<int64_t>(i); }
  int64_t length = 0;
};

/// Lets the next run begin.
Accelerator& without_objects(Accelerator& accelerator) {
  accelerator.free_memory();
  return accelerator;
}

/// A run that does nothing but read. It takes the place of the one before: a group for each would take its time.
struct ReadingRun {
  ReadingRun(Accelerator& its_accelerator, int64_t samples, const DataLoaderOptions& options)
      : accelerator(without_objects(its_accelerator)), loader(accelerator.prepare(DataLoader(Positions{samples}, options))) {}

  /// Reads `batches` of the next epoch, saves into `folder`, and returns what all processes have read.
  std::vector<int64_t> read_and_save(int64_t batches, const std::string& folder) {
    std::vector<int64_t> read;
    int64_t count = 0;
    for (auto& batch : loader) {
      for (int64_t i = 0; i < batch.size(0); ++i) read.push_back(batch[i].item<int64_t>());
      if (++count < batches) continue;
      accelerator.save_state(folder);
      break;
    }
    return accelerator.gather_object(read);
  }
  std::vector<int64_t> read_epoch() {
    std::vector<int64_t> read;
    for (auto& batch : loader) {
      for (int64_t i = 0; i < batch.size(0); ++i) read.push_back(batch[i].item<int64_t>());
    }
    return accelerator.gather_object(read);
  }

  Accelerator& accelerator;
  DataLoader<at::Tensor> loader;
};

std::map<int64_t, int> times_seen(const std::vector<int64_t>& first, const std::vector<int64_t>& second = {}) {
  std::map<int64_t, int> seen;
  for (const int64_t number : first) ++seen[number];
  for (const int64_t number : second) ++seen[number];
  return seen;
}

std::map<int64_t, int> each_once(int64_t samples) {
  std::map<int64_t, int> seen;
  for (int64_t i = 0; i < samples; ++i) seen[i] = 1;
  return seen;
}

class TogetherResume : public Together {};

TEST_F(TogetherResume, TheMiddleOfAnEpochNeedsADatasetOfTheSameLength) {
  CommonFolder folder(accelerator());
  const std::string saved = folder / "saved";
  // A number of samples that 1, 2, 3 and 4 processes divide evenly.
  const DataLoaderOptions shuffled{.batch_size = 2, .shuffle = true};
  const auto before = ReadingRun(accelerator(), 48, shuffled).read_and_save(2, saved);
  for (const int64_t samples : {47, 72}) {
    ReadingRun other(accelerator(), samples, shuffled);
    const std::string error = message_of<CheckpointError>([&] { other.accelerator.load_state(saved); });
    expect_in("accelerate_state.bin does not fit this run", error);
    expect_in("its dataset has " + std::to_string(samples) + " samples, and had 48", error);
    expect_in("in the middle of epoch 0", error);
    expect_in(".restart_epoch = true", error);
  }
  ReadingRun anew(accelerator(), 72, shuffled);
  anew.accelerator.load_state(saved, {.restart_epoch = true});
  EXPECT_EQ(anew.loader.iteration(), 0);
  EXPECT_EQ(times_seen(anew.read_epoch()), each_once(72));
  EXPECT_EQ(anew.loader.iteration(), 1);
  ReadingRun same(accelerator(), 48, shuffled);
  same.accelerator.load_state(saved);
  EXPECT_EQ(times_seen(before, same.read_epoch()), each_once(48));
}

TEST_F(TogetherResume, AtTheEndOfAnEpochTheDatasetMayHaveAnotherLength) {
  CommonFolder folder(accelerator());
  const DataLoaderOptions options{.batch_size = 2, .shuffle = true};
  Accelerator dispatching({.dataloader = {.dispatch_batches = true}});
  for (Accelerator* each : {&accelerator(), &dispatching}) {
    ReadingRun first(*each, 48, options);
    first.read_and_save(24 / world(), folder / "last_batch");  // in the loop, with the last batch in hand
    first.read_epoch();
    first.accelerator.save_state(folder / "between");
    for (const int64_t samples : {24, 72}) {
      ReadingRun between(*each, samples, options);
      between.accelerator.load_state(folder / "between");
      EXPECT_EQ(between.loader.iteration(), 1);
      EXPECT_EQ(times_seen(between.read_epoch()), each_once(samples));
      ReadingRun after_last(*each, samples, options);
      after_last.accelerator.load_state(folder / "last_batch");
      EXPECT_EQ(after_last.read_epoch(), std::vector<int64_t>()) << "nothing was left of that epoch";
      EXPECT_EQ(after_last.loader.iteration(), 1);
      EXPECT_EQ(times_seen(after_last.read_epoch()), each_once(samples));
      ReadingRun not_anew(*each, samples, options);
      not_anew.accelerator.load_state(folder / "last_batch", {.restart_epoch = true});
      EXPECT_EQ(not_anew.read_epoch(), std::vector<int64_t>()) << "an epoch that has ended is not started anew";
    }
  }
}

TEST_F(TogetherResume, TheMiddleOfAnEpochNeedsTheSameOrderAndBatchSize) {
  CommonFolder folder(accelerator());
  const std::string saved = folder / "saved";
  ReadingRun(accelerator(), 48, {.batch_size = 2, .shuffle = true}).read_and_save(2, saved);
  ReadingRun ordered(accelerator(), 48, {.batch_size = 2});
  std::string error = message_of<CheckpointError>([&] { ordered.accelerator.load_state(saved); });
  expect_in("its order is that of accelerate::SequentialSampler, and was that of accelerate::RandomSampler", error);
  ReadingRun wider(accelerator(), 48, {.batch_size = 4, .shuffle = true});
  error = message_of<CheckpointError>([&] { wider.accelerator.load_state(saved); });
  expect_in("its batch_size is 4, and was 2", error);
  wider.accelerator.load_state(saved, {.restart_epoch = true});
  EXPECT_EQ(times_seen(wider.read_epoch()), each_once(48));
}

TEST_F(TogetherResume, BatchesMayBeSplitFromNowOn) {
  CommonFolder folder(accelerator());
  const std::string saved = folder / "saved";
  const DataLoaderOptions options{.batch_size = 12, .shuffle = true};
  const auto before = ReadingRun(accelerator(), 144, options).read_and_save(2, saved);
  Accelerator splitting({.dataloader = {.split_batches = true}});
  ReadingRun split(splitting, 144, options);
  split.accelerator.load_state(saved);
  EXPECT_EQ(times_seen(before, split.read_epoch()), each_once(144));
}

TEST_F(TogetherResume, WhatWasLoadedIsSavedAgainBeforeTheNextPassBegins) {
  CommonFolder folder(accelerator());
  const DataLoaderOptions options{.batch_size = 2, .shuffle = true};
  const auto before = ReadingRun(accelerator(), 48, options).read_and_save(2, folder / "first");
  ReadingRun second(accelerator(), 48, options);
  second.accelerator.load_state(folder / "first");
  second.accelerator.save_state(folder / "second");
  ReadingRun third(accelerator(), 48, options);
  third.accelerator.load_state(folder / "second");
  EXPECT_EQ(times_seen(before, third.read_epoch()), each_once(48));
}

/// As many positions as somebody else says.
struct ChangingPositions {
  size_t size() const { return static_cast<size_t>(*length); }
  int64_t get(size_t i) const { return static_cast<int64_t>(i); }
  std::shared_ptr<int64_t> length = std::make_shared<int64_t>(48);
};

TEST_F(TogetherResume, AFailedLoadLeavesALoaderWhereItWasWhateverItsDataAreByThen) {
  CommonFolder folder(accelerator());
  without_objects(accelerator());
  ChangingPositions first_data, second_data;
  auto [first, second] =
      accelerator().prepare(DataLoader(first_data, {.batch_size = 2}), DataLoader(second_data, {.batch_size = 2}));
  {
    auto in_first = first.begin(), in_second = second.begin();
    accelerator().save_state(folder / "state");
  }
  first.set_epoch(1);
  *first_data.length = 40;
  auto in_first = first.begin();
  ++in_first;
  *first_data.length = 48;  // fits the checkpoint, and not the pass that is under way
  *second_data.length = 40;
  EXPECT_THROW(accelerator().load_state(folder / "state"), CheckpointError);
  EXPECT_EQ(first.iteration(), 1);
  EXPECT_EQ(first.state_dict().at("batches"), accelerate::Value(2));
  ++in_first;
  EXPECT_EQ(first.state_dict().at("batches"), accelerate::Value(3));
}

// --- Names of parameters --------------------------------------------------------------------------------------------------

/// Two layers of one shape, and a third whose weight is the first one's.
struct Twins : torch::nn::Module {
  Twins()
      : left(register_module("left", torch::nn::Linear(3, 3))),
        right(register_module("right", torch::nn::Linear(3, 3))),
        tied(register_parameter("tied", left->weight)) {}
  at::Tensor forward(const at::Tensor& x) { return left(right(x)) + torch::linear(x, tied); }
  torch::nn::Linear left, right;
  at::Tensor tied;
};

/// One step of Adam over the weights that `choose` takes of the net.
struct TwinRun {
  TwinRun(Accelerator& its_accelerator, const std::function<std::vector<at::Tensor>(Twins&)>& choose)
      : accelerator(without_objects(its_accelerator)),
        net(std::make_shared<Twins>()),
        adam(choose(*net), torch::optim::AdamOptions(0.1)) {
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(model(torch::ones({2, 3})).sum());
    optimizer.step();
  }
  std::string weights() const {
    std::ostringstream text;
    for (const auto& parameter : net->parameters()) text << parameter;
    text << accelerate::state_dict(adam).at("state")["0"]["exp_avg"].as<at::Tensor>();
    return text.str();
  }
  Accelerator& accelerator;
  std::shared_ptr<Twins> net;
  torch::optim::Adam adam;
};

TEST_F(TogetherResume, AnOptimizerThatListsItsParametersInAnotherOrderIsRefused) {
  CommonFolder folder(accelerator());
  const std::string saved = folder / "saved";
  const auto in_order = [](Twins& net) { return net.parameters(); };
  TwinRun(accelerator(), in_order).accelerator.save_state(saved);
  TwinRun swapped(accelerator(), [](Twins& net) {
    return std::vector{net.right->weight, net.right->bias, net.left->weight, net.left->bias};
  });
  const std::string before = swapped.weights();
  const std::string error = message_of<CheckpointError>([&] { swapped.accelerator.load_state(saved); });
  expect_in("accelerate_state.bin does not fit this run", error);
  // The weight of the left layer is known under its first name.
  expect_in("parameter 0 of optimizer 0 was tied of model 0 when the checkpoint was saved", error);
  expect_in("and is right.weight of model 0 now", error);
  EXPECT_EQ(swapped.weights(), before) << "the run was changed";
  TwinRun same(accelerator(), [](Twins& net) {
    return std::vector{net.tied, net.left->bias, net.right->weight, net.right->bias};
  });
  EXPECT_EQ(message_of<CheckpointError>([&] { same.accelerator.load_state(saved); }), "no error");
}

TEST_F(TogetherResume, AnOptimizerOfOtherParametersIsRefused) {
  CommonFolder folder(accelerator());
  const std::string saved = folder / "saved";
  TwinRun(accelerator(), [](Twins& net) { return std::vector{net.left->bias, net.right->weight}; }).accelerator.save_state(saved);
  TwinRun other(accelerator(), [](Twins& net) { return std::vector{net.right->bias, net.right->weight}; });
  expect_in("parameter 0 of optimizer 0 was left.bias of model 0 when the checkpoint was saved, and is right.bias of model 0",
            message_of<CheckpointError>([&] { other.accelerator.load_state(saved); }));
  TwinRun stray(accelerator(), [](Twins& net) { return std::vector{torch::ones({3}).requires_grad_(), net.right->weight}; });
  expect_in("and is a parameter of no prepared model now",
            message_of<CheckpointError>([&] { stray.accelerator.load_state(saved); }));
}

TEST_F(TogetherResume, ParametersWithoutANameAreSavedAsSuch) {
  CommonFolder folder(accelerator());
  const std::string saved = folder / "saved";
  const auto stray = [](Twins& net) { return std::vector{torch::ones({3}).requires_grad_(), net.right->weight}; };
  TwinRun(accelerator(), stray).accelerator.save_state(saved);
  const auto own = accelerate::detail::read_value(accelerate::detail::InputFile(saved + "/accelerate_state.bin"));
  EXPECT_EQ(to_string(own["parameter_names"]), "[[None, '0.right.weight']]");
  TwinRun again(accelerator(), stray);
  EXPECT_EQ(message_of<CheckpointError>([&] { again.accelerator.load_state(saved); }), "no error");
}

TEST_F(TogetherResume, ModelsThatAHookLoadsUnderNewNamesAreNotCompared) {
  CommonFolder folder(accelerator());
  const std::string saved = folder / "saved";
  const auto in_order = [](auto& net) { return net.parameters(); };
  TwinRun(accelerator(), in_order).accelerator.save_state(saved);
  torch::nn::Sequential renamed(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
  torch::optim::Adam adam(renamed->parameters(), torch::optim::AdamOptions(0.1));
  Accelerator own;
  const auto prepared = own.prepare(renamed, adam);
  own.register_load_state_pre_hook([](auto& models, const std::string&) { models.clear(); });
  EXPECT_EQ(message_of<CheckpointError>([&] { own.load_state(saved); }), "no error");
}

// --- Rounding -------------------------------------------------------------------------------------------------------------

/// Layers that are called in another order than they are registered in: their gradients are ready in another order too.
struct Shuffled : torch::nn::Module {
  Shuffled() {
    for (int i = 0; i < 5; ++i) layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(33, 33)));
  }
  at::Tensor forward(at::Tensor x) {
    for (const size_t i : {2, 4, 0, 3, 1}) x = torch::tanh(layers[i](x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

/// A run that takes the steps it is told to.
struct ShuffledRun {
  explicit ShuffledRun(Accelerator& its_accelerator)
      : accelerator(without_objects(its_accelerator)),
        net(std::make_shared<Shuffled>()),
        sgd(net->parameters(), 0.5),
        prepared(accelerator.prepare(net, sgd)) {}
  void take_steps(int64_t begin, int64_t end) {
    auto& [model, optimizer] = prepared;
    for (int64_t step = begin; step < end; ++step) {
      torch::manual_seed(100 * step + accelerator.process_index());
      accelerator.backward(model(torch::randn({4, 33})).square().sum());
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  at::Tensor weights() const { return torch::nn::utils::parameters_to_vector(net->parameters()).detach().clone(); }

  Accelerator& accelerator;
  std::shared_ptr<Shuffled> net;
  torch::optim::SGD sgd;
  decltype(accelerator.prepare(net, sgd)) prepared;
};

// The place of an element in its bucket decides in which order the ranks' values are added, and buckets are laid out in the order
// in which gradients were ready first. On three ranks and more that shows in the last bits of a sum.
TEST_F(TogetherResume, SumsAreRoundedAsInTheRunThatSaved) {
  CommonFolder folder(accelerator());
  ShuffledRun first(accelerator());
  first.take_steps(0, 3);
  accelerator().save_state(folder / "saved");
  first.take_steps(3, 6);
  ShuffledRun second(accelerator());
  accelerator().load_state(folder / "saved");
  second.take_steps(3, 6);
  EXPECT_TRUE(torch::equal(first.weights(), second.weights())) << (first.weights() - second.weights()).abs().max();
}

}  // namespace
}  // namespace run_safety
