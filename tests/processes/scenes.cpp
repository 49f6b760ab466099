// What goes wrong between processes, each scene by name. The survivors print what they are told.
#include <accelerate/accelerate.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include "scenes.h"
#include "support/written_bytes.h"

namespace {

using accelerate::Accelerator;
using namespace std::chrono_literals;

using accelerate::testing::folder;
using accelerate::testing::leave_file;
using accelerate::testing::patient;
using accelerate::testing::say;
using accelerate::testing::tell;
using accelerate::testing::wait_for_file;

void guided_backward(const Accelerator& accelerator, const torch::Tensor& loss) {
  accelerate::detail::run_backward(accelerator.state(), std::source_location::current(), [&] { loss.backward(); });
}
void plain_backward(const Accelerator&, const torch::Tensor& loss) { loss.backward(); }
using Backward = void (*)(const Accelerator&, const torch::Tensor&);

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

/// The last rank dies when it has sent a part of its data.
void killed_in_a_reduce_scatter() {
  auto accelerator = patient();
  const auto data = torch::ones({accelerator.num_processes() * (int64_t{1} << 24)});
  accelerator.wait_for_everyone();
  std::thread killer;
  if (accelerator.is_last_process()) {
    killer = std::thread([before = accelerate::testing::written_bytes()] {
      while (accelerate::testing::written_bytes() < before + (1 << 20)) continue;
      std::raise(SIGKILL);
    });
  }
  tell(accelerator, [&] { accelerator.reduce_scatter(data); });
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

/// What all ranks but the last call, and what that one calls instead.
struct Difference {
  const char* name;
  std::function<void(const Accelerator&)> call, other;
  /// Who sends need not wait for those that receive, and returns what it had.
  bool one_sided = false;
};

template <class Nested>
std::function<void(const Accelerator&)> gathers(Nested data) {
  return [data](const Accelerator& accelerator) { accelerator.gather(data); };
}

std::function<void(const Accelerator&)> reduces(const torch::Tensor& tensor, accelerate::Reduction reduction) {
  return [=](const Accelerator& accelerator) { accelerator.reduce(tensor, reduction); };
}

std::function<void(const Accelerator&)> broadcasts(const torch::Tensor& tensor, bool from_last = false) {
  return [=](const Accelerator& accelerator) { accelerator.broadcast(tensor, from_last ? accelerator.num_processes() - 1 : 0); };
}

void meets(const Accelerator& accelerator) { accelerator.wait_for_everyone(); }

std::vector<Difference> differences() {
  using accelerate::Reduction;
  const auto ints = torch::ones({2}, torch::kInt), pair = torch::ones({2}), wide = torch::ones({3, 2});
  const auto gathers_objects = [](const Accelerator& accelerator) { accelerator.gather_object(std::vector{1}); };
  const auto pads = [&](int64_t dim) {
    return [wide, dim](const Accelerator& accelerator) { accelerator.pad_across_processes(wide, {.dim = dim}); };
  };
  using Named = std::map<std::string, torch::Tensor>;
  using Several = std::vector<torch::Tensor>;
  const auto reduces_named = [pair](const char* name) {
    return [=](const Accelerator& accelerator) { accelerator.reduce(Named{{"a", pair}, {name, pair}}, Reduction::sum); };
  };
  const auto pads_named = [pair](const char* name) {
    return [=](const Accelerator& accelerator) { accelerator.pad_across_processes(Named{{name, pair}}); };
  };
  const auto is_first = [](const Accelerator& accelerator) { auto first = accelerator.main_process_first(); };
  return {{"call", gathers(pair), meets},
          {"shape", gathers(wide), gathers(torch::ones({4, 2}))},
          {"order of dimensions", gathers(wide), gathers(torch::ones({2, 3}))},
          {"dtype of another width", gathers(pair), gathers(pair.to(torch::kDouble))},
          {"dtype of the same width", reduces(pair, Reduction::sum), reduces(ints, Reduction::sum)},
          {"operation", reduces(pair, Reduction::sum), reduces(pair, Reduction::max)},
          {"mean", reduces(pair, Reduction::mean), reduces(pair, Reduction::sum)},
          {"empty", gathers(torch::ones({0, 2})), gathers(wide)},
          {"objects", gathers_objects, gathers(pair)},
          {"dimension", pads(0), pads(1)},
          {"names", gathers(Named{{"a", pair}, {"b", pair}}), gathers(Named{{"a", pair}, {"c", pair}})},
          {"names of what is reduced", reduces_named("b"), reduces_named("c")},
          {"names of what is padded", pads_named("a"), pads_named("b")},
          {"number of tensors", gathers(Several{pair, pair}), gathers(Several{pair, pair, pair})},
          {"root", broadcasts(pair), broadcasts(pair, true), true},
          {"shape of a broadcast", broadcasts(wide), broadcasts(torch::ones({5, 2})), true},
          {"scope", is_first, meets, true}};
}

/// Prints what this rank was told. `late`: it comes 100 ms after the others.
void differ(const Difference& difference, bool late) {
  const auto accelerator = patient();
  accelerator.wait_for_everyone();
  if (late) std::this_thread::sleep_for(100ms);
  const auto began = std::chrono::steady_clock::now();
  const std::string who = std::string(difference.name) + " on rank " + std::to_string(accelerator.process_index());
  bool returned = false;
  try {
    (accelerator.is_last_process() ? difference.other : difference.call)(accelerator);
    returned = true;
    accelerator.wait_for_everyone();
    say(who + " heard nothing");
  } catch (const accelerate::DistributedError& error) {
    say(who + (returned && !difference.one_sided ? " returned, and heard: " : " heard: ") + error.what());
  }
  if (std::chrono::steady_clock::now() - began > 10s) say(who + " heard it late");
}

/// Each difference on its own group, with no rank, the first rank and the last rank delayed: two ranks go through
/// all of that.
void calls_differ() {
  const int rank = std::atoi(std::getenv("RANK")), last = std::atoi(std::getenv("WORLD_SIZE")) - 1;
  int late = -1;
  for (const auto& difference : differences()) {
    for (int round = 0; round < (last == 1 ? 3 : 1); ++round) {
      differ(difference, rank == late);
      late = late < 0 ? 0 : late == 0 ? last : -1;
    }
  }
}

void shapes_differ_twenty_times() {
  for (int round = 0; round < 20; ++round) differ(differences().at(1), false);
}

/// Rank 0 reduces its loss and the others do not: the most common mistake of all.
void reduce_instead_of_backward() {
  for (const bool late : {false, true}) {
    for (const bool guided : {false, true}) {
      auto accelerator = patient();
      torch::nn::Linear net(4, 2);
      auto model = accelerator.prepare(net);
      const bool reduces = accelerator.is_main_process();
      auto loss = model(torch::ones({3, 4})).sum();
      if (late == reduces) std::this_thread::sleep_for(100ms);
      // As many elements as the gradients have: the backend would take the one for the other.
      tell(accelerator, [&] {
        if (reduces) {
          accelerator.reduce(torch::ones({10}));
        } else {
          guided ? guided_backward(accelerator, loss) : plain_backward(accelerator, loss);
        }
      });
    }
  }
}

/// Between hosts it takes a second or two each time until all have the same diagnosis.
void few_calls_differ() {
  for (const auto& difference : differences()) {
    for (const char* name : {"call", "shape"}) {
      if (difference.name == std::string_view(name)) differ(difference, false);
    }
  }
}

/// The first process passes more scopes than anybody remembers before the last one comes, which is mistaken in call 5.
void runs_far_ahead() {
  auto accelerator = patient();
  if (accelerator.is_last_process()) wait_for_file("warned");
  tell(accelerator, [&] {
    for (int i = 1; i <= 3000; ++i) {
      if (i == 5 && accelerator.is_last_process()) accelerator.wait_for_everyone();
      auto first = accelerator.main_process_first();
    }
  });
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

/// The last process is a straggler; the others warn, and continue.
void late() {
  auto accelerator = patient();
  if (accelerator.is_last_process()) wait_for_file("warned");
  accelerator.gather(torch::ones({2}));
  say("process " + std::to_string(accelerator.process_index()) + " went on");
}

/// Files are read as from a disk that hangs.
bool disk_hangs = false;

}  // namespace

// Replaces the C library's.
extern "C" ssize_t pread(int file, void* bytes, size_t size, off_t offset) {
  if (disk_hangs) wait_for_file("warned");
  return ::syscall(SYS_pread64, file, bytes, size, offset);
}

namespace {

void late_while_loading() {
  auto accelerator = patient();
  if (accelerator.is_last_process()) {
    const std::string file = folder + "/slow.safetensors";
    accelerate::save_file({{"weight", torch::ones({2})}}, file);
    disk_hangs = true;
    accelerate::load_file(file);
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

/// The calls differ, and debug mode tells before anything is sent.
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

/// Rank 1 dies in the middle of its second backward pass. The survivors hear of it and stay.
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
  std::map<std::string, void (*)()> scenes = {{"killed_in_a_barrier", killed_in_a_barrier},
                                              {"killed_in_a_reduce_scatter", killed_in_a_reduce_scatter},
                                              {"returns_early", returns_early},
                                              {"throws_early", throws_early},
                                              {"calls_differ", calls_differ},
                                              {"shapes_differ_twenty_times", shapes_differ_twenty_times},
                                              {"reduce_instead_of_backward", reduce_instead_of_backward},
                                              {"few_calls_differ", few_calls_differ},
                                              {"runs_far_ahead", runs_far_ahead},
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
                                              {"killed_in_a_scope", killed_in_a_scope}};
  scenes.merge(accelerate::testing::group_scenes());
  scenes.merge(accelerate::testing::sharded_scenes());
  scenes.merge(accelerate::testing::sharding_scenes());
  return accelerate::testing::run_scene(argv[1], scenes);
}
