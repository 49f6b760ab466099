#include <torch/torch.h>

#include <csignal>

#include "scenes.h"

namespace {

using accelerate::Accelerator;
using accelerate::testing::leave_file;
using accelerate::testing::patient;
using accelerate::testing::say;
using accelerate::testing::tell;
using accelerate::testing::wait_for_file;
using namespace std::chrono_literals;

/// The last rank dies while the first waits for a tensor from it.
void killed_before_a_send() {
  auto accelerator = patient();
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) {
    leave_file("waits");
    tell(accelerator, [&] { accelerator.recv(accelerator.num_processes() - 1); });
  }
  if (!accelerator.is_last_process()) return wait_for_file("all have heard");
  wait_for_file("waits");
  std::this_thread::sleep_for(200ms);
  std::raise(SIGKILL);
}

/// Ranks 1 and 2 are a group. The last of them dies there, and rank 0 does not mind.
void killed_in_a_group() {
  auto accelerator = patient();
  const auto group = accelerator.state().split_group(accelerator.is_main_process() ? 0 : 1);
  if (accelerator.is_last_process()) std::raise(SIGKILL);
  tell(accelerator, [&] { accelerate::reduce(group, torch::ones({2})); });
  wait_for_file("all have heard");
}

/// Rank 2 is missing in the group of ranks 1 and 2: it waits for rank 0 to send, which is a straggler.
void late_in_a_group() {
  auto accelerator = patient();
  const auto group = accelerator.state().split_group(accelerator.is_main_process() ? 0 : 1);
  if (accelerator.is_main_process()) {
    wait_for_file("warned");
    accelerator.send(torch::ones({1}), 2);
  }
  if (accelerator.is_last_process()) accelerator.recv(0);
  if (!accelerator.is_main_process()) accelerate::reduce(group, torch::ones({2}));
  accelerator.wait_for_everyone();
  say("process " + std::to_string(accelerator.process_index()) + " went on");
}

/// Each of two ranks waits for the other one in another group.
void groups_deadlock() {
  auto accelerator = patient();
  const auto first = accelerator.state().split_group(0), second = accelerator.state().split_group(0);
  if (accelerator.is_main_process()) {
    accelerate::reduce(first, torch::ones({2}));
  } else {
    accelerate::reduce(second, torch::ones({2}));
  }
}

/// Rank 0 gives a tensor to nobody.
void nobody_receives() {
  Accelerator accelerator({.timeout = 1s});
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) tell(accelerator, [&] { accelerator.send(torch::ones({2}), 1); });
  if (accelerator.is_main_process()) leave_file("all have heard");
  wait_for_file("all have heard");
}

/// The last rank dies before it has taken part in connecting a group.
void killed_in_a_split() {
  auto accelerator = patient();
  if (accelerator.is_last_process()) std::raise(SIGKILL);
  tell(accelerator, [&] { accelerator.state().split_group(0); });
}

}  // namespace

std::map<std::string, void (*)()> accelerate::testing::group_scenes() {
  return {{"killed_before_a_send", killed_before_a_send}, {"killed_in_a_group", killed_in_a_group},
          {"killed_in_a_split", killed_in_a_split},       {"late_in_a_group", late_in_a_group},
          {"groups_deadlock", groups_deadlock},           {"nobody_receives", nobody_receives}};
}
