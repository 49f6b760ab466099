#include <fstream>

#include "sharding/sharded_model.h"
#include "sharding/sharded_nets.h"
#include "support/error_text.h"
#include "support/limit.h"
#include "support/variables.h"

namespace {

using namespace sharded_nets;
using accelerate::FsdpOptions;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

/// Bytes that this process has mapped of files in a folder, which have no name any more.
int64_t bytes_mapped_from(const std::filesystem::path& folder) {
  std::ifstream maps("/proc/self/maps");
  int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(folder.string() + "/") == std::string::npos || !line.ends_with("(deleted)")) continue;
    size_t end = 0;
    const auto from = std::stoull(line, &end, 16);
    bytes += static_cast<int64_t>(std::stoull(line.substr(end + 1), nullptr, 16) - from);
  }
  return bytes;
}

/// What of the pieces and of their optimizer state is not in files of the folder, in bytes; pieces may be empty.
int64_t bytes_elsewhere(const std::vector<torch::Tensor>& tensors, const std::filesystem::path& folder) {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::pair<uint64_t, uint64_t>> mapped;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(folder.string() + "/") == std::string::npos) continue;
    size_t end = 0;
    const auto from = std::stoull(line, &end, 16);
    mapped.emplace_back(from, std::stoull(line.substr(end + 1), nullptr, 16));
  }
  int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    const auto at = reinterpret_cast<uint64_t>(tensor.data_ptr());
    const bool inside =
        std::any_of(mapped.begin(), mapped.end(), [at](const auto& range) { return range.first <= at && at < range.second; });
    if (tensor.numel() > 0 && !inside) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

template <class State>
void add_tensors(std::vector<torch::Tensor>& tensors, const State& state) {
  if constexpr (requires { state.exp_avg(); }) {
    for (const auto& tensor : {state.exp_avg(), state.exp_avg_sq()}) tensors.push_back(tensor);
  } else {
    tensors.push_back(state.square_avg());
  }
}

/// Pieces and optimizer state of a run that lies in a folder.
template <class State>
std::vector<torch::Tensor> held_by(torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> tensors;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& piece : group.params()) {
      tensors.push_back(piece.detach());
      const auto found = optimizer.state().find(piece.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) add_tensors(tensors, static_cast<const State&>(*found->second));
    }
  }
  return tensors;
}

class TogetherShardedOffload : public Together {
 protected:
  /// Trains as many steps; `look` sees the run after each.
  template <class Optimizer, class Options>
  static accelerate::TensorDict weights_after(const std::optional<FsdpOptions>& fsdp, const Options& options,
                                              const std::function<void(accelerate::Accelerator&, Optimizer&, int)>& look) {
    accelerate::Accelerator run({.fsdp = fsdp, .timeout = std::chrono::seconds(60)});
    torch::manual_seed(3);
    TinyGpt net;
    Optimizer optimizer(net->parameters(), options);
    auto [model, prepared] = run.prepare(net, optimizer);
    for (int step = 0; step < 3; ++step) {
      const auto ids = batch(run, step);
      run.backward(model(ids).square().mean());
      prepared.step();
      prepared.zero_grad();
      look(run, optimizer, step);
    }
    accelerate::TensorDict weights;
    for (auto& [name, tensor] : run.get_state_dict(model)) weights[name] = tensor.cpu().clone();
    return weights;
  }

  static void expect_equal(const accelerate::TensorDict& a, const accelerate::TensorDict& b) {
    EXPECT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
  }
};

TEST_F(TogetherShardedOffload, ShardsAndOptimizerStateLieInFilesAndTrainToTheSameBits) {
  const CommonFolder folder(accelerator()), checkpoint(accelerator());
  using torch::optim::AdamW;
  const auto ignore = [](auto&&...) {};
  const auto in_memory = weights_after<AdamW>(by_block({.cpu_offload = true}), torch::optim::AdamWOptions(1e-2), ignore);
  const auto in_files =
      weights_after<AdamW>(by_block({.offload_folder = folder.path().string()}), torch::optim::AdamWOptions(1e-2),
                           [&](accelerate::Accelerator& run, AdamW& adamw, int step) {
                             const auto held = held_by<torch::optim::AdamWParamState>(adamw);
                             EXPECT_EQ(bytes_elsewhere(held, folder.path()), 0) << "step " << step;
                             int64_t bytes = 0;
                             for (const auto& tensor : held) bytes += static_cast<int64_t>(tensor.nbytes());
                             EXPECT_GE(bytes_mapped_from(folder.path()), bytes);
                             EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "a kill would leave nothing";
                             if (step != 1) return;
                             run.save_state((checkpoint / "state").string());
                             run.load_state((checkpoint / "state").string());
                           });
  expect_equal(in_files, in_memory);
  EXPECT_EQ(bytes_mapped_from(folder.path()), 0) << "gone with the run";
}

TEST_F(TogetherShardedOffload, StateOfAnOptimizerWithoutFusedKernelsLiesInFilesFromTheSecondStepOn) {
  const CommonFolder folder(accelerator());
  using torch::optim::RMSprop;
  const auto ignore = [](auto&&...) {};
  const auto in_memory = weights_after<RMSprop>(by_block({.cpu_offload = true}), torch::optim::RMSpropOptions(1e-2), ignore);
  const auto in_files =
      weights_after<RMSprop>(by_block({.offload_folder = folder.path().string()}), torch::optim::RMSpropOptions(1e-2),
                             [&](accelerate::Accelerator&, RMSprop& rmsprop, int step) {
                               const auto held = held_by<torch::optim::RMSpropParamState>(rmsprop);
                               EXPECT_TRUE(step == 0 || bytes_elsewhere(held, folder.path()) == 0) << "step " << step;
                             });
  expect_equal(in_files, in_memory);
}

TEST_F(TogetherShardedOffload, KeysOfDeepSpeedForNvmeNameTheFolder) {
  const CommonFolder folder(accelerator());
  torch::nn::Linear net(40, 40);
  const accelerate::testing::Variables variables({{"ACCELERATE_USE_DEEPSPEED", "true"},
                                                  {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"},
                                                  {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "nvme"},
                                                  {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", folder.path().string()}});
  accelerate::Accelerator run;
  auto model = run.prepare(net);
  EXPECT_GE(bytes_mapped_from(folder.path()), static_cast<int64_t>(41 * 40 * sizeof(float)) / world());
}

TEST_F(TogetherShardedOffload, AFolderThatIsMissingOrFullIsAnErrorThatNamesIt) {
  const auto refusal = [](const std::string& folder, rlim_t largest_file) {
    accelerate::Accelerator run({.fsdp = FsdpOptions{.offload_folder = folder}, .timeout = std::chrono::seconds(60)});
    torch::nn::Linear net(300, 300);
    const Limit limit(RLIMIT_FSIZE, largest_file);
    return message_of<accelerate::CheckpointError>([&] { run.prepare(net); });
  };
  expect_parts(refusal("/nowhere/at all", RLIM_INFINITY), {"/nowhere/at all", "No such file or directory"});
  const CommonFolder folder(accelerator());
  expect_parts(refusal(folder.path().string(), 4096), {"Cannot offload", "bytes", folder.path().string()});
}

}  // namespace
