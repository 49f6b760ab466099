// Runs that save: killed at chosen instants of a save, out of luck in other ways, or left alone.
#include <accelerate/accelerate.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <thread>

namespace {

using accelerate::Accelerator;

std::string folder;

void say(const std::string& text) { std::cout << text + "\n" << std::flush; }

int number_from(const char* variable, int fallback) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : fallback;
}

// --- An instant to die at -------------------------------------------------------------------------------------------------

/// Changes of the file system that are left until the end comes; below 0: there is no such end.
std::atomic<int> operations_left = -1;
std::vector<int> doomed;  // the processes that die

void die() {
  for (const int process : doomed) ::kill(process, SIGKILL);
  if (std::find(doomed.begin(), doomed.end(), ::getpid()) == doomed.end()) return;
  for (;;) ::pause();
}

void count_operation() {
  if (operations_left >= 0 && operations_left-- == 0) die();
}

}  // namespace

// What a save asks of the file system, one by one, in place of the functions of the C library.
extern "C" {
int fsync(int file) {
  count_operation();
  return static_cast<int>(::syscall(SYS_fsync, file));
}
int rename(const char* from, const char* to) noexcept {
  count_operation();
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int unlinkat(int at, const char* name, int flags) noexcept {
  count_operation();
  return static_cast<int>(::syscall(SYS_unlinkat, at, name, flags));
}
}

namespace {

/// When and who. Dice are thrown by the seed of the test and the number of the attempt.
struct Death {
  bool comes = false;
  /// 0 or 1: that process; 2: both at once.
  int who = 0;
  /// In which save of this attempt.
  int save = 0;
  /// After so many changes of the file system by process 0, or if negative:
  int operations = 0;
  /// after this part of the time that a save takes.
  double part = 0;
};

Death throw_dice() {
  const int attempt = number_from("TORCHELASTIC_RESTART_COUNT", 0);
  std::mt19937 random(static_cast<unsigned>(number_from("ACCELERATE_TEST_SEED", 0) * 1000 + attempt));
  const auto one_of = [&](unsigned count) { return static_cast<int>(random() % count); };
  Death death{.comes = attempt < number_from("ACCELERATE_TEST_KILLS", 0)};
  death.who = one_of(3);
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
    for (int i = 0; i < static_cast<int>(processes.size()); ++i) {
      if (death.who == 2 || death.who == i) doomed.push_back(processes[static_cast<size_t>(i)]);
    }
    is_main_ = accelerator.is_main_process();
  }
  ~Reaper() {
    if (thread_.joinable()) thread_.join();
  }

  void begin_save() {
    begun_ = std::chrono::steady_clock::now();
    if (!death_.comes || !is_main_ || count_++ != death_.save) return;
    if (death_.operations >= 0) {
      operations_left = death_.operations;
    } else {
      thread_ = std::thread([wait = death_.part * duration_] {
        std::this_thread::sleep_for(wait);
        die();
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

// --- The run --------------------------------------------------------------------------------------------------------------

struct Progress {
  int64_t epoch = 0, step = 0;
  accelerate::StateDict state_dict() const { return {{"epoch", epoch}, {"step", step}}; }
  void load_state_dict(const accelerate::StateDict& state) {
    epoch = state.at("epoch").get<int64_t>();
    step = state.at("step").get<int64_t>();
  }
};

/// Everything that is there must be whole, not the newest alone.
void load_all(Accelerator& accelerator) {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/checkpoints", none)) found.push_back(entry.path());
  accelerator.broadcast_object_list(found);
  for (const auto& each : found) accelerator.load_state(each);
}

/// Saves after every step of 40, and says on the way how far it is sure to have come.
void train(bool async) {
  accelerate::set_seed(7);
  Accelerator accelerator({.project = {.project_dir = folder, .automatic_checkpoint_naming = true, .total_limit = 2}});
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Dropout(0.1), torch::nn::Linear(8, 1));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto x = torch::randn({40, 4});
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

// --- Other ends -----------------------------------------------------------------------------------------------------------

struct Saved {
  Saved() : accelerator({.timeout = std::chrono::seconds(40)}), net(64, 64), sgd(net->parameters(), 0.1) {
    accelerator.prepare(net, sgd);
  }
  Accelerator accelerator;
  torch::nn::Linear net;
  torch::optim::SGD sgd;
};

std::string heard(const Accelerator& accelerator, const std::function<void()>& call) {
  const std::string who = "process " + std::to_string(accelerator.process_index());
  try {
    call();
    return who + " heard nothing";
  } catch (const accelerate::Error& error) {
    return who + " heard: " + error.what();
  }
}

/// The last process dies in the middle of a save, when the folder has been made.
void dies_in_save() {
  Saved run;
  run.accelerator.register_save_state_pre_hook([&](auto&&...) {
    if (run.accelerator.is_last_process()) std::raise(SIGKILL);
  });
  say(heard(run.accelerator, [&] { run.accelerator.save_state(folder + "/saved"); }));
}

/// It dies when its part has to be written by the thread behind it.
void dies_in_async_save() {
  Saved run;
  run.accelerator.wait_for_everyone();
  if (run.accelerator.is_last_process()) {
    doomed = {::getpid()};
    operations_left = 0;
  }
  say(heard(run.accelerator, [&] {
    run.accelerator.save_state(folder + "/saved", {.async = true});
    run.accelerator.end_training();
  }));
}

/// Nobody waits for what is being written.
void leaves_while_saving() {
  Saved run;
  run.accelerator.save_state(folder + "/saved", {.async = true});
}

/// An exception ends the run while a save is under way.
void throws_while_saving() {
  Saved run;
  run.accelerator.save_state(folder + "/saved", {.async = true});
  throw std::runtime_error("on purpose");
}

/// As somebody who may not write there. Training goes on, and what may be written is.
void may_not_write() {
  Saved run;
  auto& accelerator = run.accelerator;
  say(heard(accelerator, [&] { accelerator.save_state(folder + "/closed/saved"); }));
  say(heard(accelerator, [&] { accelerator.save_state(folder + "/closed/saved", {.async = true}); }));
  say(heard(accelerator, [&] { accelerate::save_weights(accelerate::state_dict(*run.net), folder + "/closed"); }));
  say(heard(accelerator, [&] { accelerate::save_file(accelerate::state_dict(*run.net), folder + "/closed/a.safetensors"); }));
  say(heard(accelerator, [&] { accelerator.load_state(folder + "/unreadable"); }));
  Accelerator automatic({.project = {.project_dir = folder + "/hidden", .automatic_checkpoint_naming = true}});
  say(heard(automatic, [&] { automatic.load_state(); }));
  say(heard(accelerator, [&] { accelerator.save_state(folder + "/open/saved"); }));
}

int run(const std::string& scene) {
  static const std::map<std::string, void (*)()> kScenes = {{"train", [] { train(false); }},
                                                            {"train_async", [] { train(true); }},
                                                            {"dies_in_save", dies_in_save},
                                                            {"dies_in_async_save", dies_in_async_save},
                                                            {"leaves_while_saving", leaves_while_saving},
                                                            {"throws_while_saving", throws_while_saving},
                                                            {"may_not_write", may_not_write}};
  try {
    kScenes.at(scene)();
    return 0;
  } catch (const std::exception& error) {
    say(std::string("left by: ") + error.what());
    return 3;
  }
}

}  // namespace

int main(int, char** argv) {
  folder = argv[2];
  return run(argv[1]);
}
