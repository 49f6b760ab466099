// What checkpoint_peer.py does, in C++; see there. "seed FOLDER" saves FOLDER/seeded right after set_seed(123).
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <cstdio>

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

struct Parts {
  std::shared_ptr<AnyNet> net;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<accelerate::LRScheduler> scheduler;
};

Parts build(const std::string& kind) {
  using namespace accelerate;
  namespace optim = torch::optim;
  Parts parts;
  if (kind == "tied") {
    parts.net = std::make_shared<TiedNet>();
  } else {
    parts.net = std::make_shared<PlainNet>();
  }
  if (kind == "bf16") parts.net->to(torch::kBFloat16);
  const auto parameters = parts.net->parameters();
  if (kind == "sgd_cosine") {
    parts.optimizer = std::make_shared<optim::SGD>(parameters, optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
    parts.scheduler = std::make_shared<CosineAnnealingLR>(*parts.optimizer, CosineAnnealingLROptions{.T_max = 20});
  } else if (kind == "rmsprop_onecycle") {
    parts.optimizer = std::make_shared<optim::RMSprop>(parameters, optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
    parts.scheduler = std::make_shared<OneCycleLR>(*parts.optimizer, OneCycleLROptions{.max_lr = {0.02}, .total_steps = 30});
  } else if (kind == "adam_multistep") {
    parts.optimizer = std::make_shared<optim::Adam>(parameters, optim::AdamOptions(0.02).amsgrad(true));
    parts.scheduler =
        std::make_shared<MultiStepLR>(*parts.optimizer, MultiStepLROptions{.milestones = {2, 5, 5, 9}, .gamma = 0.5});
  } else if (kind == "adagrad_exponential") {
    parts.optimizer = std::make_shared<optim::Adagrad>(parameters, optim::AdagradOptions(0.05));
    parts.scheduler = std::make_shared<ExponentialLR>(*parts.optimizer, 0.9);
  } else if (kind == "groups_sequential") {
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 2));
    groups.emplace_back(std::vector<at::Tensor>(parameters.begin() + 2, parameters.end()),
                        std::make_unique<optim::SGDOptions>(optim::SGDOptions(0.05).momentum(0.9)));
    parts.optimizer = std::make_shared<optim::SGD>(groups, optim::SGDOptions(0.1).momentum(0.9));
    parts.scheduler = std::make_shared<SequentialLR>(
        *parts.optimizer,
        SchedulerPointers{
            std::make_shared<LinearLR>(*parts.optimizer, LinearLROptions{.start_factor = 0.1, .total_iters = 4}),
            std::make_shared<MultiStepLR>(*parts.optimizer, MultiStepLROptions{.milestones = {1, 3}, .gamma = 0.5})},
        std::vector<int64_t>{4});
  } else {
    parts.optimizer = std::make_shared<optim::AdamW>(parameters, optim::AdamWOptions(0.02));
    parts.scheduler = std::make_shared<LinearLR>(*parts.optimizer, LinearLROptions{.start_factor = 0.1, .total_iters = 20});
  }
  return parts;
}

void train(const std::string& kind, const std::string& mode, const std::string& folder) {
  accelerate::set_seed(11);
  accelerate::Accelerator accelerator({.cpu = true});
  Parts parts = build(kind);
  auto [model, optimizer, scheduler] = accelerator.prepare(parts.net, parts.optimizer, parts.scheduler);
  Meter meter;
  accelerator.register_for_checkpointing(meter);
  const int rank = accelerator.process_index(), world = accelerator.num_processes();
  if (mode == "load") accelerator.load_state(folder + "/" + kind);
  for (int step = mode == "load" ? 3 : 0; step < 6; ++step) {
    const auto rows = torch::arange(4).add((step * world + rank) * 4).to(torch::kFloat);
    const auto x = torch::sin(torch::outer(rows, torch::arange(1.0, 5.0))),
               y = torch::cos(torch::outer(rows, torch::arange(1.0, 3.0)));
    const auto loss = torch::mse_loss(model(kind == "bf16" ? x.to(torch::kBFloat16) : x).to(torch::kFloat), y);
    accelerator.backward(loss);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    meter.total += loss.item<double>();
    ++meter.steps;
    std::printf("%s %d %d %.9f\n", kind.c_str(), step, rank, loss.item<double>());
    if (step == 2 && mode == "save") accelerator.save_state(folder + "/" + kind, {.safe_serialization = kind != "sgd_cosine"});
  }
  if (rank == 0) std::printf("%s meter 0 %.9f %ld\n", kind.c_str(), meter.total, static_cast<long>(meter.steps));
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
  for (const auto* kind : {"adamw_linear", "sgd_cosine", "rmsprop_onecycle", "adam_multistep", "adagrad_exponential",
                           "groups_sequential", "tied", "bf16"}) {
    train(kind, mode, folder);
  }
}
