// Runs that train, save after every step, and are killed on the way.
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "faulty_system.h"
#include "saver.h"

namespace saver {
namespace {

/// When and who. Dice are thrown by the seed of the test and the number of the attempt.
struct Death {
  bool comes = false;
  /// A process, or above the last one: all at once.
  int who = 0;
  /// In which save of this attempt.
  int save = 0;
  /// After so many changes of the file system by process 0, or if negative:
  int operations = 0;
  /// after this part of the time that a save takes, or when the next one begins: the save that was measured may have been slow.
  double part = 0;
};

Death throw_dice() {
  const int attempt = number_from("TORCHELASTIC_RESTART_COUNT", 0);
  std::mt19937 random(static_cast<unsigned>(number_from("ACCELERATE_TEST_SEED", 0) * 1000 + attempt));
  const auto one_of = [&](unsigned count) { return static_cast<int>(random() % count); };
  Death death{.comes = attempt < number_from("ACCELERATE_TEST_KILLS", 0)};
  death.who = one_of(static_cast<unsigned>(number_from("WORLD_SIZE", 1)) + 1);
  death.save = 1 + one_of(2);  // not the first: its duration is measured
  death.operations = one_of(2) == 0 ? one_of(60) : -1;
  death.part = one_of(1200) / 1000.0;
  return death;
}

/// Prepares the death for the save that begins now.
class Reaper {
 public:
  Reaper(const Death& death, const Accelerator& accelerator) : death_(death) {
    const auto processes = accelerator.gather_object(std::vector<int>{::getpid()});
    const int count = static_cast<int>(processes.size());
    std::vector<int> doomed;
    for (int i = 0; i < count; ++i) {
      if (death.who == count || death.who == i) doomed.push_back(processes[static_cast<size_t>(i)]);
    }
    faulty_system::set_victims(doomed);
    is_main_ = accelerator.is_main_process();
  }
  ~Reaper() {
    if (thread_.joinable()) thread_.join();
  }

  void begin_save() {
    begun_ = std::chrono::steady_clock::now();
    if (!death_.comes || !is_main_) return;
    const int save = count_++;
    if (save > death_.save && death_.operations < 0 && !faulty_system::has_killed_victims()) faulty_system::kill_victims();
    if (save != death_.save) return;
    if (death_.operations >= 0) {
      faulty_system::kill_victims_after(death_.operations);
    } else {
      thread_ = std::thread([wait = death_.part * duration_] {
        std::this_thread::sleep_for(wait);
        faulty_system::kill_victims();
      });
    }
  }
  void end_save() { duration_ = std::chrono::steady_clock::now() - begun_; }

 private:
  Death death_;
  bool is_main_ = false;
  int count_ = 0;
  std::chrono::steady_clock::time_point begun_ = {};
  std::chrono::duration<double> duration_{0.05};
  std::thread thread_;
};

struct Progress {
  int64_t epoch = 0, step = 0;
  accelerate::StateDict state_dict() const { return {{"epoch", epoch}, {"step", step}}; }
  void load_state_dict(const accelerate::StateDict& state) {
    epoch = state.at("epoch").get<int64_t>();
    step = state.at("step").get<int64_t>();
  }
};

/// Saves after every step of 40, and says on the way how far it is sure to be.
void train(bool async) {
  accelerate::set_seed(7);
  Accelerator accelerator({.project = {.project_dir = folder(), .automatic_checkpoint_naming = true, .total_limit = 2}});
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Dropout(0.1), torch::nn::Linear(8, 1));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto x = torch::randn({20 * accelerator.num_processes(), 4});
  accelerate::DataLoader data(accelerate::TensorDataset(x, x.sum(1, true)), {.batch_size = 1, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, data);
  Progress progress;
  accelerator.register_for_checkpointing(progress);
  load_all(accelerator);
  accelerator.load_state();
  accelerator.print("resumed at {}", progress.step);
  Reaper reaper(throw_dice(), accelerator);
  int64_t under_way = progress.step;
  for (; progress.epoch < 2; ++progress.epoch) {
    for (auto& [inputs, targets] : loader) {
      accelerator.backward(torch::mse_loss(model(inputs), targets));
      optimizer.step();
      optimizer.zero_grad();
      ++progress.step;
      reaper.begin_save();
      if (accelerator.is_main_process()) say("begun " + std::to_string(progress.step));
      accelerator.save_state({.async = async});
      reaper.end_save();
      const int64_t durable = async ? under_way : progress.step;  // of an earlier one, the next call tells
      if (accelerator.is_main_process()) say("durable " + std::to_string(durable));
      under_way = progress.step;
    }
  }
  accelerator.end_training();
  double sum = 0;
  for (const auto& parameter : net->parameters()) sum += parameter.abs().sum().item<double>();
  accelerator.print("steps {} checksum {:.17g}", progress.step, sum);
}

}  // namespace

Scenes training_scenes() {
  return {{"train", [] { train(false); }}, {"train_async", [] { train(true); }}};
}

}  // namespace saver
