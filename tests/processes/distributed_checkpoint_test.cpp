#include "checkpoint_files/distributed_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "checkpoint_files/distributed_writer.h"
#include "checkpoint_files/weight_sources.h"
#include "core/file.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

// Folders of torch.distributed.checkpoint, with the real one as the peer.
namespace accelerate::testing {

using namespace detail;
namespace {

void run_distributed_peer(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {ACCELERATE_PYTHON, ACCELERATE_DISTRIBUTED_CHECKPOINT_PEER});
  const auto result = run_program(arguments, {.limit = std::chrono::seconds(300)});
  ASSERT_EQ(result.exit_code, 0) << result.errors << result.output;
}

ProgramResult run_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {ACCELERATE_CLI};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command);
}

std::string all_bytes(const WeightSource& tensor) {
  std::string bytes;
  tensor.read([&](const void* piece, uint64_t size) { bytes.append(static_cast<const char*>(piece), size); });
  return bytes;
}

/// The parameters of the peer's model.
const std::vector<std::pair<std::string, std::vector<int64_t>>> kPeerParameters = {
    {"embed.weight", {11, 5}}, {"conv.weight", {3, 5, 3}}, {"conv.bias", {3}}, {"head.weight", {1, 3}}, {"head.bias", {1}}};

/// What `ranks` ranks hold when tensors are flattened and cut evenly.
class FlatRanks {
 public:
  explicit FlatRanks(size_t ranks) : pieces_(ranks) {}

  void add_counting(const StatePath& path, const std::vector<int64_t>& shape, float first) {
    auto& elements = kept_.emplace_back(element_count(shape));
    std::iota(elements.begin(), elements.end(), first);
    const uint64_t share = (elements.size() + pieces_.size() - 1) / pieces_.size();
    for (size_t rank = 0; rank < pieces_.size(); ++rank) {
      const uint64_t begin = std::min(elements.size(), rank * share), end = std::min(elements.size(), begin + share);
      for (auto& piece : pieces_of_range(path, *find_dtype("float32"), shape, begin, end, elements.data() + begin))
        pieces_[rank].push_back(std::move(piece));
    }
  }
  void add_value(const StatePath& path, const PickleNode* value) {
    for (auto& pieces : pieces_) pieces.push_back({.path = path, .value = value});  // the same on all ranks
  }

  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    std::vector<DistributedMetadata> parts;
    for (size_t rank = 0; rank < pieces_.size(); ++rank) {
      const std::string name = distributed_file_name(static_cast<int>(rank));
      parts.push_back(plan_distributed_file(pieces_[rank], name));
      OutputFile file(folder / name);
      write_distributed_file(pieces_[rank], file);
      file.commit();
    }
    const std::string bytes = write_distributed_metadata(joined_metadata(parts));
    OutputFile file(folder / kDistributedMetadataName);
    file.write(bytes.data(), bytes.size());
    file.commit();
  }

 private:
  std::deque<std::vector<float>> kept_;
  std::vector<std::vector<SavedPiece>> pieces_;
};

void write_optimizer(size_t ranks, const std::filesystem::path& folder) {
  FlatRanks optimizer(ranks);
  PickleTree tree;
  PickleItems names;
  float first = 0.5;
  for (const auto& [name, shape] : kPeerParameters) {
    names.push_back(tree.text(name));
    for (const char* moment : {"exp_avg", "exp_avg_sq"})
      optimizer.add_counting({"optimizer", "state", name, moment}, shape, first);
    optimizer.add_counting({"optimizer", "state", name, "step"}, {}, 7);
    first += 1000;
  }
  const StatePath group = {"optimizer", "param_groups", int64_t{0}};
  const std::vector<std::pair<const char*, PickleNode*>> values = {
      {"lr", tree.number(0.125)},
      {"betas", tree.tuple({tree.number(0.5), tree.number(0.75)})},
      {"eps", tree.number(1e-8)},
      {"weight_decay", tree.number(0.01)},
      {"amsgrad", tree.boolean(false)},
      {"maximize", tree.boolean(false)},
      {"foreach", tree.none()},
      {"capturable", tree.boolean(false)},
      {"differentiable", tree.boolean(false)},
      {"fused", tree.none()},
      {"decoupled_weight_decay", tree.boolean(true)},
      {"params", tree.list(names)},
  };
  for (const auto& [key, value] : values) {
    StatePath path = group;
    path.emplace_back(key);
    optimizer.add_value(path, value);
  }
  optimizer.write(folder);
}

TEST(PythonLoads, DistributedCheckpointsOfFlatShardsInEveryWayThatItHas) {
  TemporaryFolder folder;
  const std::vector<std::string> states = {folder / "two", folder / "three"};
  for (const auto& state : states) {
    const size_t ranks = state == states[0] ? 2 : 3;
    FlatRanks model(ranks);
    float first = 0;
    for (const auto& [name, shape] : kPeerParameters) {
      model.add_counting({"model", name}, shape, first);
      first += 1000;
    }
    model.write(state + "/pytorch_model_fsdp_0");
    write_optimizer(ranks, state + "/optimizer_0");
  }
  run_distributed_peer({"load", states[0], states[1]});
  // Our own commands make the same of them.
  for (const auto& state : states) {
    const auto merged = run_command({"merge-weights", state + "/pytorch_model_fsdp_0", state + "/ours.safetensors"});
    EXPECT_EQ(merged.exit_code, 0) << merged.errors;
    const auto ours = open_weight_file(state + "/ours.safetensors"),
               theirs = open_weight_file(state + "/merged/model.safetensors");
    ASSERT_EQ(ours.tensors.size(), kPeerParameters.size());
    for (const auto& tensor : ours.tensors) EXPECT_EQ(all_bytes(tensor), all_bytes(*theirs.find(tensor.name))) << tensor.name;
    const auto shown = run_command({"inspect", state + "/optimizer_0/.metadata"});
    for (const char* part : {"optimizer.state.conv.weight.exp_avg", "[3, 5, 3]", "1000.5 1001.5", "optimizer.param_groups.0.lr",
                             "0.125", "optimizer.param_groups.0.params.1"}) {
      EXPECT_NE(shown.output.find(part), std::string::npos) << part << "\n" << shown.output << shown.errors;
    }
  }
}

TEST(PythonSaves, ModelsOfBothKindsOfFsdpOptimizersAndOddTensorsAreReadByRanges) {
  TemporaryFolder folder;
  run_distributed_peer({"save", folder.name()});
  const auto whole = open_weight_file(folder / "whole.safetensors");
  const DistributedCheckpoint model(folder / "pytorch_model_fsdp_0"), optimizer(folder / "optimizer_0"), older(folder / "older"),
      odd(folder / "odd");
  size_t found = 0;
  for (const auto* checkpoint : {&model, &optimizer, &older, &odd}) {
    found += checkpoint->tensors().size();
    for (const auto& tensor : checkpoint->tensors()) {
      const WeightSource* expected = whole.find(tensor.name);
      ASSERT_NE(expected, nullptr) << tensor.name;
      EXPECT_EQ(tensor.shape, expected->shape);
      EXPECT_EQ(tensor.dtype, expected->dtype);
      const std::string bytes = all_bytes(*expected);
      const uint64_t count = tensor.elements(), third = count / 3, element = static_cast<uint64_t>(tensor.dtype->bytes);
      for (const auto& [begin, end] : {std::pair(uint64_t{0}, count), std::pair(third, count), std::pair(third, count - third)}) {
        std::string read((end - begin) * element, '\0');
        checkpoint->read(tensor, begin, end, read.data());
        EXPECT_EQ(read, bytes.substr(begin * element, read.size())) << tensor.name;
      }
    }
  }
  EXPECT_EQ(found, whole.tensors.size());
  EXPECT_EQ(odd.find_tensor("odd.list.1.inner")->path, (StatePath{"odd", "list", int64_t{1}, "inner"}));
  EXPECT_EQ(odd.read(*odd.find_value("odd.list.2")).root->text(), "text");
  const DistributedValue* rate = optimizer.find_value("optimizer.param_groups.0.lr");
  ASSERT_NE(rate, nullptr);
  EXPECT_EQ(optimizer.read(*rate).root->number(), 0.01);
  EXPECT_EQ(rate->path, (StatePath{"optimizer", "param_groups", int64_t{0}, "lr"}));
  const DistributedValue* names = optimizer.find_value("optimizer.param_groups.0.params");
  ASSERT_NE(names, nullptr);
  EXPECT_EQ(optimizer.read(*names).root->items().size(), kPeerParameters.size());
  const auto shown = run_command({"inspect", folder / "optimizer_0"});
  EXPECT_EQ(shown.exit_code, 0) << shown.errors;
  EXPECT_NE(shown.output.find("15 tensors of"), std::string::npos) << shown.output;
  const auto refused = run_command({"merge-weights", folder / "optimizer_0", folder / "out"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.errors.find("Only weights can be merged"), std::string::npos) << refused.errors;
}

}  // namespace
}  // namespace accelerate::testing
