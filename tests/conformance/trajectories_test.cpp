#include <torch/torch.h>

#include "conformance/golden.h"
#include "support/together.h"

namespace {

using nlohmann::json;

class TogetherGoldenTrajectories : public Together {
 protected:
  static torch::Tensor tensor(const json& node) {
    json tagged = node;
    tagged["t"] = "tensor";
    return golden::value_of(tagged).get<torch::Tensor>();
  }

  static torch::nn::Sequential build(const std::string& kind, int64_t width) {
    torch::nn::Sequential net(torch::nn::Linear(5, width), torch::nn::Tanh());
    if (kind == "norm") net->push_back(torch::nn::BatchNorm1d(width));
    net->push_back(torch::nn::Linear(width, width));
    net->push_back(torch::nn::GELU());
    net->push_back(torch::nn::Linear(width, kind == "classifier" ? 4 : 2));
    return net;
  }

  static std::shared_ptr<torch::optim::Optimizer> optimizer_for(const json& run, std::vector<torch::Tensor> parameters) {
    const std::string name = run.at("optimizer");
    const json& a = run.at("optimizer_args");
    const double lr = a.at("lr");
    if (name == "SGD") {
      return std::make_shared<torch::optim::SGD>(parameters, torch::optim::SGDOptions(lr)
                                                                 .momentum(a.value("momentum", 0.0))
                                                                 .nesterov(a.value("nesterov", false))
                                                                 .weight_decay(a.value("weight_decay", 0.0)));
    }
    if (name == "AdamW")
      return std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(lr).weight_decay(a.at("weight_decay")));
    if (name == "Adam")
      return std::make_shared<torch::optim::Adam>(parameters, torch::optim::AdamOptions(lr).amsgrad(a.value("amsgrad", false)));
    if (name == "RMSprop") return std::make_shared<torch::optim::RMSprop>(parameters, torch::optim::RMSpropOptions(lr));
    if (name == "Adagrad") return std::make_shared<torch::optim::Adagrad>(parameters, torch::optim::AdagradOptions(lr));
    throw std::runtime_error("unknown optimizer " + name);
  }

  static std::shared_ptr<accelerate::LRScheduler> scheduler_for(const json& run, torch::optim::Optimizer& optimizer) {
    const json& a = run.at("scheduler_args");
    const std::string name = run.at("scheduler").is_null() ? "constant" : run.at("scheduler").get<std::string>();
    if (name == "constant")
      return std::make_shared<accelerate::ConstantLR>(optimizer, accelerate::ConstantLROptions{.factor = 1});
    if (name == "StepLR")
      return std::make_shared<accelerate::StepLR>(
          optimizer, accelerate::StepLROptions{.step_size = a.at("step_size"), .gamma = a.at("gamma")});
    if (name == "CosineAnnealingLR")
      return std::make_shared<accelerate::CosineAnnealingLR>(optimizer,
                                                             accelerate::CosineAnnealingLROptions{.T_max = a.at("T_max")});
    if (name == "OneCycleLR") {
      return std::make_shared<accelerate::OneCycleLR>(
          optimizer, accelerate::OneCycleLROptions{.max_lr = {a.at("max_lr").get<double>()}, .total_steps = a.at("total_steps")});
    }
    throw std::runtime_error("unknown scheduler " + name);
  }

  static bool close(double ours, double theirs, double tolerance) {
    return std::abs(ours - theirs) <= tolerance * std::max(1.0, std::abs(theirs));
  }

  /// What is not as in Python, or nothing.
  static std::string compare(const json& all, const json& run);
};

std::string TogetherGoldenTrajectories::compare(const json& all, const json& run) {
  const json& settings = all.at("settings");
  const bool bf16 = run.at("precision") == "bf16";
  // float32: to a relative 1e-6. bfloat16 keeps 8 bits, and which kernel rounds where differs between builds of torch.
  const double tolerance = bf16 ? 2e-2 : 1e-6;
  accelerate::Accelerator accelerator(
      {.mixed_precision = bf16 ? accelerate::Precision::bf16 : accelerate::Precision::no,
       .gradient_accumulation_steps = run.at("accumulation"),
       .dataloader = {.split_batches = run.at("split").get<bool>(),
                      .dispatch_batches = run.at("dispatch").is_null() ? std::optional<bool>() : run.at("dispatch").get<bool>(),
                      .even_batches = run.at("even").get<bool>(),
                      .use_seedable_sampler = true,
                      .data_seed = settings.at("seed").get<int64_t>()},
       .timeout = std::chrono::seconds(60)});

  auto net = build(run.at("model"), settings.at("width"));
  accelerate::TensorDict initial;
  for (const auto& [name, node] : all.at("initial_weights").at(run.at("model").get<std::string>()).items())
    initial[name] = tensor(node);
  accelerate::load_state_dict(*net, initial);
  auto trained = net->parameters();
  if (run.at("model") == "frozen") {
    for (auto& parameter : net[0]->parameters()) parameter.set_requires_grad(false);
    trained.erase(trained.begin(), trained.begin() + 2);
  }
  auto inner_optimizer = optimizer_for(run, trained);
  auto inner_scheduler = scheduler_for(run, *inner_optimizer);
  const json& data = all.at("data");
  accelerate::DataLoader rows(
      accelerate::make_tensor_dataset(tensor(data.at("x")), tensor(data.at("y")), tensor(data.at("labels")),
                                      torch::arange(settings.at("n").get<int64_t>())),
      {.batch_size = run.at("batch_size").get<int64_t>(), .shuffle = run.at("shuffle"), .drop_last = run.at("drop_last")});
  auto [model, optimizer, loader, scheduler] = accelerator.prepare(net, inner_optimizer, rows, inner_scheduler);

  const json& steps = run.at("steps").at(static_cast<size_t>(accelerator.process_index()));
  size_t i = 0;
  std::string wrong;
  const auto expect = [&](const char* what, double ours, const json& theirs) {
    if (!theirs.is_null() && !close(ours, theirs.get<double>(), tolerance) && wrong.empty())
      wrong =
          std::string(what) + " of step " + std::to_string(i) + " is " + std::to_string(ours) + " instead of " + theirs.dump();
  };
  for (int epoch = 0; epoch < settings.at("epochs").get<int>(); ++epoch) {
    for (auto& [x, y, label, index] : loader) {
      if (i >= steps.size()) return "more steps than in Python";
      const json& expected = steps[i];
      auto scope = accelerator.accumulate(model);
      const auto output = model(x);
      const auto loss = run.at("model") == "classifier" ? torch::cross_entropy_loss(output, label) : torch::mse_loss(output, y);
      accelerator.backward(loss);
      double norm = 0;
      if (!run.at("clip").is_null() && accelerator.sync_gradients())
        norm = accelerator.clip_grad_norm_(model.parameters(), run.at("clip")).item<double>();
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      expect("the loss", loss.item<double>(), expected[0]);
      expect("the mean loss", accelerator.reduce(loss.detach(), accelerate::Reduction::mean).item<double>(), expected[1]);
      expect("the norm", norm, expected[2]);
      if (std::abs(scheduler.get_last_lr().front() - expected[3].get<double>()) > 1e-12 && wrong.empty())
        wrong = "the learning rate of step " + std::to_string(i) + " is " + std::to_string(scheduler.get_last_lr().front());
      expect("sync_gradients", accelerator.sync_gradients(), expected[4]);
      if (json(std::vector<int64_t>(index.data_ptr<int64_t>(), index.data_ptr<int64_t>() + index.numel())) != expected[5] &&
          wrong.empty())
        wrong = "the rows of step " + std::to_string(i) + " are not " + expected[5].dump();
      ++i;
    }
  }
  if (i != steps.size()) return std::to_string(i) + " steps instead of " + std::to_string(steps.size());
  if (!wrong.empty() || accelerator.process_index() > 0) return wrong;
  const auto final = accelerate::state_dict(*accelerator.unwrap_model(model));
  for (const auto& [name, node] : run.at("final").items()) {
    const auto theirs = tensor(node), ours = final.at(name);
    if (!torch::allclose(ours.to(torch::kDouble), theirs.to(torch::kDouble), tolerance, tolerance))
      return "in the end " + name + " is off by " + std::to_string((ours - theirs).abs().max().item<double>());
  }
  return "";
}

TEST_F(TogetherGoldenTrajectories, WholeRuns) {
  golden::Tally tally("trajectories.json, " + std::to_string(world()) + " processes");
  const json all = golden::read("trajectories.json");
  for (const auto& run : all.at("runs")) {
    if (run.at("world") != world()) continue;
    json named = run;
    named.erase("steps");
    named.erase("final");
    const std::string difference = compare(all, run);
    tally.judge(named.dump(), difference.empty(), difference);
  }
  EXPECT_GT(tally.cases(), 0);
}

}  // namespace
