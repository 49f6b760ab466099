#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "support/error_text.h"
#include "support/together.h"

namespace {

using accelerate::Accelerator;
using accelerate::debug_launcher;
using accelerate::notebook_launcher;
using accelerate::WorkerError;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

/// How much of a tensor's memory belongs to this process alone, in MB.
double private_megabytes(const at::Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  std::ifstream file("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long begin = 0, end = 0, kilobytes = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) inside = begin <= address && address < end;
    if (inside && std::sscanf(line.c_str(), "Private_Dirty: %lu kB", &kilobytes) == 1)
      return static_cast<double>(kilobytes) / 1024;
  }
  return -1;
}

/// The error of a launch that must fail.
template <class Launch>
WorkerError error_of(Launch launch) {
  try {
    launch();
  } catch (const WorkerError& error) {
    return error;
  }
  return WorkerError("nothing was thrown");
}

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

TEST(NotebookLauncher, WorkersFindEachOther) {
  for (int processes = 2; processes <= 4; ++processes) {
    notebook_launcher(
        [](int expected, std::string text) {
          Accelerator accelerator({.cpu = true, .timeout = std::chrono::seconds(60)});
          require(accelerator.num_processes() == expected, "another number of processes");
          require(accelerator.local_process_index() == accelerator.process_index(), "another local index");
          require(accelerator.reduce(torch::ones({1})).item<int>() == expected, "another sum");
          require(text == "by value", "another argument");
        },
        std::tuple(processes, std::string("by value")), {.num_processes = processes});
  }
}

TEST(NotebookLauncher, AModelThatAllThreadsMadeIsSharedUntilItIsWrittenTo) {
  at::set_num_threads(2);
  torch::nn::Linear model(5000, 5000);  // 100 MB
  const float before = model->weight.abs().max().item<float>();
  notebook_launcher(
      [before](torch::nn::Linear mine) {
        require(mine->weight.abs().max().item<float>() == before, "other weights");
        const double after_reading = private_megabytes(mine->weight);
        require(after_reading >= 0 && after_reading < 10, "reading has copied the weights");
        torch::NoGradGuard no_grad;
        mine->weight.fill_(1);
        require(private_megabytes(mine->weight) > 90, "writing has not copied the weights");
      },
      std::tuple(model), {.num_processes = 2});
  EXPECT_EQ(model->weight.abs().max().item<float>(), before);
}

TEST(NotebookLauncher, WorkersOfAParentThatUsedAllThreadsTrainWithSeveral) {
  at::set_num_threads(2);
  const auto big = torch::randn({600, 600});
  big.matmul(big).exp().sum().item<float>();  // this program now has a pool of threads
  for (int threads : {1, 2, 4}) {
    debug_launcher(
        [threads](at::Tensor input) {
          at::set_num_threads(threads);
          torch::nn::Sequential net(torch::nn::Linear(600, 600), torch::nn::ReLU(), torch::nn::Linear(600, 1));
          for (int step = 0; step < 3; ++step) net->forward(input).sum().backward();
          torch::conv2d(torch::ones({4, 8, 32, 32}), torch::ones({8, 8, 3, 3})).sum().item<float>();
          require(at::get_num_threads() == threads, "another number of threads");
        },
        std::tuple(big));
  }
}

TEST(NotebookLauncher, WorkersShareTheCoresUnlessToldOtherwise) {
  debug_launcher([] { require(at::get_num_threads() == std::atoi(std::getenv("OMP_NUM_THREADS")), "not the launcher's share"); });
}

TEST(NotebookLauncher, AnExceptionReachesTheCallerWithTheRankThatThrewFirst) {
  const auto error = error_of([] {
    debug_launcher(
        [] {
          Accelerator accelerator({.timeout = std::chrono::seconds(60)});
          accelerator.wait_for_everyone();
          if (accelerator.process_index() == 1) throw std::runtime_error("boom in a worker");
          accelerator.wait_for_everyone();
        },
        {}, 3);
  });
  EXPECT_EQ(error.rank(), 1) << error.what();
  EXPECT_EQ(error.signal(), 0);
  const std::string said = error.what();
  EXPECT_TRUE(said.starts_with("Rank 1 failed after ")) << said;
  EXPECT_TRUE(said.ends_with(" s: boom in a worker")) << said;
}

TEST(NotebookLauncher, ASignalIsNamed) {
  const auto error = error_of([] { debug_launcher([] { std::raise(SIGKILL); }); });
  EXPECT_EQ(error.signal(), SIGKILL);
  EXPECT_NE(std::string(error.what()).find("was killed by SIGKILL after "), std::string::npos) << error.what();
}

TEST(NotebookLauncher, AnExitCodeIsNamed) {
  const auto error = error_of([] { debug_launcher([] { ::_exit(7); }); });
  EXPECT_NE(std::string(error.what()).find("ended with exit code 7 after "), std::string::npos) << error.what();
}

TEST(NotebookLauncher, FailedRunsAreStartedAgain) {
  notebook_launcher(
      [] {
        Accelerator accelerator({.cpu = true, .timeout = std::chrono::seconds(60)});
        accelerator.wait_for_everyone();
        if (std::string(std::getenv("TORCHELASTIC_RESTART_COUNT")) == "0") throw std::runtime_error("the first time");
      },
      {}, {.num_processes = 2, .max_restarts = 1});
}

TEST(NotebookLauncher, PrecisionAndPortReachTheWorkers) {
  const auto function = [](const char* port) {
    Accelerator accelerator({.cpu = true, .timeout = std::chrono::seconds(60)});
    require(accelerator.mixed_precision() == accelerate::Precision::bf16, "another precision");
    require(port == nullptr || std::string(std::getenv("MASTER_PORT")) == port, "another port");
  };
  notebook_launcher(function, std::tuple("29473"),
                    {.num_processes = 2, .mixed_precision = accelerate::Precision::bf16, .use_port = 29473});
  notebook_launcher(function, std::tuple((const char*)nullptr),
                    {.num_processes = 1, .mixed_precision = accelerate::Precision::bf16});
  EXPECT_EQ(std::getenv("ACCELERATE_MIXED_PRECISION"), nullptr) << "only for the time of the launch";
}

TEST(NotebookLauncher, ASingleProcessIsThisOne) {
  int calls = 0;
  notebook_launcher([&calls] { ++calls; }, {}, {.num_processes = 1});
  EXPECT_EQ(calls, 1);
  const auto error = error_of([] { notebook_launcher([] { throw std::runtime_error("boom"); }, {}, {.num_processes = 1}); });
  EXPECT_STREQ(error.what(), "Rank 0 failed: boom");
  EXPECT_EQ(error.rank(), 0);
}

TEST(NotebookLauncher, WorkersHaveTheSettingsOfTheThreadThatLaunches) {
  for (int processes : {1, 2}) {
    const torch::NoGradGuard no_grad;
    notebook_launcher([] { require(!at::GradMode::is_enabled(), "gradients are on"); }, {}, {.num_processes = processes});
  }
}

TEST(NotebookLauncher, WhatIsNoExceptionIsAnErrorToo) {
  for (int processes : {1, 2}) {
    const auto error = error_of([&] { notebook_launcher([] { throw 42; }, {}, {.num_processes = processes}); });
    EXPECT_NE(std::string(error.what()).find("unknown exception"), std::string::npos) << error.what();
  }
}

TEST(NotebookLauncher, TheNumberOfProcessesComesFromTheConfiguration) {
  TemporaryFolder folder;
  const Variable home("HF_HOME", folder.path().string());
  const std::string file = (folder.path() / "accelerate/default_config.yaml").string();
  std::filesystem::create_directory(folder.path() / "accelerate");
  const Variable use_cpu("ACCELERATE_USE_CPU", "true");
  const auto three = [] { require(Accelerator().num_processes() == 3, "another number of processes"); };
  for (const char* text : {"distributed_type: MULTI_CPU\nnum_processes: 3\nuse_cpu: true\n",
                           "{\n  \"distributed_type\": \"MULTI_CPU\",\n  \"num_processes\": 3\n}\n"}) {
    std::ofstream(file) << text;
    notebook_launcher(three);
  }
  for (const char* text : {"distributed_type: MULTI_CPU\nnum_processes: many\n",
                           "distributed_type: MULTI_CPU\nnum_processes: 0\n", "num_processes: 3\n", "{"}) {
    std::ofstream(file) << text;
    expect_parts(message_of<accelerate::ConfigError>([&] { notebook_launcher(three); }), {file});
  }
}

TEST(NotebookLauncher, WhatCannotBeLaunchedIsRefusedByName) {
  const auto nothing = [] {};
  {
    const Accelerator held({.cpu = true});  // on a GPU it would be refused for another reason, and for good
    EXPECT_THROW(notebook_launcher(nothing, {}, {.num_processes = 2}), accelerate::UsageError);
  }
  EXPECT_NO_THROW(notebook_launcher(nothing, {}, {.num_processes = 2})) << "it is no longer held";
  EXPECT_THROW(notebook_launcher(nothing, {}, {.num_processes = 0}), accelerate::UsageError);
  EXPECT_THROW(notebook_launcher(nothing, {}, {.num_processes = 2, .node_rank = 1}), accelerate::UsageError);
  EXPECT_THROW(notebook_launcher(nothing, {}, {.num_processes = 2, .num_nodes = 0}), accelerate::UsageError);
  EXPECT_THROW(notebook_launcher(nothing, {}, {.num_processes = 2, .use_port = 70000}), accelerate::UsageError);
}

TEST(NotebookLauncher, SeveralNodesMeet) {
  // Two nodes on this machine, each with a launcher of its own; the second one is started by a worker of the first launcher's
  // kind.
  const auto function = [] {
    Accelerator accelerator({.cpu = true, .timeout = std::chrono::seconds(60)});
    require(accelerator.num_processes() == 4, "another number of processes");
    require(accelerator.local_process_index() == accelerator.process_index() % 2, "another local index");
    require(accelerator.reduce(torch::ones({1})).item<int>() == 4, "another sum");
  };
  const Variable interface("GLOO_SOCKET_IFNAME", "lo");
  const auto launch_node = [&](int node) {
    notebook_launcher(function, {}, {.num_processes = 2, .use_port = 29475, .node_rank = node, .num_nodes = 2});
  };
  std::exception_ptr problem;
  std::thread second([&] {
    try {
      launch_node(1);
    } catch (...) {
      problem = std::current_exception();
    }
  });
  EXPECT_NO_THROW(launch_node(0));
  second.join();
  EXPECT_EQ(problem, nullptr);
}

}  // namespace
