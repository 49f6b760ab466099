#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <accelerate/accelerator/accelerator.h>
#include <accelerate/data/tensor_dataset.h>
#include <accelerate/training/torch_schedulers.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <filesystem>

#include "sections.h"

namespace accelerate::self_test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBatches = 6;      // of an epoch, on each process
constexpr int64_t kSavedBehind = 2;  // the batch after which the checkpoint is taken

/// A new name, the same on all ranks of a node, which may share its temporary folder with others. One rank per node removes it.
class ScratchFolder {
 public:
  explicit ScratchFolder(const Accelerator& accelerator) : removes_(accelerator.is_local_main_process()) {
    std::vector<std::string> name = {"accelerate_test_" + std::to_string(::getpid())};
    accelerator.broadcast_object_list(name);
    path_ = fs::temp_directory_path() /
            (name[0] + "_" + std::to_string(accelerator.process_index() - accelerator.local_process_index()));
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (removes_) fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  bool removes_;
  fs::path path_;
};

struct StepCount {
  int64_t steps = 0;
  StateDict state_dict() const { return {{"steps", steps}}; }
  void load_state_dict(const StateDict& state) { steps = state.at("steps").get<int64_t>(); }
};

/// The state of a run as one vector of numbers.
at::Tensor outcome_of(const torch::nn::Sequential& net, const torch::optim::SGD& sgd, const StepCount& count) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().cpu().to(at::kDouble).reshape({-1}));
  all.push_back(at::randn({1}, at::kDouble));  // the next number drawn
  all.push_back(at::full({1}, sgd.param_groups().at(0).options().get_lr(), at::kDouble));
  all.push_back(at::full({1}, count.steps, at::kDouble));
  return at::cat(all);
}

void check_resuming(const Accelerator& accelerator, Findings& findings, bool async, const std::string& name) {
  const ScratchFolder folder(accelerator);
  // Few nodes share their temporary folders.
  Accelerator own(patient({.project = {.save_on_each_node = true}}));
  set_seed(11);
  const auto inputs = at::randn({kBatches * own.num_processes() * 2, 3});
  torch::nn::Sequential net(torch::nn::Linear(3, 8), torch::nn::Dropout(0.5), torch::nn::Linear(8, 1));
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  LambdaLR lambda(sgd, [](int64_t step) { return 1.0 / (1.0 + 0.1 * static_cast<double>(step)); });
  DataLoader data(TensorDataset(inputs, inputs.sum(1, true).sin()), {.batch_size = 2, .shuffle = true});
  auto [model, optimizer, loader, scheduler] = own.prepare(net, sgd, data, lambda);
  StepCount count;
  own.register_for_checkpointing(count);
  const auto finish_epoch = [&, &model = model, &optimizer = optimizer, &loader = loader,
                             &scheduler = scheduler](int64_t save_at) {
    int64_t batches = 0;
    for (auto& [sample, target] : loader) {
      own.backward(at::mse_loss(model(sample), target));
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      ++count.steps;
      if (++batches == save_at) own.save_state(folder.path().string(), {.async = async});
    }
    return batches;
  };
  findings.equal(finish_epoch(kSavedBehind), kBatches, "an epoch in which a checkpoint is saved has all of its batches" + name);
  const auto went_on = outcome_of(net, sgd, count);
  own.load_state(folder.path().string());
  findings.equal(count.steps, kSavedBehind, "a registered object has the value that was saved" + name);
  findings.equal(finish_epoch(0), kBatches - kSavedBehind, "a loader resumes after the batch of the checkpoint" + name);
  findings.equal(outcome_of(net, sgd, count), went_on, "a resumed run ends like the uninterrupted one" + name);
  own.wait_for_everyone();
}

}  // namespace

void check_checkpoints(Accelerator& accelerator, Findings& findings) {
  check_resuming(accelerator, findings, false, "");
  check_resuming(accelerator, findings, true, ", saved asynchronously");
}

}  // namespace accelerate::self_test
