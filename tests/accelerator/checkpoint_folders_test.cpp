// Folders that hold more than a checkpoint, and file systems that refuse something: nothing of the user's is lost or let out, and
// what cannot be done is told.
#include <sys/resource.h>
#include <sys/stat.h>

#include "accelerator/small_run.h"
#include "support/error_text.h"

namespace run_safety {
using accelerate::testing::message_of;

namespace {

class TogetherCheckpointFolders : public Together {
 protected:
  /// Done by one process, seen by all.
  static void once(const std::function<void()>& work) {
    accelerator().wait_for_everyone();
    if (rank() == 0) work();
    accelerator().wait_for_everyone();
  }
  static struct stat status_of(const fs::path& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    return status;
  }
};

/// No more than so many files beside those that are open.
class FewFiles {
 public:
  explicit FewFiles(rlim_t more) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const auto open = static_cast<rlim_t>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
    const rlimit few{std::min(before_.rlim_max, open + more), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

TEST_F(TogetherCheckpointFolders, FilesThatOnlyLookLikeThoseOfACheckpointAreKept) {
  CommonFolder folder(accelerator());
  SmallRun run(folder / "project");
  const fs::path target = folder / "saved";
  const std::vector<std::string> own = {"model_card.json",
                                        "scheduler_config.json",
                                        "model-00001-of-00002.safetensors",
                                        "model.safetensors.index.json",
                                        "optimizer.json",
                                        "sampler_settings.pkl",
                                        "custom_checkpoint_notes.pkl",
                                        "accelerate_config.json",
                                        "model_1b.bin",
                                        "pytorch_model_fused.bin",
                                        "scaler.bin",
                                        "random_states.pkl"};
  for (const bool first : {true, false}) {
    if (first) {
      once([&] {
        fs::create_directories(target / "exports/old");
        for (const auto& name : own) replace_content(target / name, name);
        replace_content(target / "exports/model.safetensors", "mine");
      });
    }
    EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.save_state(target); }), "no error");
    once([] {});
    for (const auto& name : own) EXPECT_EQ(content_of(target / name), name);
    EXPECT_EQ(content_of(target / "exports/model.safetensors"), "mine");
    EXPECT_TRUE(fs::is_directory(target / "exports/old"));
    EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.load_state(target); }), "no error");
  }
  // What the checkpoint before had and the new one has not goes with it, also what hooks wrote.
  auto hook = run.accelerator.register_save_state_pre_hook([&](auto&&, auto&&, const std::string& aside) {
    if (rank() != 0) return;
    fs::create_directories(fs::path(aside) / "extra/deep");
    replace_content(fs::path(aside) / "extra/deep/state", "hooked");
  });
  run.accelerator.save_state(target, {.safe_serialization = false});
  once([] {});
  EXPECT_FALSE(fs::exists(target / "model.safetensors"));
  EXPECT_EQ(content_of(target / "extra/deep/state"), "hooked");
  hook.remove();
  once([] {});
  run.accelerator.save_state(target);
  once([] {});
  EXPECT_FALSE(fs::exists(target / "pytorch_model.bin"));
  EXPECT_FALSE(fs::exists(target / "extra"));
  EXPECT_EQ(content_of(target / "model_card.json"), "model_card.json");
}

TEST_F(TogetherCheckpointFolders, WhatHooksWriteIsPartOfTheCheckpointInSubfoldersToo) {
  CommonFolder folder(accelerator());
  SmallRun run(folder / "project");
  auto hook = run.accelerator.register_save_state_pre_hook([&](auto&&, auto&&, const std::string& aside) {
    fs::create_directories(fs::path(aside) / "shards");
    replace_content(fs::path(aside) / "shards" / std::to_string(rank()), "of one rank");
  });
  const fs::path saved = run.accelerator.save_state(folder / "saved");
  EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.load_state(saved); }), "no error");
  once([&] { replace_content(saved / "shards/0", "of ono rank"); });
  expect_in("shards/0 is corrupt", message_of<CheckpointError>([&] { run.accelerator.load_state(saved); }));
  once([&] { fs::remove(saved / "shards/0"); });
  expect_in("shards/0 is missing", message_of<CheckpointError>([&] { run.accelerator.load_state(saved); }));
  hook.remove();
  auto odd = run.accelerator.register_save_state_pre_hook([&](auto&&, auto&&, const std::string& aside) {
    if (rank() == 0) replace_content(fs::path(aside) / "caf\xe9", "Latin 1");
  });
  expect_in("name is not UTF-8", message_of<CheckpointError>([&] { run.accelerator.save_state(folder / "odd"); }));
  once([] {});
  EXPECT_FALSE(fs::exists(folder / "odd"));
}

TEST_F(TogetherCheckpointFolders, AFolderThatIsReplacedKeepsItsOwnerAndPermissions) {
  CommonFolder folder(accelerator());
  SmallRun run(folder / "project");
  const fs::path target = folder / "private";
  once([&] {
    fs::create_directories(target / "below");
    replace_content(target / "below/notes", "mine");
    ASSERT_EQ(::chown(target.c_str(), 65534, 65534), 0);
    ASSERT_EQ(::chown((target / "below").c_str(), 65534, 0), 0);
    ASSERT_EQ(::chmod(target.c_str(), 02700), 0);
    ASSERT_EQ(::chmod((target / "below").c_str(), 0750), 0);
  });
  for (int i = 0; i < 2; ++i) {
    run.accelerator.save_state(target);
    once([] {});
    EXPECT_EQ(status_of(target).st_mode & 07777, 02700U);
    EXPECT_EQ(status_of(target).st_uid, 65534U);
    EXPECT_EQ(status_of(target).st_gid, 65534U);
    EXPECT_EQ(status_of(target / "below").st_mode & 07777, 0750U);
    EXPECT_EQ(status_of(target / "below").st_uid, 65534U);
    EXPECT_EQ(content_of(target / "below/notes"), "mine");
  }
}

TEST_F(TogetherCheckpointFolders, FoldersThatCannotBeReplacedAsAWholeAreRefused) {
  CommonFolder folder(accelerator());
  SmallRun run(folder / "project");
  std::unique_ptr<SmallDisk> inside, itself;
  once([&] {
    fs::create_directories(folder / "holds/deeper");
    inside = std::make_unique<SmallDisk>(folder / "holds/deeper/a disk");
    replace_content(folder / "holds/deeper/a disk/data", "mine");
    itself = std::make_unique<SmallDisk>(folder / "itself");
    fs::create_directories(folder / "current/below");
  });
  const auto told = [&](const fs::path& place) {
    return message_of<CheckpointError>([&] { run.accelerator.save_state(place); });
  };
  expect_in("something is mounted at " + (folder / "holds/deeper/a disk").string(), told(folder / "holds"));
  expect_in("something is mounted there. Give a folder below it", told(folder / "itself"));
  EXPECT_EQ(told(folder / "itself/below"), "no error");
  const fs::path before = fs::current_path();
  fs::current_path(folder / "current/below");
  expect_in("it holds the current one", told(".."));
  expect_in("it holds the current one", told(folder.path()));
  expect_in("it is the current one", told("."));
  EXPECT_EQ(told("new"), "no error");
  fs::current_path(before);
  once([&] {
    EXPECT_EQ(content_of(folder / "holds/deeper/a disk/data"), "mine");
    EXPECT_TRUE(fs::exists(folder / "current/below/new/accelerate_manifest.json"));
    inside.reset();
    itself.reset();
  });
}

TEST_F(TogetherCheckpointFolders, CheckpointsThatCannotBeUsedAreNoReasonToBeginAgain) {
  CommonFolder folder(accelerator());
  SmallRun run(folder.path());
  EXPECT_EQ(run.accelerator.load_state(), std::nullopt) << "there is none";
  once([&] { fs::create_directories(folder / "unfinished_checkpoints/checkpoint_0"); });
  EXPECT_EQ(run.accelerator.load_state(), std::nullopt) << "only one that was never finished";
  for (int i = 0; i < 2; ++i) {
    run.step();
    run.accelerator.save_state();
  }
  {
    // The system refuses: that says nothing of the newest one.
    std::optional<FewFiles> few;
    if (rank() == 0) few.emplace(0);
    expect_in("Too many open files", message_of<CheckpointError>([&] { run.accelerator.load_state(); }));
  }
  EXPECT_EQ(run.accelerator.load_state()->filename(), "checkpoint_1");
  once([&] {
    for (const auto* name : {"checkpoint_0", "checkpoint_1"}) fs::resize_file(folder / "checkpoints" / name / "optimizer.bin", 7);
  });
  const auto error = message_of<CheckpointError>([&] { run.accelerator.load_state(); });
  expect_in("none of the checkpoints in " + (folder / "checkpoints").string() + " can be used (found 2)", error);
  expect_in("optimizer.bin has 7 bytes", error);
}

TEST_F(TogetherCheckpointFolders, ACheckpointMayHaveMoreFilesThanAProcessMayOpen) {
  CommonFolder folder(accelerator());
  SmallRun run(folder.path());
  auto hook = run.accelerator.register_save_state_pre_hook([&](auto&&, auto&&, const std::string& aside) {
    for (int i = 0; i < 300 / world(); ++i)
      replace_content(fs::path(aside) / ("part_" + std::to_string(rank()) + "_" + std::to_string(i)), "part");
  });
  run.accelerator.save_state();
  const FewFiles few(100);
  EXPECT_EQ(message_of<CheckpointError>([&] { EXPECT_TRUE(run.accelerator.load_state()); }), "no error");
  EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.save_state(); }), "no error");
}

TEST_F(TogetherCheckpointFolders, OddNeighboursDoNotKeepOldCheckpointsFromBeingRemoved) {
  CommonFolder folder(accelerator());
  std::unique_ptr<SmallDisk> disk;
  once([&] {
    fs::create_directories(folder / "checkpoints");
    replace_content(folder / "checkpoints/checkpoint_60", "a file");
  });
  Accelerator a({.project = {.project_dir = folder.path(), .automatic_checkpoint_naming = true, .total_limit = 1}});
  a.save_state();
  once([&] {
    EXPECT_EQ(names_in(folder / "checkpoints"), (std::vector<std::string>{"checkpoint_0", "checkpoint_60"}));
    disk = std::make_unique<SmallDisk>(folder / "checkpoints/checkpoint_0");
    replace_content(folder / "checkpoints/checkpoint_0/kept", "mine");
  });
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) a.save_state();
  const std::string said = ::testing::internal::GetCapturedStderr();
  once([&] {
    EXPECT_EQ(names_in(folder / "checkpoints"), (std::vector<std::string>{"checkpoint_0", "checkpoint_3", "checkpoint_60"}));
    EXPECT_EQ(content_of(folder / "checkpoints/checkpoint_0/kept"), "mine");
    expect_in("something is mounted at ", said);
    disk.reset();
    fs::create_directory(folder / "checkpoints/checkpoint_2147483647");
  });
  a.end_training();
  Accelerator next({.project = {.project_dir = folder.path(), .automatic_checkpoint_naming = true}});
  EXPECT_EQ(fs::path(next.save_state()).filename(), "checkpoint_2147483648");
  EXPECT_EQ(next.load_state()->filename(), "checkpoint_2147483648");
}

TEST_F(TogetherCheckpointFolders, ALinkAmongCheckpointsIsRemovedAndNotWhatItLeadsTo) {
  CommonFolder folder(accelerator());
  Accelerator run;
  run.save_state(folder / "kept/pretrained");
  once([&] {
    fs::create_directories(folder / "checkpoints");
    fs::create_directory_symlink(folder / "kept/pretrained", folder / "checkpoints/checkpoint_0");
    fs::create_directory_symlink(folder / "nowhere", folder / "checkpoints/checkpoint_1");
  });
  Accelerator limited({.project = {.project_dir = folder.path(), .automatic_checkpoint_naming = true, .total_limit = 1}});
  EXPECT_EQ(message_of<CheckpointError>([&] { limited.load_state(); }), "no error");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(message_of<CheckpointError>([&] { limited.save_state(); }), "no error");
  once([] {});
  EXPECT_FALSE(fs::exists(fs::symlink_status(folder / "checkpoints/checkpoint_0")));
  EXPECT_EQ(message_of<CheckpointError>([&] { run.load_state(folder / "kept/pretrained"); }), "no error");
  EXPECT_FALSE(fs::exists(folder / "kept/unfinished_checkpoints"));
}

TEST_F(TogetherCheckpointFolders, TheCurrentFolderMayBeInACheckpointThatNobodyWritesTo) {
  CommonFolder folder(accelerator());
  SmallRun run(folder.path());
  run.accelerator.save_state();
  const fs::path before = fs::current_path();
  fs::current_path(folder / "checkpoints/checkpoint_0");
  EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.load_state(); }), "no error");
  EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.save_state(); }), "no error");
  fs::current_path(before);
  once([] {});
  EXPECT_TRUE(fs::exists(folder / "checkpoints/checkpoint_1"));
}

TEST_F(TogetherCheckpointFolders, FoldersInsideStayAsPrivateAsTheyWere) {
  CommonFolder folder(accelerator());
  SmallRun run(folder / "project");
  const fs::path target = folder / "saved";
  run.accelerator.save_state(target);
  once([&] {
    fs::create_directories(target / "a/b");
    replace_content(target / "a/b/mine", "mine");
    fs::create_directories(target / "closed");
    replace_content(target / "closed/mine", "mine");
    for (const auto* name : {"", "a"}) fs::permissions(target / name, fs::perms(0700));
    fs::permissions(target / "closed", fs::perms(0500));
  });
  unsigned staged = 0;
  auto hook = run.accelerator.register_save_state_pre_hook(
      [&](auto&&, auto&&, const std::string& aside) { staged = status_of(aside).st_mode & 07777; });
  run.accelerator.save_state(target);
  once([] {});
  EXPECT_EQ(staged, 0700U) << "nobody else reads what is being written";
  EXPECT_EQ(status_of(target).st_mode & 07777, 0700U);
  EXPECT_EQ(status_of(target / "a").st_mode & 07777, 0700U);
  EXPECT_EQ(status_of(target / "a/b").st_mode & 07777, 0755U);
  EXPECT_EQ(status_of(target / "closed").st_mode & 07777, 0500U);
  EXPECT_EQ(content_of(target / "a/b/mine"), "mine");
}

TEST_F(TogetherCheckpointFolders, ASecondAcceleratorOfAProcessDoesNotTakeAwayWhatTheFirstIsSaving) {
  CommonFolder folder(accelerator());
  SmallRun first(folder.path()), second(folder.path());
  std::string heard;
  auto hook = first.accelerator.register_save_state_pre_hook([&](auto&&, auto&&, const std::string& aside) {
    if (rank() == 0) replace_content(fs::path(aside) / "mine", "mine");
    heard = message_of<CheckpointError>([&] { second.accelerator.save_state(); });
  });
  EXPECT_EQ(message_of<CheckpointError>([&] { first.accelerator.save_state(); }), "no error");
  EXPECT_NE(heard.find("Another accelerator of this process is already saving to"), std::string::npos) << heard;
  once([] {});
  EXPECT_EQ(content_of(folder / "checkpoints/checkpoint_0/mine"), "mine");
  hook.remove();
  EXPECT_EQ(message_of<CheckpointError>([&] { second.accelerator.save_state(); }), "no error");
  once([] {});
  EXPECT_TRUE(fs::exists(folder / "checkpoints/checkpoint_1"));
}

TEST_F(TogetherCheckpointFolders, NamesMayBeAsLongAsTheFileSystemHasRoomFor) {
  CommonFolder folder(accelerator());
  SmallRun run(folder / "project");
  for (const size_t length : {238, 245, 255}) {
    const auto place = folder / std::string(length, 'n');
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.save_state(place); }), "no error") << length;
    EXPECT_EQ(message_of<CheckpointError>([&] { run.accelerator.load_state(place); }), "no error") << length;
  }
}

}  // namespace
}  // namespace run_safety
