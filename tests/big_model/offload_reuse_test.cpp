// A folder of offloaded weights that is there already.
#include <accelerate/accelerate.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "big_model/towers.h"
#include "support/error_text.h"
#include "support/limit.h"

namespace fs = std::filesystem;
using towers::empty_tower;
using towers::Saved;
using towers::Tower;

namespace {

using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

uint64_t inode_of(const fs::path& path) {
  struct stat status {};
  stat(path.c_str(), &status);
  return status.st_ino;
}

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
  expect_parts(message_of<accelerate::CheckpointError>([&] { accelerate::disk_offload(tower, saved.offload()); }),
               {"index.json"});
  EXPECT_EQ(fs::last_write_time(file("head.weight.dat")), before);
  EXPECT_FALSE(accelerate::has_offloaded_params(*tower));
}

TEST_F(OffloadReuse, AFileThatSomebodyChangesIsAnErrorAndNotWrongNumbers) {
  const fs::path head = file("head.weight.dat");
  const auto content = [](const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  const std::string before = content(head), other(before.size(), 'x');
  const auto write = [](const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; };
  const std::vector<std::pair<std::string, std::function<void()>>> changes = {
      {"changed", [&] { write(head, other); }},
      {"changed", [&] { write(head, other.substr(1)); }},
      {"changed", [&] { write(file("new"), other), fs::rename(file("new"), head); }},
      {"Cannot open", [&] { fs::remove(head); }},
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    const auto& [word, change] = changes[i];
    write(head, before);
    fs::last_write_time(head, fs::last_write_time(head) - std::chrono::seconds(10));  // some file systems count whole seconds
    Tower tower = empty_tower();
    const auto model = accelerate::disk_offload(tower, saved.offload());
    EXPECT_TRUE(answers(model));
    change();
    const torch::NoGradGuard no_grad;
    const auto expect_error = [&](auto&& use) {
      SCOPED_TRACE(i);
      expect_parts(message_of<accelerate::CheckpointError>(use), {"head.weight.dat", word});
    };
    const std::string changed = content(head);
    expect_error([&] { tower->head->weight.mul_(0); });
    EXPECT_EQ(content(head), changed) << i << ": somebody else's file was written";
    model.release_memory();
    expect_error([&] { model(saved.tokens); });
  }
}

TEST_F(OffloadReuse, IsACheckpointToo) {
  // More weights than files may be open.
  const auto open_files = std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  const Limit few(RLIMIT_NOFILE, static_cast<rlim_t>(open_files) + 22);
  for (const char* place : {"disk", "cpu"}) {
    Tower tower = empty_tower();
    const auto model = accelerate::load_checkpoint_and_dispatch(tower, saved.offload(), {.device_map = place});
    EXPECT_GT(tower->parameters().size(), 22u);
    EXPECT_TRUE(answers(model)) << place;
    if (place == std::string("cpu")) continue;
    const torch::NoGradGuard no_grad;
    EXPECT_THROW(tower->head->weight.mul_(0), accelerate::UsageError) << "a checkpoint is not changed";
    EXPECT_TRUE(answers(model));
  }
}

TEST_F(OffloadReuse, IsFoundFromAnotherFolderToo) {
  const fs::path before = fs::current_path();
  fs::current_path(fs::path(saved.offload()).parent_path());
  const auto ours = accelerate::disk_offload(empty_tower(), "offload");
  const auto theirs = accelerate::load_checkpoint_and_dispatch(empty_tower(), "offload", {.device_map = "disk"});
  fs::current_path(before);
  EXPECT_TRUE(answers(ours));
  EXPECT_TRUE(answers(theirs));
}

TEST_F(OffloadReuse, AChangeThatCannotBeWrittenIsAnErrorAndNotHalfOfAWeight) {
  Tower tower = empty_tower();
  const auto model = accelerate::disk_offload(tower, saved.offload());
  const torch::NoGradGuard no_grad;
  {
    const Limit half(RLIMIT_FSIZE, fs::file_size(file("head.weight.dat")) / 2);
    const std::string error = message_of<accelerate::CheckpointError>([&] { tower->head->weight.mul_(2); });
    EXPECT_NE(error.find("Cannot write"), std::string::npos) << error;
    EXPECT_NE(error.find("head.weight.dat"), std::string::npos) << error;
  }
  const std::string error = message_of<accelerate::CheckpointError>([&] { model(saved.tokens); });
  EXPECT_NE(error.find("head.weight.dat could not be written completely"), std::string::npos) << error;
}

TEST_F(OffloadReuse, WaitsForWhoeverFillsTheFolder) {
  const fs::path folder = fs::path(saved.offload()).parent_path() / "another";
  fs::create_directory(folder);
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_EQ(flock(descriptor, LOCK_EX), 0);
  std::atomic<bool> right = false, done = false;
  {
    const std::jthread other([&] {
      right = answers(accelerate::disk_offload(empty_tower(), folder));
      done = true;
    });
    const std::string place = ":" + std::to_string(inode_of(folder)) + " ";
    const auto waits = [&] {
      std::ifstream locks("/proc/locks");
      for (std::string line; std::getline(locks, line);) {
        if (line.find("-> FLOCK") != std::string::npos && line.find(place) != std::string::npos) return true;
      }
      return false;
    };
    while (!waits() && !done) std::this_thread::yield();
    fs::copy(saved.offload(), folder, fs::copy_options::recursive);
    close(descriptor);
  }
  EXPECT_TRUE(right) << "the folder was looked at before it was filled";
}

TEST_F(OffloadReuse, FilesThatAreSomebodyElsesTooAreReplacedAndNotChanged) {
  const fs::path elsewhere = fs::path(saved.offload()).parent_path() / "elsewhere";
  fs::remove(file("index.json"));  // all is written again
  fs::create_hard_link(file("head.weight.dat"), elsewhere);
  fs::rename(file("embedding.weight.dat"), file("embedding"));
  fs::create_symlink(file("embedding"), file("embedding.weight.dat"));
  Tower tower(100, 32, 4);
  accelerate::load_checkpoint_in_model(tower, saved.checkpoint());
  const auto model = accelerate::disk_offload(tower, saved.offload());
  EXPECT_TRUE(answers(model));
  EXPECT_EQ(fs::hard_link_count(elsewhere), 1u);
  EXPECT_FALSE(fs::is_symlink(file("embedding.weight.dat")));
}

class TogetherOffloadFolder : public Together {};

TEST_F(TogetherOffloadFolder, OneIsEnoughForProcessesThatOffloadTheSameModel) {
  const CommonFolder folder(accelerator());
  Tower source(100, 32, 4);
  source->to(torch::kBFloat16);
  const auto tokens = torch::arange(12).reshape({2, 6});
  const torch::NoGradGuard no_grad;
  for (int round = 0; round < 5; ++round) {  // the folder has the weights of the round before
    const std::string checkpoint = folder / std::to_string(round);
    if (accelerator().is_main_process()) accelerate::save_weights(accelerate::state_dict(*source), checkpoint);
    for (auto& parameter : source->parameters()) parameter.mul_(1.25);
    accelerator().wait_for_everyone();
    std::optional<accelerate::DispatchedModel<towers::TowerImpl>> model;
    const auto without_errors = [](auto&& use) {
      try {
        use();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
      accelerator().wait_for_everyone();
    };
    without_errors([&] {
      model.emplace(accelerate::load_checkpoint_and_dispatch(
          empty_tower(), checkpoint,
          {.device_map = "disk", .offload_folder = folder / "offload", .dtype = torch::kFloat, .offload_budget = 1}));
    });
    without_errors([&] {
      const auto resident = accelerate::load_checkpoint_and_dispatch(empty_tower(), checkpoint, {.dtype = torch::kFloat});
      EXPECT_TRUE(torch::equal(model.value()(tokens), resident(tokens))) << round;
    });
  }
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
