#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/accelerated_scheduler.h>
#include <accelerate/training/clip.h>
#include <accelerate/training/grad_scaler.h>
#include <accelerate/training/torch_schedulers.h>
#include <torch/torch.h>

#include <limits>

#include "conformance/golden.h"

namespace {

using nlohmann::json;

/// A number, or a text that stands for one that JSON has not.
double training_number(const json& number) { return golden::value_of({{"t", "float"}, {"v", number}}).get<double>(); }

torch::Tensor training_tensor(json tensor) {
  tensor["t"] = "tensor";
  return golden::value_of(tensor).get<torch::Tensor>();
}

bool same_gradients(const std::vector<torch::Tensor>& parameters, const json& theirs) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (theirs.at(i).is_null() != !parameters[i].grad().defined()) return false;
    if (!theirs.at(i).is_null() && !golden::same(parameters[i].grad(), training_tensor(theirs.at(i)))) return false;
  }
  return true;
}

TEST(Golden, ClipGradNorm) {
  golden::Tally tally("clip_grad_norm");
  std::map<std::string, json> given;
  const json data = golden::read("training.json");
  for (const json& c : data.at("clip_grad_norm")) {
    if (c.at("given").is_array()) given[c.at("kind")] = c.at("given");
    std::vector<torch::Tensor> parameters;
    for (const json& gradient : given.at(c.at("kind"))) {
      parameters.push_back(
          torch::zeros(gradient.is_null() ? std::vector<int64_t>{1} : gradient.at("shape").get<std::vector<int64_t>>(),
                       torch::requires_grad()));
      if (!gradient.is_null()) parameters.back().mutable_grad() = training_tensor(gradient);
    }
    const auto norm = accelerate::clip_grad_norm_(parameters, c.at("max_norm").get<double>(),
                                                  {.norm_type = training_number(c.at("norm_type"))});
    const auto theirs = torch::tensor(training_number(c.at("norm")), norm.options());
    const bool held = golden::same(norm, theirs) && (c.at("clipped").is_null() || same_gradients(parameters, c.at("clipped")));
    tally.judge(
        c.at("kind").get<std::string>() + " max_norm " + c.at("max_norm").dump() + " norm_type " + c.at("norm_type").dump(), held,
        "norm " + std::to_string(norm.item<double>()));
  }
  EXPECT_GT(tally.cases(), 50);
}

/// The run of one case: what each step left behind, in the words of the data.
json scaled_run(const json& c) {
  auto weight = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 0.125);
  accelerate::StepLR step_lr(sgd, {.step_size = 1, .gamma = 0.5});
  const auto gradients = std::make_shared<accelerate::GradientState>();
  const auto scaler = std::make_shared<accelerate::GradScaler>(accelerate::GradScalerOptions{
      .init_scale = c.at("init_scale").get<double>(), .growth_interval = c.at("growth_interval").get<int64_t>()});
  accelerate::AcceleratedOptimizer optimizer(sgd, gradients, scaler);
  accelerate::AcceleratedScheduler scheduler(
      step_lr, {.gradients = gradients, .optimizers = {{&sgd, [&] { return optimizer.step_was_skipped(); }}}});
  json steps = json::array();
  for (const char kind : c.at("pattern").get<std::string>()) {
    auto loss = weight[0] + 2 * weight[1];
    if (kind == 'i') loss = loss * std::numeric_limits<double>::infinity();
    scaler->scale(loss).backward();
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    steps.push_back({{"overflow", kind == 'i'},
                     {"skipped", optimizer.step_was_skipped()},
                     {"accelerator_skipped", optimizer.step_was_skipped()},
                     {"scale", scaler->get_scale()},
                     {"growth_tracker", scaler->growth_tracker()},
                     {"weight", {weight[0].item<double>(), weight[1].item<double>()}},
                     {"lr", scheduler.get_last_lr().front()}});
  }
  return steps;
}

TEST(Golden, LossScaling) {
  golden::Tally tally("loss_scaling");
  const json data = golden::read("training.json");
  for (const json& c : data.at("loss_scaling")) {
    const auto ours = scaled_run(c);
    tally.judge(
        c.at("pattern").get<std::string>() + " from " + c.at("init_scale").dump() + " every " + c.at("growth_interval").dump(),
        ours == c.at("steps"), ours.dump());
  }
  EXPECT_GT(tally.cases(), 20);
}

}  // namespace
