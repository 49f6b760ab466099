// Copies that are made later than they are asked for: who waits for them, who does not, and what they hold.
#include "checkpoint/copy_on_write_guard.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "checkpoint/host_copies.h"

namespace accelerate::copy_on_write_test {

using namespace detail;
namespace {

constexpr int64_t kSide = 150;  // 90 kB: worth waiting for, and too small to be split among threads
constexpr bool kStoragesTellOfWrites = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13;

at::Tensor square() { return torch::randn({kSide, kSide}); }

/// A thread that does something which may have to wait.
class Doer {
 public:
  explicit Doer(std::function<void()> work)
      : thread_([this, work = std::move(work)] {
          id_ = static_cast<pid_t>(::syscall(SYS_gettid));
          work();
          done_ = true;
        }) {}
  ~Doer() { join(); }
  Doer(const Doer&) = delete;
  Doer& operator=(const Doer&) = delete;

  /// Returns when it sleeps, or has done its work.
  void settle() const {
    while (!done_ && !sleeps()) std::this_thread::yield();
  }
  /// Gives it time to be done, as much as any machine needs.
  void allow() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done_ && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  }
  bool done() const { return done_; }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  bool sleeps() const {
    if (id_ == 0) return false;
    std::ifstream file("/proc/self/task/" + std::to_string(id_) + "/stat");
    std::string stat;
    std::getline(file, stat);
    return stat.find(") S ") != std::string::npos;
  }

  std::atomic<pid_t> id_ = 0;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

/// Tensors of which copies were asked for and not yet made.
struct Asked {
  explicit Asked(const std::vector<at::Tensor>& tensors) {
    copies.begin();
    for (const auto& tensor : tensors) {
      before.push_back(tensor.detach().clone());
      made.push_back(copies.add(tensor.detach(), CopyTime::later));
    }
    late = copies.finish();
  }
  void expect_old_values() const {
    for (size_t i = 0; i < made.size(); ++i) EXPECT_TRUE(torch::equal(made[i], before[i])) << i;
  }

  HostCopies copies;
  std::vector<at::Tensor> before, made;
  DeferredCopies late;
};

/// The work waits, and the copies of `tensors` have the values of before it.
void expect_waits(const std::string& name, const std::vector<at::Tensor>& tensors, std::function<void()> work) {
  SCOPED_TRACE(name);
  Asked asked(tensors);
  Doer doer(std::move(work));
  kStoragesTellOfWrites ? doer.settle() : doer.allow();
  EXPECT_EQ(doer.done(), !kStoragesTellOfWrites);
  asked.late.make();
  doer.join();
  asked.expect_old_values();
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_FALSE(torch::equal(tensors[i].detach(), asked.before[i])) << "nothing was written to " << i;
  }
}

/// The work is done before the copies are made, and has the memory as it was.
void expect_goes_on(const std::string& name, const std::vector<at::Tensor>& tensors, std::function<void()> work) {
  SCOPED_TRACE(name);
  Asked asked(tensors);
  Doer doer(std::move(work));
  doer.allow();
  EXPECT_TRUE(doer.done());
  asked.late.make();
  doer.join();
  asked.expect_old_values();
}

TEST(CopyOnWriteGuard, IsPossibleWhereMemoryHasAnOwnerAndLibTorchTellsOfWrites) {
  EXPECT_EQ(CopyOnWriteGuard::is_possible(square()), kStoragesTellOfWrites);
  std::vector<float> mine(kSide * kSide, 1.0F);
  const at::Tensor borrowed = torch::from_blob(mine.data(), {kSide, kSide});
  EXPECT_FALSE(CopyOnWriteGuard::is_possible(borrowed));
  EXPECT_FALSE(CopyOnWriteGuard::is_possible(torch::eye(2).to_sparse()));
  EXPECT_FALSE(CopyOnWriteGuard::is_possible(torch::empty({2}, torch::kMeta)));
  Asked asked({borrowed, torch::randn({10})});
  EXPECT_TRUE(asked.late.empty()) << "a small tensor, or one whose memory may go at any time, was left for later";
  asked.expect_old_values();
}

TEST(CopyOnWriteGuard, EveryWayToWriteToATensorWaits) {
  const torch::NoGradGuard no_grad;
  at::Tensor w = square();
  const at::Tensor other = square(), row_of_before = w[3], all_of_before = w.view({-1}), indices = torch::arange(3);
  const std::vector<std::pair<const char*, std::function<void()>>> ways = {
      {"add_", [&] { w.add_(1); }},
      {"zero_ of a row", [&] { w[0].zero_(); }},
      {"zero_ of a row taken before", [&] { row_of_before.zero_(); }},
      {"a view of all taken before", [&] { all_of_before.mul_(2); }},
      {"data()", [&] { w.data().mul_(3); }},
      {"detach()", [&] { w.detach().sub_(1); }},
      {"copy_",
       [&] {
         w.copy_(torch::zeros({kSide, kSide}));
       }},
      {"lerp_, as in a moving average", [&] { w.lerp_(other, 0.1); }},
      {"addcdiv_", [&] { w.addcdiv_(other, torch::full_like(other, 2), -0.1); }},
      {"index_put_", [&] { w.index_put_({indices}, torch::full({kSide}, 7.0)); }},
      {"index_add_",
       [&] {
         w.index_add_(0, indices, torch::ones({3, kSide}));
       }},
      {"masked_fill_",
       [&] {
         w.masked_fill_(torch::ones({kSide, kSide}, torch::kBool), 5);
       }},
      {"out=", [&] { at::add_out(w, other, other); }},
      {"mm_out", [&] { at::mm_out(w, other, other); }},
      {"addmm_", [&] { w.addmm_(other, other); }},
      {"normal_", [&] { w.normal_(); }},
      {"init", [&] { torch::nn::init::xavier_uniform_(w); }},
      {"_foreach_add_", [&] { at::_foreach_add_({w}, 1.0); }},
      {"a pointer asked for now", [&] { w.data_ptr<float>()[5] += 1; }},
      {"an accessor", [&] { w.accessor<float, 2>()[1][1] += 1; }},
      {"the storage's pointer", [&] { static_cast<float*>(w.storage().mutable_data())[7] += 1; }},
  };
  for (const auto& [name, way] : ways) expect_waits(name, {w}, way);
  expect_waits("InferenceMode", {w}, [&] {
    const c10::InferenceMode inference;
    w.add_(1);
  });
}

TEST(CopyOnWriteGuard, EveryOptimizersStepWaits) {
  namespace optim = torch::optim;
  at::Tensor w = square().requires_grad_();
  const auto steps = [&](optim::Optimizer& optimizer) {
    for (int i = 0; i < 2; ++i) {  // the first makes its state
      w.mutable_grad() = torch::randn_like(w);
      if (i == 0) optimizer.step([&] { return w.detach().sum(); });
    }
    expect_waits(c10::demangle(typeid(optimizer).name()), {w}, [&] { optimizer.step([&] { return w.detach().sum(); }); });
  };
  const std::vector<at::Tensor> weights = {w};
  optim::SGD sgd(weights, optim::SGDOptions(0.1).momentum(0.9));
  optim::Adam adam(weights, optim::AdamOptions(0.1).amsgrad(true));
  optim::AdamW adamw(weights, optim::AdamWOptions(0.1));
  optim::RMSprop rmsprop(weights, optim::RMSpropOptions(0.1).momentum(0.9));
  optim::Adagrad adagrad(weights, optim::AdagradOptions(0.1));
  optim::LBFGS lbfgs(weights, optim::LBFGSOptions(0.1));
  for (optim::Optimizer* each : std::vector<optim::Optimizer*>{&sgd, &adam, &adamw, &rmsprop, &adagrad, &lbfgs}) steps(*each);
}

TEST(CopyOnWriteGuard, StatesOfFusedStepsAndStatisticsOfNormsAreWaitedForAsWell) {
  const torch::NoGradGuard no_grad;
  const at::Tensor w = square(), gradient = square(), mean = square(), variance = square().abs(), count = torch::ones({});
  expect_waits("_fused_adamw_", {w, mean, variance}, [&] {
    at::_fused_adamw_({w}, {gradient}, {mean}, {variance}, {}, {count}, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
  });
  expect_waits("_fused_sgd_", {w, mean},
               [&] { at::_fused_sgd_({w}, {gradient}, {mean}, 0.1, 0.9, 0.1, 0.0, false, false, false); });
  torch::nn::BatchNorm1d norm(20000);
  const at::Tensor input = torch::randn({2, 20000});
  expect_waits("batch_norm", {norm->running_mean, norm->running_var}, [&] { norm(input); });
}

TEST(CopyOnWriteGuard, ForwardAndBackwardPassesDoNotWait) {
  torch::nn::Linear linear(kSide, kSide);
  torch::nn::Embedding embedding(200, kSide);
  torch::nn::Conv1d convolution(torch::nn::Conv1dOptions(kSide, kSide, 3));
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({20000}));
  torch::nn::TransformerEncoderLayer layer(torch::nn::TransformerEncoderLayerOptions(kSide, 2));
  torch::nn::BatchNorm1d fixed(20000);
  fixed->eval();
  const auto all = [](const torch::nn::Module& module) {
    auto tensors = module.parameters();
    for (const auto& buffer : module.buffers()) tensors.push_back(buffer);
    return tensors;
  };
  const at::Tensor x = torch::randn({4, kSide}), wide = torch::randn({2, 20000});
  expect_goes_on("Linear", all(*linear), [&] { linear(x).sum().backward(); });
  expect_goes_on("Embedding", all(*embedding), [&] { embedding(torch::arange(9)).sum().backward(); });
  expect_goes_on("Conv1d", all(*convolution), [&] { convolution(torch::randn({1, kSide, 9})).sum().backward(); });
  expect_goes_on("LayerNorm", all(*norm), [&] { norm(wide).sum().backward(); });
  expect_goes_on("Transformer", all(*layer), [&] { layer(torch::randn({3, 2, kSide})).sum().backward(); });
  expect_goes_on("BatchNorm1d, not in training", all(*fixed), [&] { fixed(wide).sum().backward(); });
  const at::Tensor w = linear->weight;
  expect_goes_on("reading", {w}, [&] {
    const torch::NoGradGuard no_grad;
    (void)(w.sum().item<float>() + w.norm().item<float>() + w[0][0].item<float>());
    (void)at::cat({w, w.t()}).to(torch::kHalf);
    (void)torch::empty_like(w).copy_(w);
    (void)at::_foreach_norm({w});
    (void)linear->clone();
  });
}

TEST(CopyOnWriteGuard, MemoryStaysForItWhateverBecomesOfTheTensor) {
  at::Tensor w = square(), u = square(), v = square(), x = square();
  const std::vector<at::Tensor> before = {w.clone(), u.clone(), v.clone(), x.clone()};
  HostCopies copies;
  copies.begin();
  const std::vector<at::Tensor> made = {copies.add(w, CopyTime::later), copies.add(u, CopyTime::later),
                                        copies.add(v, CopyTime::later), copies.add(x, CopyTime::later)};
  DeferredCopies late = copies.finish();
  w.reset();
  u.set_data(square());
  v.resize_({kSide * 10, kSide}).zero_();  // larger memory takes the place of this one
  x.set_(square());
  late.make();
  for (size_t i = 0; i < made.size(); ++i) EXPECT_TRUE(torch::equal(made[i], before[i])) << i;
  EXPECT_EQ(v.sum().item<float>(), 0);
  v[0].fill_(1);
  EXPECT_EQ(v.sum().item<float>(), kSide);
}

TEST(CopyOnWriteGuard, CopiesThatNobodyMakesHoldNobodyUp) {
  at::Tensor w = square();
  for (int i = 0; i < 2; ++i) {
    const Asked asked({w});
    EXPECT_EQ(asked.late.empty(), !kStoragesTellOfWrites);
  }
  w.add_(1);  // would wait for ever
  Asked again({w});
  DeferredCopies elsewhere = std::move(again.late);
  elsewhere = DeferredCopies();
  w.add_(1);
}

TEST(CopyOnWriteGuard, TwoWhoReadTheSameMemoryAreBothWaitedFor) {
  at::Tensor w = square();
  Asked first({w}), second({w});
  Doer doer([&] { w.zero_(); });
  doer.settle();
  second.late.make();
  kStoragesTellOfWrites ? doer.settle() : doer.allow();
  EXPECT_EQ(doer.done(), !kStoragesTellOfWrites);
  first.late.make();
  doer.join();
  first.expect_old_values();
  second.expect_old_values();
  EXPECT_EQ(w.sum().item<float>(), 0);
}

TEST(CopyOnWriteGuard, MemoryCanBeReadLateAgainAndAgain) {
  at::Tensor w = square();
  for (int i = 0; i < 3; ++i) {
    expect_waits("once more", {w}, [&] { w.add_(1); });
    Asked unchanged({w});
    unchanged.late.make();
    unchanged.expect_old_values();
  }
}

TEST(CopyOnWriteGuard, AForkedProcessWritesToItsOwnMemoryWithoutWaiting) {
  at::Tensor w = square();
  Asked asked({w});
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // ends one that waits
    w.zero_();
    Asked own({w});
    own.late.make();
    w.add_(1);
    ::_exit(torch::equal(own.made[0], own.before[0]) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  asked.late.make();
  asked.expect_old_values();
}

}  // namespace
}  // namespace accelerate::copy_on_write_test
