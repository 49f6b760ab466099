// What goes wrong between processes, each scene by name. The survivors print what they are told.
#include <accelerate/accelerate.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "scene.h"

namespace {

using accelerate::Accelerator;
using namespace std::chrono_literals;

std::string folder;  // where ranks leave files for each other, outside of the group

using accelerate::testing::say;

void leave_file(const std::string& name) { std::ofstream(folder + "/" + name) << "here"; }

void wait_for_file(const std::string& name) {
  while (!std::filesystem::exists(folder + "/" + name)) std::this_thread::sleep_for(1ms);
}

/// Calls, and prints the error that is expected.
template <class Call>
void tell(const Accelerator& accelerator, Call call) {
  try {
    call();
    say("process " + std::to_string(accelerator.process_index()) + " heard nothing");
  } catch (const accelerate::DistributedError& error) {
    say("process " + std::to_string(accelerator.process_index()) + " heard: " + error.what());
  }
}

Accelerator patient(const accelerate::DdpOptions& ddp = {}) { return Accelerator({.ddp = ddp, .timeout = 40s}); }

void killed_in_a_barrier() {
  auto accelerator = patient();
  std::thread killer;
  if (accelerator.is_last_process()) {
    killer = std::thread([] {
      std::this_thread::sleep_for(500ms);
      std::raise(SIGKILL);
    });
  }
  if (accelerator.is_main_process()) std::this_thread::sleep_for(1s);  // so that nobody gets through
  tell(accelerator, [&] { accelerator.wait_for_everyone(); });
}

void returns_early() {
  auto accelerator = patient();
  accelerator.gather(torch::ones({2}));
  if (accelerator.is_last_process()) return;
  tell(accelerator, [&] { accelerator.wait_for_everyone(); });
}

void throws_early() {
  auto accelerator = patient();
  if (accelerator.is_last_process()) throw std::runtime_error("on purpose");
  tell(accelerator, [&] { accelerator.wait_for_everyone(); });
}

void other_shapes() {
  auto accelerator = patient();
  accelerator.wait_for_everyone();
  // The shorter message is taken for whole by its receiver, so a second call is needed to notice.
  tell(accelerator, [&] {
    accelerator.gather(torch::ones({3 + accelerator.process_index(), 2}));
    accelerator.wait_for_everyone();
  });
}

void other_calls() {
  Accelerator accelerator({.timeout = 3s});
  tell(accelerator,
       [&] { accelerator.is_main_process() ? void(accelerator.reduce(torch::ones({2}))) : accelerator.wait_for_everyone(); });
}

/// One rank does not call at all and comes to the next call instead.
void skipped_call() {
  Accelerator accelerator({.timeout = 3s});
  accelerator.wait_for_everyone();
  tell(accelerator, [&] {
    if (!accelerator.is_last_process()) accelerator.gather(torch::ones({2, 2}));
    if (accelerator.is_last_process()) wait_for_file("all have heard");
  });
  leave_file(std::to_string(accelerator.process_index()));
  if (accelerator.is_main_process()) {
    wait_for_file("1");
    leave_file("all have heard");
  }
}

/// The last process comes late to the call; the others warn, and go on.
void late() {
  auto accelerator = patient();
  if (accelerator.is_last_process()) wait_for_file("warned");
  accelerator.gather(torch::ones({2}));
  say("process " + std::to_string(accelerator.process_index()) + " went on");
}

void late_while_loading() {
  auto accelerator = patient();
  // A pipe that nobody writes to: opening it takes for ever, as on a disk that hangs.
  if (accelerator.is_last_process()) {
    try {
      accelerate::load_file(folder + "/pipe.safetensors");
    } catch (const accelerate::CheckpointError&) {
      // Nothing came out of it.
    }
  }
  accelerator.gather(torch::ones({2}));
  say("process " + std::to_string(accelerator.process_index()) + " went on");
}

/// Its second sample is long in coming.
struct SlowDataset {
  bool is_slow;
  size_t size() const { return 4; }
  torch::Tensor get(size_t index) const {
    if (is_slow && index == 1) wait_for_file("warned");
    return torch::ones({1});
  }
};

void late_while_reading(int workers) {
  auto accelerator = patient();
  accelerate::DataLoader loader(SlowDataset{accelerator.is_last_process()}, {.batch_size = 1, .num_workers = workers});
  for (auto& batch : loader) accelerator.gather(batch);
  say("process " + std::to_string(accelerator.process_index()) + " went on");
}
void late_while_reading_data() { late_while_reading(0); }
void late_while_workers_read_data() { late_while_reading(1); }

void stopped() {
  Accelerator accelerator({.timeout = 3s});
  if (accelerator.is_last_process()) std::raise(SIGSTOP);
  tell(accelerator, [&] { accelerator.wait_for_everyone(); });
}

/// The calls differ, and debug mode tells before anything is exchanged.
void disagree_in_debug_mode() {
  auto accelerator = patient();
  tell(accelerator,
       [&] { accelerator.is_main_process() ? void(accelerator.gather(torch::ones({2}))) : accelerator.wait_for_everyone(); });
  tell(accelerator, [&] { accelerator.gather_object(std::vector{1}); });
  tell(accelerator, [&] {
    std::vector<int> list = {1};
    accelerator.is_main_process() ? accelerator.broadcast_object_list(list) : void(accelerator.gather_object(list));
  });
}

/// The survivors hear of it and stay: nobody learns of the death by another one's leaving.
void survivors_stay() {
  auto accelerator = patient();
  accelerator.wait_for_everyone();
  if (accelerator.is_last_process()) std::raise(SIGKILL);
  tell(accelerator, [&] { accelerator.reduce(torch::ones({2})); });
  wait_for_file("all have heard");
}

/// A child of the dead process holds its connections open.
void killed_with_a_child() {
  auto accelerator = patient();
  accelerator.wait_for_everyone();
  if (accelerator.is_last_process()) {
    if (::fork() == 0) {
      ::execlp("sleep", "sleep", "15", nullptr);
      ::_exit(127);
    }
    std::raise(SIGKILL);
  }
  tell(accelerator, [&] { accelerator.wait_for_everyone(); });
}

void guided_backward(const Accelerator& accelerator, const torch::Tensor& loss) {
  accelerate::detail::run_backward(accelerator.state(), std::source_location::current(), [&] { loss.backward(); });
}
void plain_backward(const Accelerator&, const torch::Tensor& loss) { loss.backward(); }
using Backward = void (*)(const Accelerator&, const torch::Tensor&);

/// Process 1 dies in the middle of its second backward pass. The survivors hear of it and stay.
void killed_in(Backward backward, const accelerate::DdpOptions& ddp = {}) {
  auto accelerator = patient(ddp);
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  auto model = accelerator.prepare(net);
  const auto step = [&](bool dies) {
    auto hidden = net->ptr(0)->as<torch::nn::Linear>()->forward(torch::ones({3, 4}));
    if (dies) hidden.register_hook([](const torch::Tensor&) { std::raise(SIGKILL); });
    backward(accelerator, model(torch::ones({3, 4})).sum() + hidden.sum());
  };
  step(false);
  tell(accelerator, [&] { step(accelerator.process_index() == 1); });
  tell(accelerator, [&] { accelerator.wait_for_everyone(); });
  wait_for_file("all have heard");
}

void killed_in_backward() { killed_in(guided_backward); }
void killed_in_power_sgd() {
  killed_in(guided_backward,
            {.comm_hook = accelerate::CommHook::power_sgd,
             .comm_state_option = {
                 .start_powerSGD_iter = 1, .min_compression_rate = 1, .use_error_feedback = false, .warm_start = false}});
}
void killed_in_plain_backward() { killed_in(plain_backward); }

/// The last process is still calculating when the others have nothing left to do but to wait for its gradients.
void slow(Backward backward) {
  auto accelerator = patient();
  torch::nn::Linear net(4, 2);
  auto model = accelerator.prepare(net);
  auto output = model(torch::ones({3, 4}));
  if (accelerator.is_last_process()) output.register_hook([](const torch::Tensor&) { wait_for_file("warned"); });
  backward(accelerator, output.sum());
  say("process " + std::to_string(accelerator.process_index()) + " went on");
}

void slow_backward() { slow(guided_backward); }
void slow_plain_backward() { slow(plain_backward); }

/// A scope that is open lets a late process in, whatever has become of others.
void late_to_an_open_scope() {
  auto accelerator = patient();
  if (accelerator.process_index() == 1) wait_for_file("gone");
  { auto first = accelerator.main_process_first(); }
  say("process " + std::to_string(accelerator.process_index()) + " is in");
  if (accelerator.is_last_process()) std::_Exit(0);
  wait_for_file("gone");
}

/// A copy of a rank's process that ends does not end the rank's group.
void copies_itself() {
  auto accelerator = std::make_unique<Accelerator>(accelerate::AcceleratorOptions{.timeout = 40s});
  const int rank = accelerator->process_index();
  if (accelerator->is_last_process() && ::fork() == 0) {
    accelerator.reset();
    ::_exit(0);
  }
  if (accelerator->is_last_process()) ::wait(nullptr);
  accelerator->wait_for_everyone();
  accelerator.reset();
  say("process " + std::to_string(rank) + " went on");
}

void host_is_killed() {
  auto accelerator = patient();
  if (accelerator.is_main_process()) std::raise(SIGKILL);
  tell(accelerator, [&] { auto first = accelerator.main_process_first(); });
  tell(accelerator, [&] { accelerator.wait_for_everyone(); });
}

/// A scope whose owner dies inside it.
void killed_in_a_scope() {
  auto accelerator = patient();
  auto first = accelerator.local_main_process_first();
  if (accelerator.is_local_main_process()) {
    wait_for_file("go");
    std::raise(SIGKILL);
  }
}

/// Works in step until the file `end` is there. Every rank has a child, which it ends itself when all goes well.
void steady() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execlp("sleep", "sleep", "1000", nullptr);
    ::_exit(127);
  }
  {
    auto accelerator = patient();
    say("rank " + std::to_string(accelerator.process_index()) + " is process " + std::to_string(::getpid()));
    bool goes_on = true;
    while (goes_on) {
      const bool ends = accelerator.is_main_process() && std::filesystem::exists(folder + "/end");
      goes_on = accelerator.reduce(torch::tensor({ends ? 1 : 0})).item<int>() == 0;
      std::this_thread::sleep_for(5ms);
    }
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

/// The last rank fails the first time that the group is started.
void fails_once() {
  auto accelerator = patient();
  accelerator.wait_for_everyone();
  if (accelerator.is_last_process() && std::string(std::getenv("TORCHELASTIC_RESTART_COUNT")) == "0") std::_Exit(5);
  accelerator.wait_for_everyone();
  say("process " + std::to_string(accelerator.process_index()) + " of " + std::to_string(accelerator.num_processes()) + " met");
}

}  // namespace

int main(int, char** argv) {
  folder = argv[2];
  return accelerate::testing::run_scene(argv[1], {{"killed_in_a_barrier", killed_in_a_barrier},
                                                  {"returns_early", returns_early},
                                                  {"throws_early", throws_early},
                                                  {"other_shapes", other_shapes},
                                                  {"other_calls", other_calls},
                                                  {"skipped_call", skipped_call},
                                                  {"late", late},
                                                  {"stopped", stopped},
                                                  {"host_is_killed", host_is_killed},
                                                  {"steady", steady},
                                                  {"survivors_stay", survivors_stay},
                                                  {"killed_in_backward", killed_in_backward},
                                                  {"killed_in_power_sgd", killed_in_power_sgd},
                                                  {"killed_in_plain_backward", killed_in_plain_backward},
                                                  {"slow_backward", slow_backward},
                                                  {"slow_plain_backward", slow_plain_backward},
                                                  {"killed_with_a_child", killed_with_a_child},
                                                  {"late_to_an_open_scope", late_to_an_open_scope},
                                                  {"copies_itself", copies_itself},
                                                  {"fails_once", fails_once},
                                                  {"disagree_in_debug_mode", disagree_in_debug_mode},
                                                  {"late_while_loading", late_while_loading},
                                                  {"late_while_reading_data", late_while_reading_data},
                                                  {"late_while_workers_read_data", late_while_workers_read_data},
                                                  {"killed_in_a_scope", killed_in_a_scope}});
}
