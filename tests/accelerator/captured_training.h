#pragma once

#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace capture {

struct Wishes {
  int accumulation = 1;
  bool zero_first = false;
  bool clips = true, clips_in_step = false;
  bool amsgrad = false;
  bool cpu = true;
  accelerate::Precision precision = accelerate::Precision::no;
  int64_t samples = 64, width = 16;
  accelerate::DdpOptions ddp = {};
  std::optional<accelerate::FsdpOptions> fsdp = {};
  accelerate::CaptureOptions capture = {};
  std::function<void(int)> before = [](int) {};
};

/// A run with dropout, a scheduler, accumulation and a last batch of another size, captured or not.
struct Training {
  explicit Training(const Wishes& its_wishes)
      : wishes(its_wishes),
        accelerator({.cpu = its_wishes.cpu,
                     .mixed_precision = its_wishes.precision,
                     .gradient_accumulation_steps = its_wishes.accumulation,
                     .ddp = its_wishes.ddp,
                     .fsdp = its_wishes.fsdp,
                     // It grows until steps are skipped, again and again.
                     .grad_scaler = {.init_scale = 1 << 20, .growth_interval = 5}}),
        net(torch::nn::Linear(8, wishes.width), torch::nn::BatchNorm1d(wishes.width), torch::nn::Dropout(0.3), torch::nn::ReLU(),
            torch::nn::Linear(wishes.width, wishes.width), torch::nn::Linear(wishes.width, 1)),
        adamw(net->parameters(), torch::optim::AdamWOptions(1e-2).amsgrad(wishes.amsgrad)),
        cosine(adamw, {.warmup_steps = 5, .total_steps = 400}),
        data(accelerate::TensorDataset(torch::arange(8 * wishes.samples).reshape({wishes.samples, 8}) / (8.0 * wishes.samples),
                                       torch::arange(wishes.samples).reshape({wishes.samples, 1}) / double(wishes.samples)),
             {.batch_size = 8, .shuffle = true}) {}

  /// The losses of so many passes.
  std::vector<double> train(int passes, bool captured) {
    auto [model, optimizer, loader, scheduler] = accelerator.prepare(net, adamw, data, cosine);
    const auto body = [&, &model = model, &optimizer = optimizer, &scheduler = scheduler](accelerate::Example& batch) {
      auto scope = accelerator.accumulate(model);
      if (wishes.zero_first) optimizer.zero_grad();
      const auto loss = torch::mse_loss(model(batch.data), batch.target);
      accelerator.backward(loss);
      if (wishes.clips && accelerator.sync_gradients())
        accelerator.clip_grad_norm_(model.parameters(), 0.5, {.in_step = wishes.clips_in_step});
      optimizer.step();
      scheduler.step();
      if (!wishes.zero_first) optimizer.zero_grad();
      return loss;
    };
    auto step = accelerator.capture(body, wishes.capture);
    std::vector<double> losses;
    int count = 0;
    for (int pass = 0; pass < passes; ++pass) {
      for (auto& batch : loader) {
        wishes.before(count++);
        losses.push_back((captured ? step(batch) : body(batch)).template item<double>());
        // Asked by those alone who have nothing to lose by it.
        skipped += !captured && accelerator.sync_gradients() && accelerator.optimizer_step_was_skipped();
      }
    }
    report = step.report();
    scale = accelerator.grad_scaler() ? accelerator.grad_scaler()->get_scale() : 1;
    rates = scheduler.get_last_lr();
    return losses;
  }

  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> all;
    for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().clone());
    for (const auto& buffer : net->buffers()) all.push_back(buffer.clone());
    for (const auto& parameter : adamw.param_groups()[0].params()) {  // of a sharded model its pieces
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(*adamw.state().at(parameter.unsafeGetTensorImpl()));
      all.push_back(state.exp_avg_sq());
      all.push_back(torch::tensor(state.step()));
    }
    return all;
  }

  Wishes wishes;
  accelerate::Accelerator accelerator;
  torch::nn::Sequential net;
  torch::optim::AdamW adamw;
  accelerate::CosineWithWarmup cosine;
  accelerate::DataLoader<accelerate::Example> data;
  accelerate::CaptureReport report;
  std::vector<double> rates;
  double scale = 1;
  int skipped = 0;
};

inline void expect_equal(const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(got[i], expected[i])) << i;
}

/// Trains twice, eagerly and captured, and compares everything. What became of the calls.
inline accelerate::CaptureReport expect_same_run(const Wishes& wishes, int passes, const std::string& what) {
  SCOPED_TRACE(what);
  torch::manual_seed(3);
  Training eager(wishes);
  const auto expected = eager.train(passes, false);
  torch::manual_seed(3);
  Training captured(wishes);
  EXPECT_EQ(captured.train(passes, true), expected);
  expect_equal(captured.values(), eager.values());
  EXPECT_EQ(captured.rates, eager.rates);
  EXPECT_EQ(captured.scale, eager.scale);
  EXPECT_EQ(wishes.precision == accelerate::Precision::fp16, eager.skipped > 0) << eager.skipped;
  const auto& report = captured.report;
  EXPECT_EQ(report.eager + report.recorded + report.replayed, static_cast<int64_t>(expected.size()));
  return report;
}

}  // namespace capture
