// Training on machines that may join, leave and be lost, under a scheduler that may take them back: it saves every twenty steps
// and when it is told to end, and begins where the newest checkpoint ends, on however many processes there are then.
//   accelerate launch --rdzv_backend c10d --nnodes 1:4 --nproc_per_node 2 --rdzv_endpoint HOST:29500 --max_restarts 3 elastic
//   FOLDER
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

namespace {

volatile std::sig_atomic_t told_to_end =
    0;  // SIGTERM: the launcher ends this rank. SIGUSR1: the time that Slurm gave is nearly over

struct Progress {
  int64_t epoch = 0, step = 0;
  accelerate::StateDict state_dict() const { return {{"epoch", epoch}, {"step", step}}; }
  void load_state_dict(const accelerate::StateDict& state) {
    epoch = state.at("epoch").get<int64_t>();
    step = state.at("step").get<int64_t>();
  }
};

}  // namespace

int main(int count, char** words) {
  const std::filesystem::path folder = count > 1 ? words[1] : "elastic_run";
  const int64_t epochs = count > 2 ? std::stoll(words[2]) : 10;
  const std::chrono::milliseconds pause(count > 3 ? std::stoll(words[3]) : 0);  // as if the model were larger
  for (const int signal : {SIGTERM, SIGUSR1}) std::signal(signal, [](int) { told_to_end = 1; });

  accelerate::set_seed(7);
  accelerate::Accelerator accelerator({
      .project = {.project_dir = folder, .automatic_checkpoint_naming = true, .total_limit = 2},
  });
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  const auto x = torch::randn({480, 8});
  accelerate::DataLoader data(accelerate::TensorDataset(x, x.sum(1, true)), {.batch_size = 4, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, data);

  Progress progress;
  accelerator.register_for_checkpointing(progress);
  if (const auto found = accelerator.load_state())
    accelerator.print("resumed from {} at step {} on {} processes", found->filename().string(), progress.step,
                      accelerator.num_processes());

  for (; progress.epoch < epochs; ++progress.epoch) {
    std::optional<double> last;  // none: the checkpoint was that of the epoch's last batch
    for (auto& [inputs, targets] : loader) {
      const auto loss = torch::mse_loss(model(inputs), targets);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      ++progress.step;
      last = loss.item<double>();
      std::this_thread::sleep_for(pause);
      if (told_to_end) accelerator.set_trigger();
      const bool ends = accelerator.check_trigger();  // what one rank was told, all of them know
      if (ends || progress.step % 20 == 0) accelerator.save_state();
      if (!ends) continue;
      accelerator.print("saved at step {}, as told", progress.step);
      return 0;
    }
    if (last) accelerator.print("epoch {} step {} loss {:.6f}", progress.epoch, progress.step, *last);
  }
  double sum = 0;
  for (const auto& p : accelerator.unwrap_model(model)->parameters()) sum += p.abs().sum().item<double>();
  accelerator.print("steps {} checksum {:.9f}", progress.step, sum);
  accelerator.end_training();
}
