// Saves behind the run: 110 MB, which take longer to copy than to change, and a run that does not wait.
#include "accelerator/small_run.h"
#include "checkpoint/value_file.h"
#include "core/file.h"
#include "support/error_text.h"

namespace async_save {
namespace {

namespace fs = std::filesystem;
using accelerate::CheckpointError;
using accelerate::testing::message_of;
using run_safety::expect_in;

/// A run whose state is large, and what it was at some moment.
struct LargeRun {
  explicit LargeRun(int64_t width = 3072)
      : net(width, width), adamw(net->parameters(), torch::optim::AdamWOptions(0.1)), input(torch::randn({1, width})) {
    auto made = accelerator.prepare(net, adamw);
    std::apply([this](auto&... prepared) { step = [this, prepared...]() mutable { take_step(prepared...); }; }, made);
    step();
  }

  void take_step(auto& model, auto& optimizer) {
    accelerator.backward(model(input).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  auto& remembered() { return static_cast<torch::optim::AdamWParamState&>(*adamw.state().at(weight().unsafeGetTensorImpl())); }
  at::Tensor weight() const { return net->weight; }
  std::vector<at::Tensor> now() {
    return {weight().detach().clone(), remembered().exp_avg().clone(), remembered().exp_avg_sq().clone()};
  }

  accelerate::Accelerator accelerator{{.cpu = true}};
  torch::nn::Linear net;
  torch::optim::AdamW adamw;
  at::Tensor input;
  std::function<void()> step;
};

/// What a checkpoint of a LargeRun holds.
std::vector<at::Tensor> content_of(const fs::path& saved) {
  const auto weights = accelerate::load_file(saved / "model.safetensors");
  const auto optimizer = accelerate::detail::read_value(accelerate::detail::InputFile(saved / "optimizer.bin"));
  const auto& remembered = optimizer["state"]["0"];
  return {weights.at("weight"), remembered["exp_avg"].as<at::Tensor>(), remembered["exp_avg_sq"].as<at::Tensor>()};
}

void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
}

TEST(AsyncSave, HoldsTheMomentOfTheCallHoweverTheRunGoesOn) {
  const TemporaryFolder folder;
  LargeRun run;
  const at::Tensor row_of_before = run.weight().detach()[3000];
  const std::vector<std::pair<std::string, std::function<void()>>> ways = {
      {"prepared steps", [&] { run.step(); }},
      {"the optimizer's own step",
       [&] {
         run.weight().mutable_grad() = torch::ones_like(run.weight());
         run.adamw.step();
       }},
      {"operators",
       [&] {
         const torch::NoGradGuard no_grad;
         row_of_before.fill_(7);
         for (const auto& tensor : {run.weight(), run.remembered().exp_avg(), run.remembered().exp_avg_sq()}) tensor.zero_();
       }},
      {"other memory",
       [&] {
         run.weight().set_data(torch::ones_like(run.weight()));
         run.remembered().exp_avg() = torch::ones_like(run.weight());
       }},
  };
  for (const auto& [name, way] : ways) {
    SCOPED_TRACE(name);
    const auto at_the_call = run.now();
    run.accelerator.save_state(folder / "saved", {.async = true});
    way();
    EXPECT_FALSE(torch::equal(run.weight().detach(), at_the_call[0]));
    run.accelerator.end_training();
    expect_same(content_of(folder / "saved"), at_the_call);
  }
}

TEST(AsyncSave, ModelOptimizerAndAcceleratorMayGoRightAfterTheCall) {
  const TemporaryFolder folder;
  std::vector<at::Tensor> at_the_call;
  {
    auto run = std::make_unique<LargeRun>();
    at_the_call = run->now();
    run->accelerator.save_state(folder / "parts", {.async = true});
    run->step = nullptr;
    run->accelerator.free_memory();
    run->net = nullptr;
    run->adamw.state().clear();
    const at::Tensor takes_the_room = torch::zeros({3072, 3072});
    run->accelerator.end_training();
  }
  expect_same(content_of(folder / "parts"), at_the_call);
  {
    LargeRun run;
    at_the_call = run.now();
    run.accelerator.save_state(folder / "all", {.async = true});
  }
  expect_same(content_of(folder / "all"), at_the_call);
}

TEST(AsyncSave, SavesAndALoadInARowEachHaveTheirMoment) {
  const TemporaryFolder folder;
  LargeRun run;
  const auto first = run.now();
  run.accelerator.save_state(folder / "first", {.async = true});
  run.step();
  const auto second = run.now();
  run.accelerator.save_state(folder / "second", {.async = true});
  run.accelerator.save_state(folder / "again", {.async = true});
  run.step();
  run.accelerator.save_state(folder / "third", {.async = true});
  run.accelerator.load_state(folder / "first");
  expect_same(run.now(), first);
  run.accelerator.save_state(folder / "loaded", {.async = true});  // of an optimizer whose memory is a file's
  run.step();
  run.accelerator.end_training();
  expect_same(content_of(folder / "second"), second);
  expect_same(content_of(folder / "again"), second);
  expect_same(content_of(folder / "loaded"), first);
}

TEST(AsyncSave, TwoAcceleratorsMaySaveTheSameModelAtTheSameTime) {
  const TemporaryFolder folder;
  LargeRun run;
  accelerate::Accelerator other{{.cpu = true}};
  auto prepared = other.prepare(run.net, run.adamw);
  const auto at_the_call = run.now();
  run.accelerator.save_state(folder / "one", {.async = true});
  other.save_state(folder / "other", {.async = true});
  run.step();
  run.accelerator.end_training();
  other.end_training();
  expect_same(content_of(folder / "one"), at_the_call);
  expect_same(content_of(folder / "other"), at_the_call);
}

TEST(AsyncSave, OneThatFailsAnywhereHoldsNobodyUp) {
  const TemporaryFolder folder;
  LargeRun run(512);
  struct {
    accelerate::StateDict state_dict() const { throw std::runtime_error("it is stuck"); }
    void load_state_dict(const accelerate::StateDict&) {}
  } stuck;
  auto hook = run.accelerator.register_save_state_pre_hook(
      [](auto&&, auto&& weights, auto&&) { weights[0]["sparse"] = torch::eye(2).to_sparse(); });
  run.accelerator.save_state(folder / "saved", {.async = true});
  run.step();
  expect_in("sparse", message_of<CheckpointError>([&] { run.accelerator.end_training(); }));
  hook.remove();
  run.accelerator.register_for_checkpointing(stuck);
  expect_in("it is stuck", message_of<CheckpointError>([&] { run.accelerator.save_state(folder / "saved", {.async = true}); }));
  run.step();  // would wait for ever
  expect_in("a file has that name", message_of<CheckpointError>([&] {
              run_safety::replace_content(folder / "file", "mine");
              run.accelerator.save_state(folder / "file", {.async = true});
            }));
  run.step();
}

class TogetherAsyncSave : public Together {};

TEST_F(TogetherAsyncSave, ProcessesGoOnInStepAndTheCheckpointHoldsTheMomentOfTheCall) {
  const CommonFolder folder(accelerator());
  LargeRun run(2048);
  for (int i = 0; i < 2; ++i) {
    const auto at_the_call = run.now();
    run.accelerator.save_state(folder / "saved", {.async = true});
    for (int j = 0; j < 2; ++j) run.step();
    EXPECT_FALSE(torch::equal(run.weight().detach(), at_the_call[0]));
    run.accelerator.load_state(folder / "saved");
    expect_same(run.now(), at_the_call);
    run.step();
  }
}

}  // namespace
}  // namespace async_save
