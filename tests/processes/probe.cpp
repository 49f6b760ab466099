// A program for tests that need whole processes: does what its first argument says and tells how it went.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <thread>

namespace {

using accelerate::Accelerator;

/// Lines of several processes share a pipe: each goes out in one piece.
void say(const std::string& text) { std::cout << text + "\n" << std::flush; }

std::string who(const Accelerator& accelerator) {
  return std::to_string(accelerator.process_index()) + " of " + std::to_string(accelerator.num_processes());
}

int state() {
  Accelerator accelerator({.timeout = std::chrono::seconds(20)});
  say(to_string(accelerator));
  return 0;
}

int sum() {
  Accelerator accelerator({.timeout = std::chrono::seconds(20)});
  const auto total = accelerator.reduce(torch::tensor({accelerator.process_index() + 1})).item<int64_t>();
  say("rank " + who(accelerator) + " local " + std::to_string(accelerator.local_process_index()) + " sum " +
      std::to_string(total));
  return 0;
}

/// The last process goes without a word; the others tell what they hear of it, twice.
int lose_a_peer() {
  Accelerator accelerator({.timeout = std::chrono::seconds(20)});
  accelerator.wait_for_everyone();
  if (accelerator.is_last_process()) std::raise(SIGKILL);
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      accelerator.gather(torch::ones({2}));
    } catch (const accelerate::DistributedError& error) {
      say("rank " + who(accelerator) + ": " + error.what());
    }
  }
  return 0;
}

/// Rank 0 ends first while another still waits on a key in the store that process 0 serves.
int main_leaves_first() {
  Accelerator accelerator({.timeout = std::chrono::seconds(20)});
  {
    auto first = accelerator.main_process_first();
    if (accelerator.is_main_process()) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  if (!accelerator.is_main_process()) std::this_thread::sleep_for(std::chrono::milliseconds(200) * accelerator.process_index());
  auto again = accelerator.main_process_first();
  say("rank " + who(accelerator) + " left");
  return 0;
}

int nobody_comes() {
  try {
    Accelerator accelerator({.timeout = std::chrono::milliseconds(700)});
  } catch (const accelerate::Error& error) {
    say(error.what());
    return 3;
  }
  return 0;
}

/// In the folder that the test's processes share.
std::string shared_file(const std::string& name) { return std::string(std::getenv("ACCELERATE_TEST_FOLDER")) + "/" + name; }

void leave_file(const std::string& name) { std::ofstream(shared_file(name)) << "here"; }

void wait_for_file(const std::string& name) {
  while (!std::filesystem::exists(shared_file(name))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

int a_peer_never_calls() {
  Accelerator accelerator({.timeout = std::chrono::seconds(5)});  // in which a loaded machine starts two processes, too
  if (accelerator.is_main_process()) {
    try {
      accelerator.wait_for_everyone();
    } catch (const accelerate::DistributedError& error) {
      say(error.what());
    }
    leave_file("told");
  } else {
    wait_for_file("told");
  }
  return 0;
}

/// In debug mode: calls that do not fit each other are told before they run, and the group stays usable.
int disagree() {
  Accelerator accelerator({.timeout = std::chrono::seconds(20)});
  const int more = accelerator.process_index();
  const auto tell = [&](auto call) {
    try {
      call();
      say("nothing was thrown");
    } catch (const accelerate::DistributedError& error) {
      if (accelerator.is_main_process()) say(error.what());
    }
  };
  tell([&] { accelerator.gather(torch::ones({3 + more, 2})); });
  tell([&] { accelerator.reduce(torch::ones({2}, more ? torch::kFloat : torch::kDouble)); });
  tell([&] { accelerator.broadcast(std::vector{torch::ones({1}), torch::ones({1 + more})}); });
  tell([&] { more ? accelerator.gather(torch::ones({2})) : accelerator.reduce(torch::ones({2})); });
  tell([&] { accelerator.pad_across_processes(more ? torch::ones({2}) : torch::ones({2, 3}), {.dim = 1}); });
  tell([&] { accelerator.gather(more ? torch::Tensor() : torch::ones({2})); });
  say("sum " + std::to_string(accelerator.reduce(torch::ones({1})).item<int>()));
  return 0;
}

int main_throws() {
  try {
    Accelerator accelerator({.timeout = std::chrono::seconds(20)});
    if (accelerator.is_main_process()) throw std::runtime_error("on purpose");
    std::this_thread::sleep_for(std::chrono::seconds(2));
  } catch (const std::runtime_error&) {
    say("thrown");
  }
  return 0;
}

/// Rank 1 fails by itself and takes its time to end. The others lose it, catch the error and return a code at once.
int the_cause_ends_last() {
  try {
    Accelerator accelerator({.timeout = std::chrono::seconds(20)});
    accelerator.wait_for_everyone();
    if (accelerator.process_index() == 1) throw std::runtime_error("disk full");
    accelerator.gather(torch::ones({2}));
  } catch (const accelerate::DistributedError&) {
    return 1;
  } catch (const std::runtime_error& error) {
    say(error.what());
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    return 7;
  }
  return 0;
}

/// The first process of machine 0 keeps its scope until all of machine 1 have left theirs: machine 1 must not care.
int per_machine() {
  Accelerator accelerator({.timeout = std::chrono::seconds(20)});
  const std::string machine = std::getenv("GROUP_RANK");
  {
    auto first = accelerator.local_main_process_first();
    if (machine == "0" && accelerator.is_local_main_process()) wait_for_file("1.1");
    if (!accelerator.is_local_main_process() && std::filesystem::exists(shared_file(machine + ".0")))
      say("after its first process");
    leave_file(machine + "." + std::to_string(accelerator.local_process_index()));
  }
  accelerator.print("printed on machine {}", machine);
  accelerator.wait_for_everyone();
  return 0;
}

int in_order() {
  Accelerator accelerator({.timeout = std::chrono::seconds(20)});
  const auto logger = accelerator.get_logger("turns");
  for (int round = 0; round < 20; ++round) logger.info({.in_order = true}, "round {}", round);
  return 0;
}

/// Ranks as threads of one process.
int threads() {
  constexpr int kRanks = 3;
  std::vector<std::thread> ranks;
  std::atomic<int> right = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([rank, &right] {
      const std::map<std::string, std::string> table = {{"RANK", std::to_string(rank)},
                                                        {"WORLD_SIZE", std::to_string(kRanks)},
                                                        {"LOCAL_RANK", std::to_string(rank)},
                                                        {"LOCAL_WORLD_SIZE", std::to_string(kRanks)},
                                                        {"MASTER_PORT", std::getenv("MASTER_PORT")}};
      const accelerate::Environment environment = [table](const std::string& name) {
        const auto found = table.find(name);
        return found == table.end() ? std::nullopt : std::optional(found->second);
      };
      for (int round = 0; round < 3; ++round) {
        const accelerate::ProcessState me({.cpu = true, .timeout = std::chrono::seconds(20), .environment = environment});
        right += accelerate::reduce(me, torch::tensor({rank}), accelerate::Reduction::sum).item<int>() == 3;
        const auto names = accelerate::gather_object(me, std::vector{"rank " + std::to_string(rank)});
        right += names == std::vector<std::string>{"rank 0", "rank 1", "rank 2"};
        auto first = me.main_process_first();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  say("right " + std::to_string(right));
  return 0;
}

/// The second half of the example `launcher`.
int notebook_exception() {
  try {
    accelerate::notebook_launcher([] { throw std::runtime_error("boom in a worker"); }, {}, {.num_processes = 2});
  } catch (const accelerate::WorkerError& error) {
    std::cout << "a worker failed: " << error.what() << "\n";
    return 0;
  }
  return 1;
}

/// A function on a GPU, started by a program that has not touched it; then one that is refused because it has.
int notebook_on_gpu() {
  accelerate::notebook_launcher(
      [] {
        Accelerator accelerator({.timeout = std::chrono::seconds(60)});
        const auto device = torch::Device(torch::kCUDA, 0);  // two processes may share one
        say("sum " + std::to_string(torch::ones({4}, device).sum().item<int>()) + " of " + who(accelerator));
      },
      {}, {.num_processes = 2});
  say("here " + std::to_string(torch::ones({4}, torch::kCUDA).sum().item<int>()));
  try {
    accelerate::notebook_launcher([] {}, {}, {.num_processes = 2});
  } catch (const accelerate::UsageError& error) {
    say(error.what());
  }
  return 0;
}

int main_with(const std::string& what) {
  static const std::map<std::string, int (*)()> kWishes = {{"state", state},
                                                           {"sum", sum},
                                                           {"lose_a_peer", lose_a_peer},
                                                           {"main_leaves_first", main_leaves_first},
                                                           {"nobody_comes", nobody_comes},
                                                           {"a_peer_never_calls", a_peer_never_calls},
                                                           {"disagree", disagree},
                                                           {"main_throws", main_throws},
                                                           {"the_cause_ends_last", the_cause_ends_last},
                                                           {"in_order", in_order},
                                                           {"per_machine", per_machine},
                                                           {"notebook_exception", notebook_exception},
                                                           {"notebook_on_gpu", notebook_on_gpu},
                                                           {"threads", threads}};
  try {
    return kWishes.at(what)();
  } catch (const accelerate::Error& error) {
    say(error.what());
    return 3;
  }
}

}  // namespace

int main(int, char** argv) { return main_with(argv[1]); }
