// Signals at random moments, to a launcher, a rank or all of them: nothing is left, nothing hangs, the right rank is named.
// Small and seeded here; `make soak` plays 500.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "support/held_port.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace {

using accelerate::testing::HeldPort;
using accelerate::testing::RunningProgram;
using accelerate::testing::RunOptions;
using accelerate::testing::TemporaryFolder;
using accelerate::testing::wait_until;

int number_from(const char* variable, int fallback) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : fallback;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Processes that inherited `mark` in their environment and run.
std::set<int> marked_processes(const std::string& mark) {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const bool ended = text_of(entry.path() / "stat").find(") Z ") != std::string::npos;
    if (!ended && text_of(entry.path() / "environ").find(mark) != std::string::npos) found.insert(std::stoi(name));
  }
  return found;
}

enum class Target { launcher, rank, ranks, all };

struct Event {
  int signal = 0;
  Target target = Target::launcher;
  int processes = 2;
  int rank = 0;
  int delay_ms = 0;
};

std::string describe(const Event& event, unsigned seed) {
  const char* targets[] = {"the launcher", "a rank", "all ranks", "all"};
  return "seed " + std::to_string(seed) + ": signal " + std::to_string(event.signal) + " to " +
         targets[static_cast<int>(event.target)] + " (" + std::to_string(event.rank) + " of " + std::to_string(event.processes) +
         ") after " + std::to_string(event.delay_ms) + " ms";
}

Event random_event(unsigned seed) {
  std::mt19937 random(seed);
  const auto one_of = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  const int signals[] = {SIGKILL, SIGSTOP, SIGTERM};
  Event event;
  event.signal = signals[one_of(3)];
  event.target = static_cast<Target>(one_of(4));
  event.processes = 2 + one_of(3);
  event.rank = one_of(event.processes);
  event.delay_ms = one_of(300);
  return event;
}

/// One launch that something happens to.
class Happening {
 public:
  Happening(const Event& event, unsigned seed)
      : event_(event), mark_("ACCELERATE_TEST_MARK=" + std::to_string(::getpid()) + "." + std::to_string(seed)) {
    RunOptions options{.environment = {{"OMP_NUM_THREADS", "1"}}, .limit = std::chrono::seconds(120)};
    options.environment["ACCELERATE_TEST_MARK"] = mark_.substr(mark_.find('=') + 1);
    launcher_ = std::make_unique<RunningProgram>(
        std::vector<std::string>{ACCELERATE_CLI, "launch", "--cpu", "--main_process_port", "0", "--grace_period", "5",
                                 "--num_processes", std::to_string(event.processes), ACCELERATE_SCENES, "steady", folder_.name()},
        options);
  }
  ~Happening() {
    launcher_.reset();
    for (int left : marked_processes(mark_)) ::kill(left, SIGKILL);
  }

  void play(std::chrono::seconds stop) {
    find_ranks();
    std::this_thread::sleep_for(std::chrono::milliseconds(event_.delay_ms));
    send(event_.signal);
    if (event_.signal == SIGSTOP) {
      std::this_thread::sleep_for(stop);
      send(SIGCONT);
    }
    if (event_.signal == SIGSTOP) std::ofstream(folder_ / "end") << "now";
    check();
  }

 private:
  void find_ranks() {
    ranks_.resize(static_cast<size_t>(event_.processes));
    const std::regex line("rank ([0-9]+) is process ([0-9]+)\n");
    wait_until(
        "all ranks",
        [&] {
          const std::string output = launcher_->output();
          size_t found = 0;
          for (std::sregex_iterator match(output.begin(), output.end(), line), end; match != end; ++match, ++found) {
            ranks_.at(std::stoul((*match)[1])) = std::stoi((*match)[2]);
          }
          return found == ranks_.size();
        },
        std::chrono::seconds(120));
  }

  void send(int signal) {
    const bool to_ranks = event_.target == Target::ranks || event_.target == Target::all;
    if (event_.target == Target::launcher || event_.target == Target::all) launcher_->signal(signal);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (to_ranks || (event_.target == Target::rank && static_cast<int>(rank) == event_.rank)) ::kill(ranks_[rank], signal);
    }
  }

  void check() {
    const auto result = launcher_->wait();
    const int ended_by = event_.signal == SIGSTOP ? 0 : 128 + event_.signal;
    EXPECT_EQ(result.exit_code, ended_by) << result.output << result.errors;
    EXPECT_LT(result.seconds, 110);
    if (event_.target == Target::rank && event_.signal != SIGSTOP) {
      const std::string blamed = "rank " + std::to_string(event_.rank) + " was killed by SIG" + ::sigabbrev_np(event_.signal);
      EXPECT_EQ(RunningProgram::occurrences(result.errors, blamed), 1) << result.errors;
      EXPECT_EQ(RunningProgram::occurrences(result.errors, "accelerate launch: rank "), 1) << result.errors;
    }
    // A launcher that was killed outright leaves the rest to the kernel and its watchdog, which need a moment.
    const bool killed = result.exit_code == 128 + SIGKILL && event_.target != Target::rank && event_.target != Target::ranks;
    if (killed) wait_until("the end of all that was started", [&] { return marked_processes(mark_).empty(); });
    const auto left = marked_processes(mark_);
    EXPECT_TRUE(left.empty()) << left.size() << " left, the first is " << *left.begin();
  }

  Event event_;
  std::string mark_;
  TemporaryFolder folder_;
  std::unique_ptr<RunningProgram> launcher_;
  std::vector<int> ranks_;
};

TEST(Events, SignalsAtRandomMomentsLeaveNothingAndNameTheRightRank) {
  const unsigned events = static_cast<unsigned>(number_from("ACCELERATE_TEST_EVENTS", 12));
  const std::chrono::seconds stop(number_from("ACCELERATE_TEST_STOP_SECONDS", 1));
  std::atomic<unsigned> next = 0;
  std::vector<std::thread> players;
  for (int i = 0; i < 3; ++i) {
    players.emplace_back([&] {
      for (unsigned seed = next++; seed < events; seed = next++) {
        const Event event = random_event(seed);
        SCOPED_TRACE(describe(event, seed));
        try {
          Happening(event, seed).play(stop);
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      }
    });
  }
  for (auto& player : players) player.join();
}

TEST(Events, ManyWorkersStartMeetAndEnd) {
  const int workers = number_from("ACCELERATE_TEST_WORKERS", 8);
  const auto result = accelerate::testing::run_program(
      {ACCELERATE_CLI, "launch", "--cpu", "--main_process_port", "0", "--num_cpu_threads_per_process", "1", "--num_processes",
       std::to_string(workers), ACCELERATE_PROBE, "sum"},
      {.limit = std::chrono::seconds(300)});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.output, " sum " + std::to_string(workers * (workers + 1) / 2) + "\n"), workers)
      << result.output << result.errors;
}

TEST(Events, MachinesThatRestartMeetAgain) {
  const TemporaryFolder folder;
  const HeldPort port;
  std::vector<std::unique_ptr<RunningProgram>> machines;
  for (const char* machine : {"0", "1"}) {
    machines.push_back(std::make_unique<RunningProgram>(
        std::vector<std::string>{ACCELERATE_CLI, "launch", "--cpu", "--num_machines", "2", "--machine_rank", machine,
                                 "--main_process_ip", "127.0.0.1", "--main_process_port", port.text(), "--num_processes", "4",
                                 "--max_restarts", "1", ACCELERATE_SCENES, "fails_once", folder.name()},
        RunOptions{.environment = {{"GLOO_SOCKET_IFNAME", "lo"}, {"OMP_NUM_THREADS", "1"}}}));
  }
  std::string output;
  for (auto& machine : machines) {
    const auto result = machine->wait();
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    EXPECT_EQ(RunningProgram::occurrences(result.errors, "attempt 2 of 2"), 1) << result.errors;
    output += result.output;
  }
  EXPECT_EQ(RunningProgram::occurrences(output, " of 4 met\n"), 4) << output;
}

}  // namespace
