// A folder of offloaded weights that is there already.
#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include "big_model/towers.h"

namespace fs = std::filesystem;
using towers::empty_tower;
using towers::Saved;
using towers::Tower;

namespace {

/// A folder that has all weights of the saved tower.
class OffloadReuse : public ::testing::Test {
 protected:
  OffloadReuse() {
    Tower tower(100, 32, 4);
    accelerate::load_checkpoint_in_model(tower, saved.checkpoint());
    accelerate::disk_offload(tower, saved.offload());
  }

  fs::path file(const std::string& name) const { return fs::path(saved.offload()) / name; }
  bool answers(const auto& model) const {
    const torch::NoGradGuard no_grad;
    return torch::equal(model(saved.tokens), saved.answer);
  }

  const Saved saved;
};

TEST_F(OffloadReuse, GivesItsWeightsToAModelThatHasNone) {
  const auto before = fs::last_write_time(file("head.weight.dat"));
  const auto model = accelerate::disk_offload(empty_tower(), saved.offload());
  EXPECT_TRUE(answers(model));
  EXPECT_EQ(fs::last_write_time(file("head.weight.dat")), before) << "written again";
  EXPECT_TRUE(answers(accelerate::dispatch_model(empty_tower(), {{"", "disk"}}, {.offload_dir = saved.offload(), .mmap = true})));
}

TEST_F(OffloadReuse, IsUsedInsteadOfWhatAModelHasInMemory) {
  const Tower other(100, 32, 4);
  EXPECT_TRUE(answers(accelerate::disk_offload(other, saved.offload())));
}

TEST_F(OffloadReuse, TakesChangesAsIfItWereNew) {
  Tower tower = empty_tower();
  accelerate::disk_offload(tower, saved.offload());
  const torch::NoGradGuard no_grad;
  tower->head->weight.mul_(0);
  const auto model = accelerate::disk_offload(empty_tower(), saved.offload());
  EXPECT_EQ(model(saved.tokens).abs().sum().item<double>(), 0);
}

TEST_F(OffloadReuse, AFolderThatLacksSomethingIsWrittenAgainFromTheModel) {
  const auto own = [&](auto&& damage) {
    damage();
    Tower tower(100, 32, 4);
    const torch::NoGradGuard no_grad;
    const auto answer = tower->forward(saved.tokens);
    return torch::equal(accelerate::disk_offload(tower, saved.offload())(saved.tokens), answer);
  };
  EXPECT_TRUE(own([&] { fs::remove(file("blocks.1.up.bias.dat")); }));
  EXPECT_TRUE(own([&] { fs::resize_file(file("head.weight.dat"), 8); }));
  EXPECT_TRUE(own([&] {
    accelerate::TensorDict one;
    one["head.weight"] = torch::ones({3, 3});
    accelerate::offload_state_dict(saved.offload(), one);
  })) << "of another shape";
  EXPECT_TRUE(own([&] {
    accelerate::TensorDict one;
    one["head.weight"] = torch::ones({100, 32}, torch::kBFloat16);
    accelerate::offload_state_dict(saved.offload(), one);
  })) << "of another dtype";
}

TEST_F(OffloadReuse, AModelWithoutWeightsCannotMakeUpForAFolderThatLacksThem) {
  fs::remove(file("blocks.1.up.bias.dat"));
  Tower tower = empty_tower();
  tower->head->weight.set_data(torch::empty({100, 32}, torch::kMeta));  // and nobody knows how it was made
  EXPECT_THROW(accelerate::disk_offload(tower, saved.offload()), accelerate::CheckpointError);
  EXPECT_TRUE(tower->embedding->weight.is_meta()) << "nothing was changed";
}

TEST_F(OffloadReuse, AnIndexThatIsNoneIsAnErrorBeforeAnythingIsWritten) {
  std::ofstream(file("index.json")) << "[somebody's list";
  const auto before = fs::last_write_time(file("head.weight.dat"));
  const Tower tower(100, 32, 4);
  try {
    accelerate::disk_offload(tower, saved.offload());
    ADD_FAILURE();
  } catch (const accelerate::CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("index.json"), std::string::npos) << error.what();
  }
  EXPECT_EQ(fs::last_write_time(file("head.weight.dat")), before);
  EXPECT_FALSE(accelerate::has_offloaded_params(*tower));
}

TEST(LoadCheckpoint, KeepsModulesInFloat32AndTakesWhatPythonTakes) {
  const Saved saved;
  Tower tower = empty_tower();
  accelerate::load_checkpoint_in_model(tower, saved.checkpoint(),
                                       {.device_map = {{"", "cpu"}},
                                        .offload_folder = saved.offload(),
                                        .dtype = torch::kHalf,
                                        .keep_in_fp32_modules = {"norm", "temperature"},
                                        .offload_state_dict = true});
  for (const auto& parameter : tower->named_parameters()) {
    const bool kept = parameter.key().find("norm.") != std::string::npos || parameter.key() == "temperature";
    EXPECT_EQ(parameter.value().scalar_type(), kept ? torch::kFloat : torch::kHalf) << parameter.key();
  }
  EXPECT_FALSE(fs::exists(saved.offload()));
}

}  // namespace
