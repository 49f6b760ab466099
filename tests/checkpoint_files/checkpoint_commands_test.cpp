#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {
namespace {

std::string golden_path(const std::string& name) { return std::string(ACCELERATE_TEST_GOLDEN) + "/checkpoints/" + name; }

std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ProgramResult files_command(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), ACCELERATE_CLI);
  return run_program(arguments);
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(InspectCommand, ShowsNamesDtypesShapesMetadataAndFirstValues) {
  const auto result = files_command({"inspect", golden_path("state_adamw/model.safetensors")});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  for (const char* part : {"fc1.weight", "float32", "[3, 4]", "48 B", "0.35047817", "format  pt", "8 tensors of 34 elements"}) {
    EXPECT_TRUE(mentions(result.output, part)) << part << "\n" << result.output;
  }
}

TEST(InspectCommand, ShowsTheTreeOfATorchFile) {
  const auto result = files_command({"inspect", golden_path("state_adamw/optimizer.bin")});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  for (const char* part : {"state.0.exp_avg", "param_groups.0.lr", "0.005", "param_groups.0.betas", "0.9 0.999"}) {
    EXPECT_TRUE(mentions(result.output, part)) << part << "\n" << result.output;
  }
}

TEST(InspectCommand, JsonSaysWhatTheTableSays) {
  const auto result = files_command({"inspect", golden_path("torch_shared_zip.pt"), "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const auto parsed = nlohmann::json::parse(result.output);
  EXPECT_EQ(parsed["format"], "torch");
  ASSERT_EQ(parsed["tensors"].size(), 3u);
  EXPECT_EQ(parsed["tensors"][2]["shape"], nlohmann::json({6}));
  EXPECT_EQ(parsed["tensors"][2]["note"], "shares its storage with a");
}

TEST(InspectCommand, OfAFolderItTellsEachFileAndTheTotal) {
  const auto table = files_command({"inspect", golden_path("state_two_processes")});
  EXPECT_EQ(table.exit_code, 0) << table.errors;
  for (const char* part : {"optimizer.bin", "optimizer state", "random_states_1.pkl", "random states of a process", "6 files"}) {
    EXPECT_TRUE(mentions(table.output, part)) << part << "\n" << table.output;
  }
  const auto listing = files_command({"inspect", "--json", golden_path("state_two_processes")});
  EXPECT_EQ(nlohmann::json::parse(listing.output)["total"]["files"], 6);
}

TEST(InspectCommand, FilesOfOurOwnAreNamedInAFolder) {
  const TemporaryFolder folder;
  const std::string weights = file_bytes(golden_path("state_adamw/model.safetensors"));
  const std::string state = file_bytes(golden_path("state_adamw/scheduler.bin"));
  std::ofstream(folder / "accelerate_gradients_0.safetensors") << weights;
  for (const char* name : {"accelerate_state.bin", "accelerate_comm_hooks_1.bin"}) std::ofstream(folder / name) << state;
  std::ofstream(folder / "accelerate_manifest.json") << "{}";
  const auto table = files_command({"inspect", folder.name()});
  EXPECT_EQ(table.exit_code, 0) << table.errors << table.output;
  for (const char* role : {"positions of loaders", "accumulated gradients of a process", "communication hook states of a process",
                           "manifest: sizes and checksums"}) {
    EXPECT_TRUE(mentions(table.output, role)) << role << "\n" << table.output;
  }
  const auto manifest = files_command({"inspect", folder / "accelerate_manifest.json"});
  EXPECT_EQ(manifest.exit_code, 1);
  EXPECT_TRUE(mentions(manifest.errors, "manifest: sizes and checksums")) << manifest.errors;
}

TEST(InspectCommand, OfADistributedCheckpointItTellsTheTensorsOfAllFiles) {
  const auto result = files_command({"inspect", golden_path("distributed/model/.metadata")});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  for (const char* part : {"distributed checkpoint", "model.fc.weight", "[5, 3]", "60 B", "2 chunks"}) {
    EXPECT_TRUE(mentions(result.output, part)) << part << "\n" << result.output;
  }
  const auto folder = files_command({"inspect", golden_path("distributed/model")});
  EXPECT_EQ(folder.exit_code, 0) << folder.errors;
  for (const char* part : {"description of a distributed checkpoint", "shard of a distributed checkpoint", "tensors of"}) {
    EXPECT_TRUE(mentions(folder.output, part)) << part << "\n" << folder.output;
  }
  TemporaryFolder copy;
  std::filesystem::copy(golden_path("distributed/model"), copy / "model");
  std::filesystem::remove(copy / "model/__1_0.distcp");
  const auto damaged = files_command({"inspect", copy / "model"});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_TRUE(mentions(damaged.output, "DAMAGED") && mentions(damaged.output, "__1_0.distcp")) << damaged.output;
}

TEST(InspectCommand, WhatIsDamagedIsToldAndIsAFailure) {
  const auto file = files_command({"inspect", golden_path("damaged_flipped.pt")});
  EXPECT_EQ(file.exit_code, 1);
  EXPECT_TRUE(mentions(file.errors, "damaged_flipped.pt")) << file.errors;
  const auto folder = files_command({"inspect", golden_path("")});
  EXPECT_EQ(folder.exit_code, 1);
  EXPECT_TRUE(mentions(folder.output, "14 damaged")) << folder.output;
  EXPECT_TRUE(mentions(folder.output, "torch_views_zip.pt")) << folder.output;
  for (const std::string wrong : {"absent.pt", "files.json", "/dev/null"}) {
    EXPECT_EQ(files_command({"inspect", wrong == "/dev/null" ? wrong : golden_path(wrong)}).exit_code, 1) << wrong;
  }
  EXPECT_EQ(files_command({"inspect"}).exit_code, 2);
  EXPECT_EQ(files_command({"inspect", "a", "--jason"}).exit_code, 2);
}

TEST(InspectCommand, NamesFromAFileCannotMoveTheCursor) {
  TemporaryFolder folder;
  const std::string header = R"({"\u001b[2Jevil\r":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const uint64_t size = header.size();
  std::ofstream(folder / "x.safetensors", std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&size), 8) << header << 'x';
  const auto result = files_command({"inspect", folder / "x.safetensors"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_FALSE(mentions(result.output, "\x1b")) << result.output;
}

TEST(InspectCommand, ASmallFileThatClaimsATerabyteTakesNoMemory) {
  TemporaryFolder folder;
  const auto claim = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes << std::string(1000, 'x');
    const auto result = files_command({"inspect", folder / name});
    EXPECT_EQ(result.exit_code, 1) << name;
    EXPECT_TRUE(mentions(result.errors, name)) << result.errors;
  };
  const uint64_t terabyte = 1ULL << 40;
  const std::string number(reinterpret_cast<const char*>(&terabyte), 8);
  claim("header.safetensors", number);
  claim("text.pt", "\x80\x04\x8d" + number);
  claim("bytes.pt", "\x80\x04\x8e" + number);
  claim("array.pt", "\x80\x05\x96" + number);
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  EXPECT_LT(usage.ru_maxrss, 1'000'000);  // kilobytes, of the largest child of all tests so far
}

TEST(MergeWeightsCommand, ShardsBecomeTheFileThatPythonWritesWhole) {
  TemporaryFolder folder;
  const auto result = files_command({"merge-weights", golden_path("model_sharded"), folder / "out"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(file_bytes(folder / "out/model.safetensors"), file_bytes(golden_path("model_whole/model.safetensors")));
  // From torch files to the same.
  EXPECT_EQ(files_command({"merge-weights", golden_path("model_sharded_bin"), folder / "again.safetensors"}).exit_code, 0);
  EXPECT_EQ(file_bytes(folder / "again.safetensors"), file_bytes(golden_path("model_whole/model.safetensors")));
}

TEST(MergeWeightsCommand, TiedWeightsAreStoredOnce) {
  TemporaryFolder folder;
  const auto safe = files_command({"merge-weights", golden_path("model_tied_bin"), folder / "safe"});
  EXPECT_EQ(safe.exit_code, 0) << safe.errors;
  EXPECT_TRUE(mentions(safe.output, "left out: head.weight")) << safe.output;
  EXPECT_EQ(file_bytes(folder / "safe/model.safetensors"), file_bytes(golden_path("model_tied/model.safetensors")));
  const auto unsafe =
      files_command({"merge-weights", golden_path("model_tied_bin"), folder / "unsafe", "--unsafe_serialization"});
  EXPECT_EQ(unsafe.exit_code, 0) << unsafe.errors;
  const auto shown = files_command({"inspect", folder / "unsafe/pytorch_model.bin"});
  EXPECT_TRUE(mentions(shown.output, "shares its storage with embed.weight")) << shown.output << shown.errors;
}

// golden/checkpoints/distributed: torch.distributed.checkpoint.save of {"model": ...} by two processes of torch 2.13.0, sharded
// over rows and columns, and what merge_fsdp_weights of accelerate 1.15.0 made of it.
TEST(MergeWeightsCommand, ADistributedCheckpointBecomesTheFileThatPythonMakesOfIt) {
  TemporaryFolder folder;
  const auto result = files_command({"merge-weights", golden_path("distributed/model"), folder / "out"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(file_bytes(folder / "out/model.safetensors"), file_bytes(golden_path("distributed/merged.safetensors")));
  std::filesystem::copy(golden_path("distributed/model"), folder / "pytorch_model_fsdp_0");
  const auto outside = files_command({"merge-weights", folder.name(), folder / "out"});
  EXPECT_EQ(outside.exit_code, 1);
  EXPECT_TRUE(mentions(outside.errors, "Did you mean")) << outside.errors;
  std::filesystem::resize_file(folder / "pytorch_model_fsdp_0/__1_0.distcp", 100);
  EXPECT_EQ(files_command({"merge-weights", folder / "pytorch_model_fsdp_0", folder / "cut"}).exit_code, 1);
  EXPECT_FALSE(std::filesystem::exists(folder / "cut/model.safetensors"));
}

TEST(MergeWeightsCommand, WhatIsMissingOrWrongLeavesNothingBehind) {
  TemporaryFolder folder;
  std::filesystem::copy(golden_path("model_sharded"), folder / "cut");
  std::filesystem::remove(folder / "cut/model-00003-of-00004.safetensors");
  const auto missing = files_command({"merge-weights", folder / "cut", folder / "out", "--remove_checkpoint_dir"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_TRUE(mentions(missing.errors, "model-00003-of-00004.safetensors")) << missing.errors;
  EXPECT_TRUE(std::filesystem::exists(folder / "cut"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  EXPECT_EQ(files_command({"merge-weights", folder / "nowhere", folder / "out"}).exit_code, 1);
  EXPECT_EQ(files_command({"merge-weights", folder.name(), folder / "out"}).exit_code, 1);
  EXPECT_EQ(files_command({"merge-weights", golden_path("model_sharded"), folder / "out.bin"}).exit_code, 2);
  EXPECT_EQ(files_command({"merge-weights", golden_path("model_sharded")}).exit_code, 2);
}

TEST(MergeWeightsCommand, TheFolderIsRemovedOnlyWhenAskedAndNotWithTheResult) {
  TemporaryFolder folder;
  std::filesystem::copy(golden_path("model_sharded"), folder / "shards");
  EXPECT_EQ(files_command({"merge-weights", folder / "shards", folder / "shards", "--remove_checkpoint_dir"}).exit_code, 2);
  EXPECT_TRUE(std::filesystem::exists(folder / "shards"));
  EXPECT_EQ(files_command({"merge-weights", folder / "shards", folder / "out", "--remove_checkpoint_dir"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "shards"));
  EXPECT_TRUE(std::filesystem::exists(folder / "out/model.safetensors"));
}

TEST(MergeWeightsCommand, WhatWasMergedIsNotRemovedWhateverItsPath) {
  TemporaryFolder folder;
  const std::filesystem::path root = folder.name();
  std::filesystem::copy(golden_path("model_sharded"), folder / "shards");
  std::filesystem::create_directory(folder / "shards/inner");
  std::filesystem::create_directory_symlink("shards", folder / "link");
  std::filesystem::create_directory_symlink("shards/inner", folder / "link_inside");
  const auto merge = [&](const std::string& from, const std::string& out) {
    return run_program({"sh", "-c", "cd \"$1\" && exec \"$0\" merge-weights \"$2\" \"$3\" --remove_checkpoint_dir",
                        ACCELERATE_CLI, folder.name(), from, out});
  };
  const auto listed = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) names.push_back(entry.path());
    std::sort(names.begin(), names.end());
    return names;
  };
  const auto before = listed();
  // By names that are not there yet, by links, and by both; whole, and inside of it.
  for (const std::string out :
       {"no/../shards", "shards/new", "no/deep/../../shards/./inner", "link", "link/", "no/../link/new.safetensors",
        "link_inside", "link_inside/..", "shards/inner/../x.safetensors", "./shards/../shards"}) {
    for (const std::string from : {"shards", "shards/", "link"}) {
      const auto refused = merge(from, out);
      EXPECT_EQ(refused.exit_code, 2) << from << " " << out << refused.errors << refused.output;
      EXPECT_TRUE(mentions(refused.errors, "Choose another path")) << refused.errors;
      ASSERT_EQ(listed(), before) << from << " " << out;
    }
  }
  // Beside and above it is kept, also by a path that leads through it; the folder that a link leads to is removed.
  const auto through = merge("link", "shards/../up/../out");
  EXPECT_EQ(through.exit_code, 0) << through.errors;
  EXPECT_FALSE(std::filesystem::exists(folder / "shards"));
  EXPECT_TRUE(std::filesystem::exists(folder / "out/model.safetensors"));
  EXPECT_TRUE(mentions(through.output, folder / "out/model.safetensors:")) << through.output;
  std::filesystem::copy(golden_path("model_sharded"), folder / "shards");
  EXPECT_EQ(merge("shards", ".").exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "shards"));
  EXPECT_TRUE(std::filesystem::exists(folder / "model.safetensors"));
}

}  // namespace
}  // namespace accelerate::testing
