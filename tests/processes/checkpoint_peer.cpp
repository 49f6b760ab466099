// What checkpoint_peer.py does, in C++; see there. "seed FOLDER" saves FOLDER/seeded right after set_seed(123).
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <variant>

namespace {

using torch::nn::Linear;

struct AnyNet : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

struct PlainNet : AnyNet {
  PlainNet() : fc1(register_module("fc1", Linear(4, 6))), fc2(register_module("fc2", Linear(6, 2))) {}
  at::Tensor forward(const at::Tensor& x) override { return fc2(torch::tanh(fc1(x))); }
  Linear fc1, fc2;
};

/// A layer whose weight is another's.
struct Borrower : torch::nn::Module {
  Borrower(const at::Tensor& its_weight, const at::Tensor& its_bias)
      : weight(register_parameter("weight", its_weight)), bias(register_parameter("bias", its_bias)) {}
  at::Tensor weight, bias;
};

struct TiedNet : AnyNet {
  TiedNet() : first(register_module("first", Linear(4, 4))) {
    second = register_module("second", std::make_shared<Borrower>(first->weight, Linear(4, 4)->bias));
    out = register_module("out", Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return out(torch::tanh(torch::linear(torch::tanh(first(x)), second->weight, second->bias)));
  }
  Linear first, out = nullptr;
  std::shared_ptr<Borrower> second;
};

struct Meter {
  double total = 0;
  int64_t steps = 0;
  accelerate::StateDict state_dict() const { return {{"total", total}, {"steps", steps}}; }
  void load_state_dict(const accelerate::StateDict& state) {
    total = state.at("total").get<double>();
    steps = state.at("steps").get<int64_t>();
  }
};

using AnyScheduler = std::variant<std::shared_ptr<accelerate::LRScheduler>, std::shared_ptr<torch::optim::LRScheduler>,
                                  std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler>>;

struct Parts {
  std::shared_ptr<AnyNet> net;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  AnyScheduler scheduler;
};

namespace optim = torch::optim;
using MakeOptimizer = std::function<std::shared_ptr<optim::Optimizer>(std::vector<at::Tensor>)>;
using MakeScheduler = std::function<AnyScheduler(optim::Optimizer&)>;

template <class Optimizer, class Options>
MakeOptimizer stepping(const Options& options) {
  return [options](std::vector<at::Tensor> parameters) { return std::make_shared<Optimizer>(std::move(parameters), options); };
}
MakeOptimizer stepping(const optim::SGDOptions& options) { return stepping<optim::SGD>(options); }
MakeOptimizer stepping(const optim::AdamOptions& options) { return stepping<optim::Adam>(options); }
MakeOptimizer stepping(const optim::AdamWOptions& options) { return stepping<optim::AdamW>(options); }
MakeOptimizer stepping(const optim::RMSpropOptions& options) { return stepping<optim::RMSprop>(options); }
MakeOptimizer stepping(const optim::AdagradOptions& options) { return stepping<optim::Adagrad>(options); }
MakeOptimizer stepping(const optim::LBFGSOptions& options) { return stepping<optim::LBFGS>(options); }

/// The scheduler of that type with these arguments behind its optimizer.
template <class Scheduler, class... Arguments>
MakeScheduler following(const Arguments&... arguments) {
  return [=](optim::Optimizer& optimizer) -> AnyScheduler {
    const auto made = std::make_shared<Scheduler>(optimizer, arguments...);
    if constexpr (std::derived_from<Scheduler, accelerate::LRScheduler>) {
      return std::shared_ptr<accelerate::LRScheduler>(made);
    } else if constexpr (std::derived_from<Scheduler, optim::LRScheduler>) {
      return std::shared_ptr<optim::LRScheduler>(made);
    } else {
      return made;
    }
  };
}

AnyScheduler make_chained(optim::Optimizer& optimizer) {
  return std::make_shared<accelerate::ChainedScheduler>(accelerate::SchedulerPointers{
      std::make_shared<accelerate::ConstantLR>(optimizer, accelerate::ConstantLROptions{.factor = 0.5, .total_iters = 4}),
      std::make_shared<accelerate::ExponentialLR>(optimizer, 0.9)});
}

struct Pair {
  std::string kind;
  MakeOptimizer optimizer;
  MakeScheduler scheduler;
};

std::vector<Pair> pairs() {
  using namespace accelerate;
  const auto step_lr = following<StepLR>(StepLROptions{.step_size = 3, .gamma = 0.5});
  const LambdaLR::Factor decay = [](int64_t step) { return std::pow(0.9, step); },
                         wave = [](int64_t step) { return step % 2 == 1 ? 0.8 : 1.1; };
  return {
      {"adamw_linear", stepping(optim::AdamWOptions(0.02)),
       following<LinearLR>(LinearLROptions{.start_factor = 0.1, .total_iters = 20})},
      {"sgd_cosine", stepping(optim::SGDOptions(0.1).momentum(0.9).nesterov(true)),
       following<CosineAnnealingLR>(CosineAnnealingLROptions{.T_max = 20})},
      {"rmsprop_onecycle", stepping(optim::RMSpropOptions(0.01).momentum(0.5).centered(true)),
       following<OneCycleLR>(OneCycleLROptions{.max_lr = {0.02}, .total_steps = 30})},
      {"adam_multistep", stepping(optim::AdamOptions(0.02).amsgrad(true)),
       following<MultiStepLR>(MultiStepLROptions{.milestones = {2, 5, 5, 9}, .gamma = 0.5})},
      {"adagrad_exponential", stepping(optim::AdagradOptions(0.05)), following<ExponentialLR>(0.9)},
      {"sgd_step", stepping(optim::SGDOptions(0.1)), step_lr},
      {"sgd_constant", stepping(optim::SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01)),
       following<ConstantLR>(ConstantLROptions{.factor = 0.5, .total_iters = 5})},
      {"adam_polynomial", stepping(optim::AdamOptions(0.02).weight_decay(0.01)),
       following<PolynomialLR>(PolynomialLROptions{.total_iters = 15, .power = 2})},
      {"adamw_restarts", stepping(optim::AdamWOptions(0.02).amsgrad(true)),
       following<CosineAnnealingWarmRestarts>(CosineAnnealingWarmRestartsOptions{.T_0 = 4, .T_mult = 2, .eta_min = 0.001})},
      {"adam_onecycle", stepping(optim::AdamOptions(0.02)),
       following<OneCycleLR>(OneCycleLROptions{
           .max_lr = {0.02}, .total_steps = 30, .anneal_strategy = AnnealStrategy::linear, .three_phase = true})},
      {"rmsprop_lambda", stepping(optim::RMSpropOptions(0.01)), following<LambdaLR>(decay)},
      {"rmsprop_multiplicative", stepping(optim::RMSpropOptions(0.01).momentum(0.5)), following<MultiplicativeLR>(wave)},
      {"adagrad_chained", stepping(optim::AdagradOptions(0.05).lr_decay(0.01).weight_decay(0.01).initial_accumulator_value(0.1)),
       make_chained},
      {"warmup_none", stepping(optim::RMSpropOptions(0.01).centered(true).weight_decay(0.01)), following<ConstantSchedule>()},
      {"warmup_constant", stepping(optim::SGDOptions(0.1)),
       following<ConstantWithWarmup>(ConstantWithWarmupOptions{.warmup_steps = 4})},
      {"warmup_linear", stepping(optim::AdamWOptions(0.02)),
       following<LinearWithWarmup>(LinearWithWarmupOptions{.warmup_steps = 4, .total_steps = 16})},
      {"warmup_cosine", stepping(optim::AdamOptions(0.02)),
       following<CosineWithWarmup>(CosineWithWarmupOptions{.warmup_steps = 4, .total_steps = 16})},
      {"warmup_restarts", stepping(optim::SGDOptions(0.1).momentum(0.9)),
       following<CosineWithHardRestartsWithWarmup>(
           CosineWithHardRestartsWithWarmupOptions{.warmup_steps = 4, .total_steps = 16, .num_cycles = 2})},
      {"warmup_polynomial", stepping(optim::AdamWOptions(0.02)),
       following<PolynomialWithWarmup>(
           PolynomialWithWarmupOptions{.warmup_steps = 4, .total_steps = 16, .lr_end = 0.005, .power = 2})},
      {"lbfgs", stepping(optim::LBFGSOptions(0.3).max_iter(3).history_size(4)), step_lr},
      {"lbfgs_wolfe", stepping(optim::LBFGSOptions(1).max_iter(3).history_size(2).line_search_fn("strong_wolfe")), step_lr},
      {"lbfgs_once", stepping(optim::LBFGSOptions(0.1).max_iter(1)), step_lr},
      {"libtorch_step", stepping(optim::SGDOptions(0.1)), following<optim::StepLR>(3U, 0.5)},
      {"libtorch_plateau", stepping(optim::SGDOptions(0.1)),
       following<optim::ReduceLROnPlateauScheduler>(optim::ReduceLROnPlateauScheduler::min, 0.5F, 1, 0.01,
                                                    optim::ReduceLROnPlateauScheduler::rel, 1)},
  };
}

Parts build_groups() {
  using namespace accelerate;
  Parts parts{.net = std::make_shared<PlainNet>(), .optimizer = {}, .scheduler = {}};
  const auto parameters = parts.net->parameters();
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 2));
  groups.emplace_back(std::vector<at::Tensor>(parameters.begin() + 2, parameters.end()),
                      std::make_unique<optim::SGDOptions>(optim::SGDOptions(0.05).momentum(0.9)));
  parts.optimizer = std::make_shared<optim::SGD>(groups, optim::SGDOptions(0.1).momentum(0.9));
  parts.scheduler = std::make_shared<SequentialLR>(
      *parts.optimizer,
      SchedulerPointers{std::make_shared<LinearLR>(*parts.optimizer, LinearLROptions{.start_factor = 0.1, .total_iters = 4}),
                        std::make_shared<MultiStepLR>(*parts.optimizer, MultiStepLROptions{.milestones = {1, 3}, .gamma = 0.5})},
      std::vector<int64_t>{4});
  return parts;
}

Parts build(const std::string& kind) {
  if (kind == "groups_sequential") return build_groups();
  Parts parts;
  if (kind == "tied") {
    parts.net = std::make_shared<TiedNet>();
  } else {
    parts.net = std::make_shared<PlainNet>();
  }
  if (kind == "bf16") parts.net->to(torch::kBFloat16);
  const auto all = pairs();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Pair& pair) { return pair.kind == kind; });
  const Pair& pair = found == all.end() ? all.front() : *found;
  parts.optimizer = pair.optimizer(parts.net->parameters());
  parts.scheduler = pair.scheduler(*parts.optimizer);
  return parts;
}

constexpr std::array kMetrics = {1.0, 0.9, 0.95, 0.97, 0.96, 0.98};

void train(const std::string& kind, const std::string& mode, const std::string& folder) {
  accelerate::set_seed(11);
  accelerate::Accelerator accelerator({.cpu = true});
  Parts parts = build(kind);
  auto [model, optimizer] = accelerator.prepare(parts.net, parts.optimizer);
  auto scheduler = std::visit([&](const auto& made) { return accelerator.prepare_scheduler(made); }, parts.scheduler);
  Meter meter;
  accelerator.register_for_checkpointing(meter);
  const int rank = accelerator.process_index(), world = accelerator.num_processes();
  const bool is_lbfgs = kind.starts_with("lbfgs");
  if (mode == "load") accelerator.load_state(folder + "/" + kind);
  for (int step = mode == "load" ? 3 : 0; step < 6; ++step) {
    const auto rows = torch::arange(4).add((is_lbfgs ? step : step * world + rank) * 4).to(torch::kFloat);
    const auto x = torch::sin(torch::outer(rows, torch::arange(1.0, 5.0))),
               y = torch::cos(torch::outer(rows, torch::arange(1.0, 3.0)));
    const auto backward = [&] {
      const auto loss = torch::mse_loss(model(kind == "bf16" ? x.to(torch::kBFloat16) : x).to(torch::kFloat), y);
      accelerator.backward(loss);
      return loss;
    };
    at::Tensor loss;
    if (kind == "lbfgs_once" && step < 2) {
      loss = backward();  // so that only one step is behind the checkpoint, which leaves another kind of state
    } else if (is_lbfgs) {
      optimizer.step([&] {
        optimizer.zero_grad();
        const auto now = backward();
        if (!loss.defined()) loss = now;
        return now;
      });
    } else {
      loss = backward();
      optimizer.step();
    }
    kind == "libtorch_plateau" ? scheduler.step(kMetrics.at(static_cast<size_t>(step))) : scheduler.step();
    optimizer.zero_grad();
    meter.total += loss.item<double>();
    ++meter.steps;
    std::printf("%s %d %d %.9f\n", kind.c_str(), step, rank, loss.item<double>());
    if (step == 2 && mode == "save") accelerator.save_state(folder + "/" + kind, {.safe_serialization = kind != "sgd_cosine"});
  }
  if (rank > 0) return;
  std::printf("%s meter 0 %.9f %ld\n", kind.c_str(), meter.total, static_cast<long>(meter.steps));
  std::printf("%s rate 0 %.12g\n", kind.c_str(), parts.optimizer->param_groups().back().options().get_lr());
}

void seed(const std::string& folder) {
  accelerate::Accelerator accelerator({.cpu = true});
  const auto model = accelerator.prepare(std::make_shared<PlainNet>());
  accelerate::set_seed(123);
  accelerator.save_state(folder + "/seeded");
}

}  // namespace

int main(int, char** argv) {
  const std::string mode = argv[1], folder = argv[2];
  if (mode == "seed") {
    seed(folder);
    return 0;
  }
  for (const auto& pair : pairs()) train(pair.kind, mode, folder);
  for (const auto* kind : {"groups_sequential", "tied", "bf16"}) train(kind, mode, folder);
}
