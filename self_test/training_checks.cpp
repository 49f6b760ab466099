#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <accelerate/accelerator/accelerator.h>
#include <accelerate/data/tensor_dataset.h>
#include <accelerate/training/torch_schedulers.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "sections.h"

namespace accelerate::self_test {
namespace {

constexpr int64_t kRows = 4;   // samples of a process in a step
constexpr int64_t kSteps = 6;  // steps of an epoch
constexpr int kEpochs = 3;
constexpr double kRate = 0.05;

// Tolerance for float32 weights that were summed in another order.
constexpr double kTolerance = 1e-5;
// Operators that round to 8 (bf16) or 11 (fp16) bits, a few times in each of the steps.
constexpr double kRoundedTolerance = 3e-2;

struct Data {
  at::Tensor inputs, targets;
};

// The same on every process, whatever was drawn before.
Data training_data(int64_t world) {
  set_seed(5);
  const auto inputs = at::randn({kSteps * kRows * world, 3});
  return {inputs, inputs.sum(1, true).sin()};
}

torch::nn::Sequential small_net() {
  set_seed(7);
  return torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
}

at::Tensor weights_of(const torch::nn::Sequential& net) {
  std::vector<at::Tensor> flat;
  for (const auto& parameter : net->parameters()) flat.push_back(parameter.detach().cpu().to(at::kFloat).reshape({-1}));
  return at::cat(flat);
}

/// How a run trains.
struct Run {
  std::string name;
  Precision precision = Precision::no;
  bool split_batches = false;
  bool dispatch_batches = false;
  int accumulation = 1;
  bool scheduled = false;
};

// Counted in steps of one process, as schedules are.
LambdaLR::Factor schedule() {
  return [](int64_t step) { return 1.0 / (1.0 + 0.1 * static_cast<double>(step)); };
}

// A loop as users write it, on all processes.
at::Tensor train_together(const Run& run, const Data& data) {
  // fp16 starts with a factor that leaves steps out until it fits; this one fits from the first step on.
  Accelerator accelerator(patient({.mixed_precision = run.precision,
                                   .dataloader = {.split_batches = run.split_batches, .dispatch_batches = run.dispatch_batches},
                                   .grad_scaler = {.init_scale = 256}}));
  accelerator.set_gradient_accumulation_steps(run.accumulation);
  auto net = small_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kRate).momentum(0.9));
  LambdaLR lambda(
      sgd, run.scheduled ? schedule() : [](int64_t) { return 1.0; });
  const int64_t batch = kRows * (run.split_batches ? accelerator.num_processes() : 1);
  auto [model, optimizer, loader, scheduler] =
      accelerator.prepare(net, sgd, DataLoader(TensorDataset(data.inputs, data.targets), {.batch_size = batch}), lambda);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& [inputs, targets] : loader) {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(at::mse_loss(model(inputs), targets));
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }
  }
  return weights_of(net);
}

// The same without any of our own but autocast, on the whole batch of all processes at once.
at::Tensor train_alone(const Run& run, const Data& data, int64_t world, c10::Device device) {
  auto net = small_net();
  net->to(device);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kRate).momentum(0.9));
  const int64_t rows = kRows * world;
  const auto factor = schedule();
  int64_t taken = 0;
  for (int step = 0; step < kEpochs * kSteps; ++step) {
    const int64_t start = step % kSteps * rows;
    const auto inputs = data.inputs.narrow(0, start, rows).to(device), targets = data.targets.narrow(0, start, rows).to(device);
    at::Tensor outputs;
    {
      const AutocastScope casting(run.precision, device.type());
      outputs = net->forward(inputs);
    }
    (at::mse_loss(outputs.to(at::kFloat), targets) / run.accumulation).backward();
    if ((step % kSteps + 1) % run.accumulation != 0 && step % kSteps + 1 != kSteps) continue;
    sgd.step();
    sgd.zero_grad();
    taken += run.split_batches ? 1 : world;  // a step of P processes counts as P
    if (run.scheduled) static_cast<torch::optim::SGDOptions&>(sgd.param_groups().at(0).options()).lr(kRate * factor(taken));
  }
  return weights_of(net);
}

void check_run(const Accelerator& accelerator, Findings& findings, const Run& run) {
  const auto data = training_data(accelerator.num_processes());
  const auto here = train_together(run, data);
  const auto alone = train_alone(run, data, accelerator.num_processes(), accelerator.device());
  const auto rows = accelerator.gather(here.to(accelerator.device()).unsqueeze(0));
  findings.equal(rows, rows[0].expand_as(rows), "all processes end with the same weights " + run.name);
  const bool rounded = run.precision != Precision::no;
  const double tolerance = rounded ? kRoundedTolerance : kTolerance;
  findings.near((here - alone).abs().max().item<double>(), 0, tolerance,
                "the weights match those of a single process " + run.name + " (greatest difference)");
  findings.expect((alone - weights_of(small_net())).abs().max().item<double>() > 5 * tolerance,
                  "training in a single process changes the weights " + run.name);
}

// fp16 is checked only where it is supported.
std::vector<Precision> precisions(const Accelerator& accelerator) {
  std::vector<Precision> all = {Precision::no, Precision::bf16};
  if (accelerator.device().is_cuda()) all.push_back(Precision::fp16);
  return all;
}

}  // namespace

void check_training(Accelerator& accelerator, Findings& findings) {
  for (const auto precision : precisions(accelerator)) {
    const std::string name = std::string("with precision ") + to_string(precision);
    check_run(accelerator, findings, {.name = name, .precision = precision});
    check_run(accelerator, findings, {.name = name + " and split_batches", .precision = precision, .split_batches = true});
  }
  check_run(accelerator, findings, {.name = "with dispatch_batches", .dispatch_batches = true});
}

void check_accumulation(Accelerator& accelerator, Findings& findings) {
  check_run(accelerator, findings, {.name = "over 2 batches", .accumulation = 2});
  check_run(accelerator, findings, {.name = "over 4 batches, which do not divide the epoch", .accumulation = 4});
}

void check_schedules(Accelerator& accelerator, Findings& findings) {
  check_run(accelerator, findings, {.name = "with a schedule", .scheduled = true});
  check_run(accelerator, findings, {.name = "with a schedule and split_batches", .split_batches = true, .scheduled = true});
  check_run(accelerator, findings, {.name = "with a schedule and accumulation", .accumulation = 2, .scheduled = true});
}

void check_precision(Accelerator& accelerator, Findings& findings) {
  const auto device = accelerator.device();
  for (const auto precision : precisions(accelerator)) {
    Accelerator own(patient({.mixed_precision = precision}));
    const std::string name = std::string(" with precision ") + to_string(precision);
    const auto ones = at::ones({2, 2}, at::TensorOptions(at::kFloat).device(device));
    const auto wanted = autocast_dtype(precision, device.type()).value_or(at::kFloat);
    {
      const auto scope = own.autocast();
      findings.equal(c10::toString(at::linear(ones, ones).scalar_type()), c10::toString(wanted),
                     "autocast computes in its dtype" + name);
    }
    findings.equal(c10::toString(at::linear(ones, ones).scalar_type()), "Float", "autocast ends with its scope" + name);
    auto model = own.prepare(torch::nn::Linear(2, 2));
    const auto outputs = model(ones);
    findings.equal(c10::toString(outputs.scalar_type()), "Float", "a prepared model returns float32" + name);
    findings.equal(c10::toString(model->weight.scalar_type()), "Float", "weights stay float32" + name);
    findings.equal(own.grad_scaler() != nullptr, wanted == at::kHalf, "losses are scaled where that is needed" + name);
  }
  const auto configured = process_environment("ACCELERATE_MIXED_PRECISION").value_or("no");
  findings.equal(to_string(accelerator.mixed_precision()), configured, "the precision is the one that was configured");
}

}  // namespace accelerate::self_test
