// Checkpoints that cannot be written, or are not whole when they are read: what is told, and that nothing else is touched.
#include "accelerator/small_run.h"
#include "support/error_text.h"

namespace run_safety {
using accelerate::testing::message_of;

namespace {

class TogetherRunSafety : public Together {
 protected:
  /// Done by one process, seen by all.
  static void once(const std::function<void()>& work) {
    accelerator().wait_for_everyone();
    if (rank() == 0) work();
    accelerator().wait_for_everyone();
  }
  /// What load_state of the newest takes, and what is said on the way.
  static std::pair<std::string, std::string> newest(SmallRun& run) {
    ::testing::internal::CaptureStderr();
    const auto found = run.accelerator.load_state();
    const std::string said = ::testing::internal::GetCapturedStderr();
    return {found ? found->filename().string() : "none", said};
  }
};

// --- Damage ---------------------------------------------------------------------------------------------------------------

TEST_F(TogetherRunSafety, ADamagedFileOfTheNewestIsNamedAndTheOneBeforeIsTaken) {
  CommonFolder folder(accelerator());
  SmallRun run(folder.path());
  run.step();
  run.accelerator.save_state();
  run.step();
  const fs::path last = run.accelerator.save_state();
  once([] {});
  size_t files = 0;
  const std::vector<std::string> damages = {"cut", "flipped", "empty", "missing"};
  for (const auto& name : names_in(last)) {
    // All of them to the weights, and to the others one after the other.
    const std::vector<std::string> chosen = name == "model.safetensors" ? damages : std::vector{damages[files++ % 4]};
    const std::string whole = content_of(last / name);
    std::string flipped = whole;
    flipped[whole.size() / 2] ^= 0x10;
    once([] {});
    for (const auto& damage : chosen) {
      once([&] {
        if (damage == "missing") {
          fs::remove(last / name);
        } else {
          replace_content(last / name, damage == "cut" ? whole.substr(0, whole.size() - 3) : damage == "empty" ? "" : flipped);
        }
      });
      const auto [found, said] = newest(run);
      EXPECT_EQ(found, "checkpoint_0") << name << " " << damage;
      EXPECT_EQ(run.counter.count, 1);
      if (rank() == 0) {
        expect_in("load_state skips " + last.string() + ": ", said);
        expect_in(name, said);
      }
      const std::string error = message_of<CheckpointError>([&] { run.accelerator.load_state(last); });
      expect_in("load_state: rank 0: " + last.string() + " cannot be used: ", error);
      expect_in(name, error);
      once([&] { replace_content(last / name, whole); });
    }
  }
  EXPECT_EQ(newest(run).first, "checkpoint_1");
  EXPECT_EQ(run.counter.count, 2);
}

TEST_F(TogetherRunSafety, AManifestOfANewerFormatIsSaidToBeOne) {
  CommonFolder folder(accelerator());
  SmallRun run(folder.path());
  const fs::path saved = run.accelerator.save_state();
  once([&] {
    std::string text = content_of(saved / "accelerate_manifest.json");
    replace_content(saved / "accelerate_manifest.json", text.replace(text.find("\"format\": 1"), 11, "\"format\": 2"));
  });
  expect_in("a newer version may have written it", message_of<CheckpointError>([&] { run.accelerator.load_state(); }));
  expect_in("a newer version may have written it", message_of<CheckpointError>([&] { run.accelerator.load_state(saved); }));
}

TEST_F(TogetherRunSafety, AFolderWithoutAManifestIsTakenWhenAllOfItCanBeRead) {
  CommonFolder folder(accelerator());
  SmallRun run(folder.path());
  run.step();
  run.accelerator.save_state();
  run.step();
  const fs::path last = run.accelerator.save_state();
  once([&] {
    for (const auto& each : {"checkpoint_0", "checkpoint_1"})
      fs::remove(folder / "checkpoints" / each / "accelerate_manifest.json");
  });
  EXPECT_EQ(newest(run).first, "checkpoint_1");
  const std::string name = "random_states_" + std::to_string(world() - 1) + ".pkl";
  once([&] { replace_content(last / name, content_of(last / name).substr(0, 700)); });
  const auto [found, said] = newest(run);
  EXPECT_EQ(found, "checkpoint_0");
  EXPECT_EQ(run.counter.count, 1);
  if (rank() == 0) expect_in(name, said);
}

// --- No room --------------------------------------------------------------------------------------------------------------

TEST_F(TogetherRunSafety, AFullDiskIsNamedByAllAndLeavesTheRunAndOlderCheckpoints) {
  CommonFolder folder(accelerator());
  std::unique_ptr<SmallDisk> disk;
  once([&] { disk = std::make_unique<SmallDisk>(folder / "disk"); });
  SmallRun run(folder / "disk", 6000);
  run.step();
  run.accelerator.save_state();
  once([&] { disk->fill(); });
  const auto names = names_in(folder / "disk");
  for (const bool async : {false, true}) {
    run.step();
    const std::string before = run.everything();
    const std::string error = message_of<CheckpointError>([&] {
      run.accelerator.save_state({.async = async});
      EXPECT_TRUE(async);
      run.accelerator.end_training();
    });
    expect_in("save_state: rank ", error);
    expect_in("Cannot write " + (folder / "disk/unfinished_checkpoints/checkpoint_").string(), error);
    expect_in("No space left on device", error);
    EXPECT_EQ(run.everything(), before);
    once([] {});
    EXPECT_EQ(names_in(folder / "disk"), names) << "what could not be written is left";
    EXPECT_EQ(names_in(folder / "disk/checkpoints"), std::vector<std::string>{"checkpoint_0"});
    once([] {});
  }
  once([&] { fs::remove(folder / "disk/filler"); });
  run.step();
  const std::string saved = fs::path(run.accelerator.save_state()).filename();
  run.step();
  EXPECT_EQ(newest(run).first, saved);
  EXPECT_EQ(run.counter.count, 4);
  once([&] { disk.reset(); });
}

TEST_F(TogetherRunSafety, AFullDiskLeavesTheOldWeightsWhereModelsAreSaved) {
  CommonFolder folder(accelerator());
  std::unique_ptr<SmallDisk> disk;
  once([&] {
    disk = std::make_unique<SmallDisk>(folder / "disk");
    disk->fill();
  });
  const std::string model = folder / "disk/model";
  torch::nn::Linear large(6000, 2);
  auto prepared = accelerator().prepare_model(large);
  once([&] { accelerate::save_weights({{"w", torch::ones({2})}}, model); });
  expect_in("save_model: rank 0: Cannot write " + model + "/model.safetensors: No space left on device",
            message_of<CheckpointError>([&] { accelerator().save_model(prepared, model); }));
  once([&] {
    const auto state = accelerate::state_dict(*large);
    expect_in("Cannot write " + (folder / "disk/file.pth").string() + ": No space left on device",
              message_of<CheckpointError>([&] { accelerate::save_file(state, folder / "disk/file.pth"); }));
    EXPECT_EQ(names_in(model), std::vector<std::string>{"model.safetensors"});
  });
  EXPECT_EQ(accelerate::load_weights(model).at("w").numel(), 2);
  accelerator().free_memory();
  once([&] { disk.reset(); });
}

TEST_F(TogetherRunSafety, ADiskThatIsReadOnlyIsNamedAndItsCheckpointsCanBeLoaded) {
  CommonFolder folder(accelerator());
  std::unique_ptr<SmallDisk> disk;
  once([&] { disk = std::make_unique<SmallDisk>(folder / "disk"); });
  SmallRun run(folder / "disk");
  run.accelerator.save_state();
  run.accelerator.end_training();  // a lock is an open file, and keeps the disk from being made read-only
  once([&] { disk->close(); });
  run.step();
  for (const bool async : {false, true}) {
    expect_in("Read-only file system", message_of<CheckpointError>([&] { run.accelerator.save_state({.async = async}); }));
  }
  EXPECT_EQ(run.counter.count, 1);
  EXPECT_EQ(newest(run).first, "checkpoint_0");
  EXPECT_EQ(run.counter.count, 0);
  once([&] { disk.reset(); });
}

// --- Odd places -----------------------------------------------------------------------------------------------------------

TEST_F(TogetherRunSafety, LinksSlashesSpacesAndLettersLeadToTheFolder) {
  CommonFolder folder(accelerator());
  SmallRun run(folder / "project");
  once([&] {
    for (const auto* name : {"elsewhere/real", "elsewhere/other"}) fs::create_directories(folder / name);
    fs::create_directory_symlink(folder / "elsewhere/real", folder / "link");
    replace_content(folder / "elsewhere/real/notes.txt", "mine");
  });
  const std::string home = std::getenv("HOME") ? std::getenv("HOME") : "";
  ::setenv("HOME", folder.path().c_str(), 1);
  std::error_code problem;
  const fs::path relative = fs::relative(folder / "near", fs::current_path(), problem);
  for (const std::string& name : {(folder / "link").string(), (folder / "slash/").string(),
                                  (folder / "two  words \xe6\x97\xa5").string(), std::string("~/home"), relative.string(),
                                  (folder / std::string(240, 'n')).string(), (folder / "link/../other/far").string()}) {
    run.step();
    EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.save_state(name); }), "no error") << name;
    const int64_t count = run.counter.count;
    run.counter.count = -1;
    EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.load_state(name); }), "no error") << name;
    EXPECT_EQ(run.counter.count, count) << name;
  }
  ::setenv("HOME", home.c_str(), 1);
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(content_of(folder / "elsewhere/real/notes.txt"), "mine");
  EXPECT_TRUE(fs::exists(folder / "elsewhere/real/accelerate_manifest.json"));
  EXPECT_TRUE(fs::exists(folder / "home/accelerate_manifest.json"));
  EXPECT_EQ(names_in(folder / "elsewhere"), (std::vector<std::string>{"other", "real"}));
  EXPECT_TRUE(fs::exists(folder / "elsewhere/other/far/accelerate_manifest.json"));
}

TEST_F(TogetherRunSafety, PlacesThatCannotHoldACheckpointAreRefusedOnAllProcessesWithTheReason) {
  CommonFolder folder(accelerator());
  SmallRun run(folder / "project");
  once([&] {
    replace_content(folder / "file", "mine");
    fs::create_symlink(folder / "nowhere", folder / "dangling");
  });
  const auto told = [&](const fs::path& place) {
    return message_of<CheckpointError>([&] { run.accelerator.save_state(place); });
  };
  expect_in("Cannot write the folder " + (folder / "file").string() + ": a file has that name.", told(folder / "file"));
  expect_in("Not a directory", told(folder / "file/below"));
  expect_in("is a symbolic link to " + (folder / "nowhere").string() + ", which does not exist", told(folder / "dangling"));
  expect_in("File name too long", told(folder / std::string(300, 'n')));
  expect_in("it is the current one", told("."));
  expect_in("No such file or directory", message_of<CheckpointError>([&] { run.accelerator.load_state(folder / "absent"); }));
  expect_in("it is not a folder", message_of<CheckpointError>([&] { run.accelerator.load_state(folder / "file"); }));
  EXPECT_EQ(content_of(folder / "file"), "mine");
  once([&] { EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"dangling", "file"})); });
}

TEST_F(TogetherRunSafety, CheckpointsMayLieOnAnotherDiskThanTheirProject) {
  CommonFolder folder(accelerator());
  std::unique_ptr<SmallDisk> mounted, linked;
  once([&] {
    mounted = std::make_unique<SmallDisk>(folder / "mounted/checkpoints");
    linked = std::make_unique<SmallDisk>(folder / "disk");
    fs::create_directories(folder / "linked");
    fs::create_directory_symlink(folder / "disk/many", folder / "linked/checkpoints");
    fs::create_directory(folder / "disk/many");
  });
  for (const std::string project : {"mounted", "linked"}) {
    SmallRun run(folder / project);
    run.step();
    EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.save_state(); }), "no error") << project;
    EXPECT_EQ(newest(run).first, "checkpoint_0") << project;
    once([] {});
    auto names = names_in(folder / project / "checkpoints");
    std::erase(names, "accelerate_checkpoints.lock");  // where nothing can be renamed to from outside
    EXPECT_EQ(names, std::vector<std::string>{"checkpoint_0"}) << project;
  }
  once([&] {
    mounted.reset();
    linked.reset();
  });
}

TEST_F(TogetherRunSafety, AFolderThatIsRemovedUnderASaveIsSaidToBe) {
  CommonFolder folder(accelerator());
  SmallRun run(folder / "project");
  auto hook = run.accelerator.register_save_state_pre_hook([&](auto&&, auto&&, const std::string& aside) {
    if (rank() == 0) fs::remove_all(aside);
  });
  expect_in("Cannot write " + (folder / "project/unfinished_checkpoints/checkpoint_0").string(),
            message_of<CheckpointError>([&] { run.accelerator.save_state(); }));
  hook.remove();
  EXPECT_EQ(fs::path(run.accelerator.save_state()).filename(), "checkpoint_0");
}

TEST_F(TogetherRunSafety, TheCheckpointThatWasJustSavedIsNeverTheOneThatIsRemoved) {
  CommonFolder folder(accelerator());
  once([&] {
    for (const auto& name : {"checkpoint_5", "checkpoint_6"}) fs::create_directories(folder / "checkpoints" / name);
  });
  Accelerator accelerator(
      {.project = {.project_dir = folder.path(), .automatic_checkpoint_naming = true, .total_limit = 2, .iteration = 0}});
  accelerator.save_state();
  once([] {});
  EXPECT_EQ(names_in(folder / "checkpoints"), (std::vector<std::string>{"checkpoint_0", "checkpoint_6"}));
}

// --- Exceptions -----------------------------------------------------------------------------------------------------------

TEST_F(TogetherRunSafety, WhatOneProcessThrowsInASaveIsToldToAllAndTheNextSaveWorks) {
  CommonFolder folder(accelerator());
  SmallRun run(folder.path());
  const bool last = rank() == world() - 1;
  const std::string who = "save_state: rank " + std::to_string(world() - 1) + ": ";
  auto hook = run.accelerator.register_save_state_pre_hook([&](auto&&...) {
    if (last) throw std::runtime_error("the hook is off");
  });
  for (const bool async : {false, true})
    EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.save_state({.async = async}); }), who + "the hook is off");
  hook.remove();
  run.counter.fails_to_save = true;
  EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.save_state(); }), "save_state: rank 0: the counter is stuck");
  once([] {});
  EXPECT_EQ(names_in(folder / "checkpoints"), std::vector<std::string>());
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"accelerate_checkpoints.lock", "checkpoints"}));
  run.counter.fails_to_save = false;
  EXPECT_EQ(fs::path(run.accelerator.save_state()).filename(), "checkpoint_0");
}

TEST_F(TogetherRunSafety, ALoadThatFailsAnywhereChangesNothing) {
  CommonFolder folder(accelerator());
  std::string saved;
  {
    SmallRun run(folder / "project");
    run.step();
    saved = run.accelerator.save_state();
  }
  SmallRun run(folder / "project");
  for (int i = 0; i < 3; ++i) run.step();
  const std::string before = run.everything();
  const auto expect_failure = [&](const std::string& part) {
    expect_in(part, message_of<CheckpointError>([&] { run.accelerator.load_state(saved); }));
    EXPECT_EQ(run.everything(), before) << part;
  };
  run.counter.refuses = rank() == world() - 1;
  expect_failure("load_state: rank " + std::to_string(world() - 1) + ": " + saved +
                 "/custom_checkpoint_0.pkl does not fit this run: the counter refuses");
  run.counter.refuses = false;
  auto hook = run.accelerator.register_load_state_pre_hook([&](auto&&...) {
    if (rank() == 0) throw std::runtime_error("the hook is off");
  });
  expect_failure("load_state: rank 0: the hook is off");
  hook.remove();
  Counter second;
  run.accelerator.register_for_checkpointing(second);
  expect_failure("1 registered objects; 2 are registered");
}

TEST_F(TogetherRunSafety, ARunWithMoreOrOtherPartsThanTheSavedOneIsToldSoAndNotChanged) {
  CommonFolder folder(accelerator());
  std::string saved;
  {
    SmallRun run(folder / "project");
    run.step();
    saved = run.accelerator.save_state();
  }
  const auto expect_failure = [&](SmallRun& run, const std::string& part) {
    run.step();
    const std::string before = run.everything();
    expect_in(part, message_of<CheckpointError>([&] { run.accelerator.load_state(saved); }));
    EXPECT_EQ(run.everything(), before) << part;
  };
  {
    SmallRun run(folder / "project");
    torch::nn::Linear more(2, 2);
    run.accelerator.prepare(more);
    expect_failure(run, "has no weights for model 1");
  }
  {
    SmallRun run(folder / "project");
    torch::optim::SGD more(run.net->parameters(), 0.1);
    run.accelerator.prepare(more);
    expect_failure(run, "optimizer_1.bin");
  }
  {
    SmallRun run(folder / "project", 4);
    expect_failure(run, "weight (float32[2, 3] given, float32[2, 4] in the module)");
  }
}

TEST_F(TogetherRunSafety, AStateThatDoesNotFitIsToldWithItsFileAndChangesNothing) {
  CommonFolder folder(accelerator());
  SmallRun run(folder / "project");
  run.step();
  const fs::path saved = run.accelerator.save_state();
  run.step();
  const std::string before = run.everything();
  once([&] { fs::remove(saved / "accelerate_manifest.json"); });  // or the files would be known not to be those
  // Each is a sound file, but of something else.
  for (const auto& [name, other] : {std::pair<std::string, std::string>{"optimizer.bin", "custom_checkpoint_0.pkl"},
                                    {"scheduler.bin", "custom_checkpoint_0.pkl"},
                                    {"custom_checkpoint_0.pkl", "optimizer.bin"},
                                    {"accelerate_state.bin", "custom_checkpoint_0.pkl"},
                                    {"random_states_0.pkl", "optimizer.bin"}}) {
    const std::string kept = content_of(saved / name), wrong = content_of(saved / other);
    once([&, file = saved / name] { replace_content(file, wrong); });
    const std::string error = message_of<CheckpointError>([&] { run.accelerator.load_state(saved); });
    expect_in("load_state: rank 0: ", error);
    expect_in((saved / name).string(), error);
    EXPECT_EQ(run.everything(), before) << name;
    once([&, file = saved / name] { replace_content(file, kept); });
  }
  run.accelerator.load_state(saved);
  EXPECT_EQ(run.counter.count, 1);
}

TEST_F(TogetherRunSafety, AFifoInTheFolderIsToldAndNotWaitedFor) {
  CommonFolder folder(accelerator());
  SmallRun run(folder / "project");
  run.step();
  const fs::path saved = run.accelerator.save_state();
  run.step();
  const std::string before = run.everything();
  once([&] { fs::remove(saved / "accelerate_manifest.json"); });
  for (const std::string name : {"model.safetensors", "optimizer.bin", "accelerate_state.bin", "random_states_0.pkl"}) {
    const fs::path file = saved / name, kept = folder / "kept";
    once([&] {
      fs::rename(file, kept);
      ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    });
    expect_in(file.string() + " is a FIFO, not a regular file.",
              message_of<CheckpointError>([&] { run.accelerator.load_state(saved); }));
    EXPECT_EQ(run.everything(), before) << name;
    once([&] { fs::rename(kept, file); });
  }
  once([&] { ASSERT_EQ(::mkfifo((saved / "accelerate_manifest.json").c_str(), 0600), 0); });
  expect_in("accelerate_manifest.json is a FIFO, not a regular file.",
            message_of<CheckpointError>([&] { run.accelerator.load_state(saved); }));
}

TEST_F(TogetherRunSafety, AProcessThatTheSavedRunDidNotHaveCountsItsAccumulationLikeTheOthers) {
  CommonFolder folder(accelerator());
  const AcceleratorOptions options = {.gradient_accumulation_steps = 4,
                                      .project = {.project_dir = folder.path(), .automatic_checkpoint_naming = true}};
  torch::nn::Linear net(2, 2);
  Accelerator saving(options);
  auto model = saving.prepare(net);
  for (int i = 0; i < 3; ++i) auto scope = saving.accumulate(model);
  saving.save_state();
  once([&] {
    const auto saved = folder / "checkpoints/checkpoint_0";
    fs::remove(saved / "accelerate_manifest.json");
    fs::remove(saved / ("random_states_" + std::to_string(world() - 1) + ".pkl"));
  });
  Accelerator loading(options);
  loading.prepare(net);
  loading.load_state();
  EXPECT_EQ(loading.gradient_state().step(), 3);
}

// --- Behind the run -------------------------------------------------------------------------------------------------------

/// What this process has read of files, from disk or from memory.
uint64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  uint64_t bytes = 0;
  for (std::string word; file >> word;) {
    if (word == "rchar:") file >> bytes;
  }
  return bytes;
}

TEST_F(TogetherRunSafety, AVerifiedLoadReadsEachFileOnce) {
  const CommonFolder project(accelerator());
  SmallRun run(project.path(), /*width=*/500000);
  run.step();
  const fs::path saved = run.accelerator.save_state();
  uint64_t size = 0;
  for (const auto& entry : fs::directory_iterator(saved)) size += entry.file_size();
  EXPECT_GT(size, 12000000U);
  const uint64_t before = bytes_read();
  run.accelerator.load_state();
  EXPECT_LT(bytes_read() - before, size + size / 4);
}

TEST_F(TogetherRunSafety, ASaveBehindTheRunHoldsTheValuesOfTheMomentOfTheCall) {
  CommonFolder folder(accelerator());
  SmallRun run(folder.path(), 1'000'000);  // takes longer to write than to change
  run.step();
  const std::string at_the_call = run.everything();
  const std::string saved = run.accelerator.save_state({.async = true});
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : run.net->parameters()) parameter.fill_(-1);
  }
  for (int i = 0; i < 2; ++i) run.step();
  torch::rand({100});
  run.accelerator.end_training();
  EXPECT_NE(run.everything(), at_the_call);
  run.accelerator.load_state(saved);
  EXPECT_EQ(run.everything(), at_the_call);
}

TEST_F(TogetherRunSafety, TheNextSaveWaitsAndEndTrainingWaits) {
  CommonFolder folder(accelerator());
  SmallRun run(folder.path(), 20000);
  for (int i = 0; i < 3; ++i) {
    run.step();
    run.accelerator.save_state({.async = true});
    if (i > 0) {
      EXPECT_TRUE(fs::exists(folder / ("checkpoints/checkpoint_" + std::to_string(i - 1) + "/accelerate_manifest.json"))) << i;
    }
  }
  run.accelerator.end_training();
  EXPECT_TRUE(fs::exists(folder / "checkpoints/checkpoint_2/accelerate_manifest.json"));
  EXPECT_FALSE(fs::exists(folder / "unfinished_checkpoints"));
}

TEST_F(TogetherRunSafety, WhatGoesWrongBehindTheRunIsThrownOnceByTheNextCallOnAllProcesses) {
  CommonFolder folder(accelerator());
  SmallRun run(folder.path());
  auto hook = run.accelerator.register_save_state_pre_hook([&](auto&&, auto&& weights, auto&&) {
    weights[0]["sparse"] = torch::eye(2).to_sparse();  // nothing that a file can hold
  });
  for (const bool by_load : {false, true}) {
    run.accelerator.save_state({.async = true});
    const auto error =
        message_of<CheckpointError>([&] { by_load ? void(run.accelerator.load_state()) : void(run.accelerator.save_state()); });
    expect_in("save_state: rank 0: ", error);
    expect_in("sparse", error);
  }
  hook.remove();
  EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.end_training(); }), "no error");
  EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.save_state(); }), "no error");
}

}  // namespace
}  // namespace run_safety
