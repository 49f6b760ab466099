#include <torch/torch.h>

#include <csignal>
#include <fstream>
#include <map>

#include "support/error_text.h"
#include "support/together.h"

namespace {

using accelerate::testing::message_of;

class TogetherExecution : public Together {};

TEST_F(TogetherExecution, EveryProcessKnowsItsPlace) {
  const auto ranks = accelerator().gather_object(std::vector{rank()});
  std::vector<int> expected(static_cast<size_t>(world()));
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(ranks, expected);
  EXPECT_EQ(accelerator().is_main_process(), rank() == 0);
  EXPECT_EQ(accelerator().is_last_process(), rank() == world() - 1);
  EXPECT_EQ(accelerator().local_process_index(), rank());
  EXPECT_EQ(accelerator().use_distributed(), world() > 1);
  EXPECT_EQ(accelerator().distributed_type(),
            world() > 1 ? accelerate::DistributedType::multi_cpu : accelerate::DistributedType::no);
}

TEST_F(TogetherExecution, WrappedFunctionsRunWhereTheySay) {
  const auto count = [&](auto wrapped) {
    const auto ran = accelerator().reduce(torch::tensor({wrapped().has_value() ? 1 : 0}));
    return ran.template item<int>();
  };
  const auto yes = [] { return 1; };
  EXPECT_EQ(count(accelerator().on_main_process(yes)), 1);
  EXPECT_EQ(count(accelerator().on_local_main_process(yes)), 1);
  EXPECT_EQ(count(accelerator().on_last_process(yes)), 1);
  for (int r = 0; r < world(); ++r) {
    const auto result = accelerator().on_process(r, yes)();
    EXPECT_EQ(result.has_value(), r == rank());
    EXPECT_EQ(accelerator().on_local_process(r, yes)().has_value(), r == rank());
  }
  EXPECT_EQ(accelerator().on_process(world(), yes)().has_value(), world() == 1) << "a single process runs them all, as in Python";
  EXPECT_THROW(accelerator().on_process(-1, yes), accelerate::UsageError);
}

TEST_F(TogetherExecution, WrappersTakeArgumentsKeepStateAndMayReturnReferences) {
  int calls = 0;
  auto add = accelerator().on_process(rank(), [&calls](int a, const std::string& text) {
    ++calls;
    return text + std::to_string(a);
  });
  EXPECT_EQ(add(1, "x"), std::optional<std::string>("x1"));
  EXPECT_EQ(add(2, "y"), std::optional<std::string>("y2"));
  EXPECT_EQ(calls, 2);
  auto pointer = accelerator().on_process(rank(), [kept = std::make_unique<int>(7)]() -> const int& { return *kept; });
  EXPECT_EQ(pointer(), std::optional<int>(7));
}

TEST_F(TogetherExecution, TheOthersEnterWhenTheMainProcessHasLeft) {
  TemporaryFolder folder;
  std::vector<std::string> shared = {folder.path().string()};
  accelerator().broadcast_object_list(shared);
  const std::filesystem::path file = std::filesystem::path(shared[0]) / "first";
  for (const bool local : {false, true}) {
    {
      auto first = local ? accelerator().local_main_process_first() : accelerator().main_process_first();
      EXPECT_EQ(std::filesystem::exists(file), !accelerator().is_main_process());
      if (accelerator().is_main_process()) std::ofstream(file) << "done";
    }
    accelerator().wait_for_everyone();
    if (accelerator().is_main_process()) std::filesystem::remove(file);
    accelerator().wait_for_everyone();
  }
}

TEST_F(TogetherExecution, AnExceptionThatLeavesTheScopeLetsTheOthersIn) {
  bool entered = false;
  try {
    auto first = accelerator().main_process_first();
    entered = true;
    if (accelerator().is_main_process()) throw std::runtime_error("leaving");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(entered);
  EXPECT_EQ(accelerator().reduce(torch::ones({1})).item<int>(), world());
}

TEST_F(TogetherExecution, ATriggerPulledByOneIsSeenByAllOnce) {
  EXPECT_FALSE(accelerator().check_trigger());
  for (int puller = 0; puller < world(); ++puller) {
    if (rank() == puller) accelerator().set_trigger();
    EXPECT_TRUE(accelerator().check_trigger());
    EXPECT_FALSE(accelerator().check_trigger());
  }
}

TEST_F(TogetherExecution, PrintFormatsAndRefusesABadPattern) {
  if (!accelerator().is_local_main_process()) return;
  ::testing::internal::CaptureStdout();
  accelerator().print("epoch {} loss {:.3f} {} {}", 3, 0.12345, accelerate::Precision::bf16, "text");
  accelerator().print("as it is: {}");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "epoch 3 loss 0.123 bf16 text\nas it is: {}\n");
  EXPECT_THROW(accelerator().print(accelerate::runtime_format("{} {}"), 1), accelerate::UsageError);
}

TEST_F(TogetherExecution, APeersDeathCannotEndThisProcessBySigpipe) {
  accelerator().wait_for_everyone();
  constexpr unsigned long long kPipe = 1ull << (SIGPIPE - 1);
  int gloo_threads = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name, line;
    std::ifstream(task.path() / "comm") >> name;
    if (name != "pt_gloo_runloop") continue;
    ++gloo_threads;
    std::ifstream status(task.path() / "status");
    while (std::getline(status, line) && !line.starts_with("SigBlk:")) continue;
    EXPECT_TRUE(std::stoull(line.substr(7), nullptr, 16) & kPipe) << line;
  }
  EXPECT_EQ(gloo_threads > 0, world() > 1);
  sigset_t mine;
  pthread_sigmask(SIG_BLOCK, nullptr, &mine);
  EXPECT_FALSE(sigismember(&mine, SIGPIPE)) << "the program's own threads keep what they had";
}

class TogetherPrepare : public Together {};

TEST_F(TogetherPrepare, EveryProcessHasTheMainProcessesParametersAndBuffers) {
  torch::manual_seed(static_cast<uint64_t>(rank()));
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  {
    torch::NoGradGuard no_grad;
    net->named_buffers()["1.running_mean"].fill_(rank());
  }
  auto model = accelerator().prepare(net);
  for (const auto& [name, tensor] : accelerate::state_dict(*accelerator().unwrap_model(model))) {
    const auto all = accelerator().gather(tensor.reshape({1, -1}));
    EXPECT_TRUE(torch::equal(all, all.slice(0, 0, 1).expand_as(all))) << name;
  }
  EXPECT_EQ(net->named_buffers()["1.running_mean"].sum().item<double>(), 0) << "the module itself was changed, not a copy";
  EXPECT_TRUE(net->named_parameters()["0.weight"].requires_grad());
}

TEST_F(TogetherPrepare, KindsOfParallelismThatAreNotSupportedAreRefusedByName) {
  const auto refusal_with = [](const std::map<std::string, std::string>& variables) -> std::string {
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    const auto heard = message_of<accelerate::ConfigError>([] { const accelerate::Accelerator refused({.cpu = true}); });
    for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
    return heard;
  };
  EXPECT_EQ(refusal_with({{"ACCELERATE_USE_MEGATRON_LM", "yes"}}).find("ACCELERATE_USE_MEGATRON_LM=yes asks for"), 0U);
  for (const auto* kind : {"DP_SHARD", "TP", "CP", "SP"}) {
    const std::string variable = std::string("PARALLELISM_CONFIG_") + kind + "_SIZE";
    EXPECT_EQ(refusal_with({{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}, {variable, "2"}}).find(variable + "=2 asks for"), 0U);
    EXPECT_EQ(refusal_with({{variable, "2"}}), "no error") << "without the flag Python does not read it";
  }
  EXPECT_EQ(refusal_with({{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
                          {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "2"},
                          {"PARALLELISM_CONFIG_TP_SIZE", "1"}}),
            "no error");
}

TEST_F(TogetherPrepare, AModelOfAnotherShapeIsNamed) {
  if (world() == 1) return;
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Linear(4, rank() == world() - 1 ? 6 : 5));
  try {
    accelerator().prepare(net);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const accelerate::DistributedError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("rank " + std::to_string(world() - 1) +
                        " has 1.weight float32[6, 4] where the main process has 1.weight float32[5, 4]"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(accelerator().reduce(torch::ones({1})).item<int>(), world());
}

TEST_F(TogetherPrepare, AModelCallsItsModuleAndReachesIt) {
  torch::nn::Linear net(2, 2);
  auto model = accelerator().prepare(net);
  const auto x = torch::ones({1, 2});
  EXPECT_TRUE(torch::equal(model(x), net->forward(x)));
  model.eval();
  EXPECT_FALSE(net->is_training());
  model.train();
  EXPECT_TRUE(net->is_training());
  EXPECT_EQ(accelerator().unwrap_model(model).get(), net.get());
}

}  // namespace
