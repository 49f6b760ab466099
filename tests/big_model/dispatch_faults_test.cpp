// A dispatch that fails, wherever that is, leaves the model as it was: each weight to the bit, and usable. Threads, descriptors
// and files that were made for it are gone.
#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "accelerator/small_run.h"
#include "big_model/towers.h"
#include "support/limit.h"
#include "support/refused_renames.h"
#include "support/refused_threads.h"

namespace fs = std::filesystem;
using accelerate::DeviceMap;
using run_safety::SmallDisk;
using towers::Saved;
using towers::Tower;

namespace {

int entries_in(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

/// Whether it holds within some seconds. Threads that prefetch weights of the model itself open files meanwhile.
bool soon(const std::function<bool()>& condition) {
  for (int look = 0; look < 5000; ++look) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

const DeviceMap kSomeOnDisk = {{"", "disk"}, {"embedding", "cpu"}, {"blocks.1", "cpu"}};

/// A model and what can be done to it.
struct Case {
  std::string name;
  std::function<void(Tower&)> call;
};

class DispatchFaults : public ::testing::Test {
 protected:
  DispatchFaults() {
    Tower other(100, 32, 4);
    accelerate::save_weights(accelerate::state_dict(*other), folder / "other", {.max_shard_size = "40KB"});
  }

  /// Of other weights than those of the model, into folders that are new or that the model's own weights are in.
  std::vector<Case> cases(const std::string& offload, const std::function<void()>& midway = {}) {
    const auto load = [this, midway](Tower& tower, accelerate::LoadCheckpointOptions options) {
      // Called when the files were listed, before their weights are read.
      options.key_mapping = [&](const std::string& name) {
        if (midway) midway();
        return name;
      };
      accelerate::load_checkpoint_and_dispatch(tower, folder / "other", options);
    };
    return {
        {"load to the CPU", [=](Tower& tower) { load(tower, {.device_map = "cpu"}); }},
        {"load to disk", [=](Tower& tower) { load(tower, {.device_map = kSomeOnDisk}); }},
        {"load and convert",
         [=](Tower& tower) { load(tower, {.device_map = kSomeOnDisk, .offload_folder = offload, .dtype = torch::kBFloat16}); }},
        {"load, convert and map",
         [=](Tower& tower) {
           load(tower, {.device_map = kSomeOnDisk, .offload_folder = offload, .dtype = torch::kBFloat16, .mmap = true});
         }},
        {"dispatch_model",
         [=](Tower& tower) { accelerate::dispatch_model(tower, kSomeOnDisk, {.offload_dir = offload + "_new"}); }},
        {"disk_offload", [=](Tower& tower) { accelerate::disk_offload(tower, offload + "_new"); }},
        {"cpu_offload", [](Tower& tower) { accelerate::cpu_offload(tower); }}};
  }

  /// A model with its weights in memory, or in the folder that `cases` writes to.
  Tower make(bool offloaded, const std::string& offload) const {
    Tower tower(100, 32, 4);
    accelerate::load_checkpoint_in_model(tower, saved.checkpoint());
    if (!offloaded) return tower;
    fs::remove_all(offload);
    accelerate::disk_offload(tower, offload);
    return tower;
  }

  /// Calls it under the fault, and says whether it failed. Then everything must be as before.
  bool fails_without_a_trace(const std::string& what, Tower& tower, const std::function<void()>& under_fault) const {
    const int threads = entries_in("/proc/self/task"), files = entries_in("/proc/self/fd");
    const bool offloaded = accelerate::has_offloaded_params(*tower);
    bool failed = false;
    try {
      under_fault();
    } catch (const std::exception& error) {
      failed = true;
    }
    if (!failed) return false;
    // A thread that was joined is listed for a moment more.
    EXPECT_TRUE(soon([&] { return entries_in("/proc/self/task") == threads; })) << what << ": threads are left";
    EXPECT_TRUE(soon([&] { return entries_in("/proc/self/fd") <= files; })) << what << ": files are open";
    EXPECT_EQ(accelerate::has_offloaded_params(*tower), offloaded) << what;
    const torch::NoGradGuard no_grad;
    const auto expected = accelerate::state_dict(*saved.tower);
    for (const auto& [name, tensor] : accelerate::state_dict(*tower)) {
      EXPECT_TRUE(tensor.scalar_type() == torch::kFloat && torch::equal(tensor * 1, expected.at(name) * 1))
          << what << ": " << name;
    }
    EXPECT_TRUE(torch::equal(tower->forward(saved.tokens), saved.answer)) << what;
    return true;
  }

  /// Each case on each kind of model, again and again, until `fault(k)` lets it through.
  void fail_at_every_point(const std::function<std::shared_ptr<void>(int)>& fault) {
    const std::string offload = folder / "offload";
    for (const bool offloaded : {false, true}) {
      for (const auto& each : cases(offload)) {
        Tower tower = make(offloaded, offload);
        fs::remove_all(offload + "_new");
        bool failed = true;
        for (int k = 0; failed && k < 1000; ++k) {
          failed = fails_without_a_trace(each.name + (offloaded ? ", offloaded before, " : ", ") + std::to_string(k), tower, [&] {
            const auto held = fault(k);
            each.call(tower);
          });
          failures += failed;
        }
        EXPECT_FALSE(failed) << each.name;
      }
    }
  }

  const Saved saved;
  TemporaryFolder folder;
  int failures = 0;
};

TEST_F(DispatchFaults, ThreadsThatAreRefusedAreDoneWithout) {
  const torch::NoGradGuard no_grad;
  for (const int granted : {0, 1}) {
    for (const auto& each : cases(folder / "offload")) {
      fs::remove_all(folder / "offload");
      fs::remove_all((folder / "offload").string() + "_new");
      Tower tower = make(false, ""), free = make(false, "");
      {
        const RefusedThreads none(granted);
        each.call(tower);
        EXPECT_TRUE(none.refused() > 0 || !accelerate::has_offloaded_params(*tower)) << each.name;
      }
      each.call(free);
      for (int pass = 0; pass < 2; ++pass) {
        if (each.name.find("convert") != std::string::npos) continue;
        EXPECT_TRUE(torch::equal(tower->forward(saved.tokens), free->forward(saved.tokens))) << each.name << ", " << granted;
      }
      for (const auto& item : tower->named_parameters()) {
        EXPECT_TRUE(torch::equal(item.value() * 1, free->named_parameters()[item.key()] * 1)) << each.name << ": " << item.key();
      }
    }
  }
}

TEST_F(DispatchFaults, NoDescriptorIsLeftAtAnyPoint) {
  const int open_files = entries_in("/proc/self/fd") - 1;  // one is that of the question
  fail_at_every_point([=](int k) { return std::make_shared<Limit>(RLIMIT_NOFILE, static_cast<rlim_t>(open_files + k)); });
  EXPECT_GE(failures, 10);
}

TEST_F(DispatchFaults, FilesMayGrowNoLargerAtAnyPoint) {
  fail_at_every_point([](int k) { return std::make_shared<Limit>(RLIMIT_FSIZE, static_cast<rlim_t>(2000 * k)); });
  EXPECT_GE(failures, 10);
}

TEST_F(DispatchFaults, AFileCannotBeReplacedAtAnyPoint) {
  fail_at_every_point([](int k) { return std::make_shared<RefusedRename>(k); });
  EXPECT_GE(failures, 10);
}

TEST_F(DispatchFaults, TheDiskForOffloadedWeightsIsFull) {
  const SmallDisk disk(folder / "small");
  const std::string offload = folder / "small" / "offload";
  for (const bool offloaded : {false, true}) {
    for (const auto& each : cases(offload)) {
      Tower tower = make(offloaded, offload);
      fs::remove_all(offload + "_new");
      const int before = offloaded ? entries_in(offload) : 0;
      disk.fill();
      const bool failed = fails_without_a_trace(each.name, tower, [&] { each.call(tower); });
      const bool writes = each.name.find("convert") != std::string::npos || each.name.find("disk_") != std::string::npos ||
                          each.name == "dispatch_model";
      EXPECT_EQ(failed, writes) << each.name;
      EXPECT_TRUE(!failed || !offloaded || entries_in(offload) == before) << each.name << ": something is left";
      fs::remove(folder / "small" / "filler");
      fs::remove_all(offload);
    }
  }
}

TEST_F(DispatchFaults, AFileIsCutAfterItWasListed) {
  const fs::path shard = folder / "other" / "model-00003-of-00005.safetensors";
  const std::string whole = run_safety::content_of(shard);
  for (const bool offloaded : {false, true}) {
    for (const auto& each : cases(folder / "offload", [&] { fs::resize_file(shard, whole.size() / 2); })) {
      if (each.name.starts_with("load")) {
        run_safety::replace_content(shard, whole);
        Tower tower = make(offloaded, folder / "offload");
        EXPECT_TRUE(fails_without_a_trace(each.name, tower, [&] { each.call(tower); })) << each.name;
      }
    }
  }
}

TEST_F(DispatchFaults, WeightsThatWereOffloadedAreNotNeededToReplaceThem) {
  Tower tower = make(true, folder / "offload");
  fs::remove_all(folder / "offload");
  accelerate::load_checkpoint_in_model(tower, saved.checkpoint(), {.device_map = "cpu"});
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(tower->forward(saved.tokens), saved.answer));
}

TEST_F(DispatchFaults, AParameterThatRequiresGradientsBecomesNoInteger) {
  Tower tower = make(false, "");
  tower->temperature.requires_grad_(false);
  EXPECT_TRUE(fails_without_a_trace("int", tower, [&] {
    accelerate::load_checkpoint_in_model(tower, saved.checkpoint(), {.device_map = "cpu", .dtype = torch::kInt});
  }));
}

}  // namespace
