#include "accelerator/small_run.h"
#include "support/error_text.h"

namespace {

using namespace run_safety;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

/// Each rank has files of its own, as on hosts with disks of their own; those of some lack what must be received.
class TogetherBroadcastLoading : public Together {
 protected:
  /// A checkpoint of `source`; one without elements, which no rank must read, where `is_empty`.
  static std::string checkpoint(const TemporaryFolder& folder, const torch::nn::Module& source, bool is_empty) {
    auto state = accelerate::state_dict(source);
    if (is_empty) {
      for (auto& [name, tensor] : state) tensor = torch::zeros_like(tensor);
    }
    accelerate::save_weights(state, folder.path().string());
    return folder.path().string();
  }
  static void expect_equal(const torch::nn::Module& net, const torch::nn::Module& expected) {
    const auto found = accelerate::state_dict(net);
    for (const auto& [name, tensor] : accelerate::state_dict(expected))
      EXPECT_TRUE(torch::equal(found.at(name), tensor.to(found.at(name).scalar_type()))) << name;
  }
  /// The same on all ranks.
  static torch::nn::Sequential example() {
    torch::manual_seed(8);
    return torch::nn::Sequential(torch::nn::Linear(300, 70), torch::nn::BatchNorm1d(70), torch::nn::Embedding(11, 13));
  }
  static torch::nn::Sequential empty_example() {
    const accelerate::InitEmptyWeights empty;
    return example();
  }
};

TEST_F(TogetherBroadcastLoading, OneRankReadsWeightsForAll) {
  const TemporaryFolder folder;
  const auto source = example();
  const auto path = checkpoint(folder, *source, /*is_empty=*/rank() != 0);
  auto net = empty_example();
  accelerate::load_checkpoint_in_model(net, path, {.broadcast_from_rank0 = state()});
  expect_equal(*net, *source);
  auto half = empty_example();
  accelerate::load_checkpoint_and_dispatch(half, path,
                                           {.device_map = "auto", .dtype = torch::kBFloat16, .broadcast_from_rank0 = state()});
  expect_equal(*half, *source);
}

TEST_F(TogetherBroadcastLoading, OneRankOfEachHostReadsForThoseOfItsHost) {
  if (world() != 4) return;
  const auto environment = [](const std::string& name) -> std::optional<std::string> {
    if (name == "LOCAL_RANK") return std::to_string(rank() % 2);
    if (name == "LOCAL_WORLD_SIZE") return "2";
    return accelerate::process_environment(name);
  };
  const accelerate::ProcessState two_hosts({.cpu = true, .environment = environment});
  const TemporaryFolder folder;
  const auto source = example();
  auto net = empty_example();
  accelerate::load_checkpoint_in_model(net, checkpoint(folder, *source, /*is_empty=*/rank() % 2 == 1),
                                       {.broadcast_from_rank0 = two_hosts});
  expect_equal(*net, *source);
}

TEST_F(TogetherBroadcastLoading, WhatOneRankCannotReadIsAnErrorOfAll) {
  const TemporaryFolder folder;
  const auto source = example();
  const auto path = checkpoint(folder, *source, false);
  const auto refusal = [&](accelerate::LoadCheckpointOptions options) {
    options.broadcast_from_rank0 = state();
    auto net = empty_example();
    const auto message = message_of<CheckpointError>([&] { accelerate::load_checkpoint_in_model(net, path, options); });
    EXPECT_TRUE(net->parameters()[0].is_meta()) << "nothing was changed";
    return message;
  };
  expect_parts(refusal({.device_map = "disk", .offload_folder = folder / "offload"}),
               {"broadcast_from_rank0", "offloaded to disk"});
  expect_parts(refusal({.mmap = true}), {"broadcast_from_rank0", "mmap"});
  if (rank() == world() - 1) fs::resize_file(folder / "model.safetensors", 1000);
  expect_parts(refusal({}), {"rank " + std::to_string(world() - 1), "model.safetensors"});
  expect_parts(refusal({}), {"rank " + std::to_string(world() - 1), "model.safetensors"});
}

TEST_F(TogetherBroadcastLoading, OneRankReadsTheStateOfARunForAll) {
  const CommonFolder project(accelerator());
  SmallRun run(project.path());
  for (int step = 0; step < 3; ++step) run.step();
  run.accelerator.save_state();
  const auto saved = run.everything();
  // The other ranks find the files of their own alone.
  const TemporaryFolder own;
  const fs::path checkpoint = project / "checkpoints/checkpoint_0";
  fs::path folder = checkpoint;
  if (rank() != 0) {
    folder = own / "copy";
    fs::create_directory(folder);
    const std::string random = "random_states_" + std::to_string(rank()) + ".pkl";
    fs::copy(checkpoint / random, folder / random);
    fs::copy(checkpoint / "custom_checkpoint_0.pkl", folder / "custom_checkpoint_0.pkl");  // they are counted
    std::ofstream(folder / "custom_checkpoint_0.pkl") << "damaged";
  }
  run.step();
  run.accelerator.load_state(folder.string(), {.broadcast_from_rank0 = true});
  EXPECT_EQ(run.everything(), saved);
  for (const bool verify : {true, false}) {
    run.step();
    run.accelerator.load_state(checkpoint.string(), {.verify = verify, .broadcast_from_rank0 = true});
    EXPECT_EQ(run.everything(), saved);
  }
  run.accelerator.load_state({}, {.broadcast_from_rank0 = true});  // the newest
  EXPECT_EQ(run.everything(), saved);
}

TEST_F(TogetherBroadcastLoading, AFileOfARunThatCannotBeReadIsAnErrorOfAllAndChangesNothing) {
  const CommonFolder project(accelerator());
  SmallRun run(project.path());
  run.step();
  run.accelerator.save_state();
  run.step();
  const auto now = run.everything();
  run.accelerator.wait_for_everyone();
  if (rank() == 0) fs::resize_file(project / "checkpoints/checkpoint_0/optimizer.bin", 100);
  run.accelerator.wait_for_everyone();
  for (const bool verify : {true, false}) {
    expect_parts(message_of<CheckpointError>([&] {
                   run.accelerator.load_state((project / "checkpoints/checkpoint_0").string(),
                                              {.verify = verify, .broadcast_from_rank0 = true});
                 }),
                 {"optimizer.bin"});
    EXPECT_EQ(run.everything(), now);
  }
}

}  // namespace
