// What the guards against silent mistakes cost a step that is right: a look at every parameter before the forward pass, at the
// reducer after the backward pass and before the optimizer's step, at the loop that the step is in. Limit: 1 us. Run by any
// number of processes; with accumulation a look at a few weights comes on top, and what detective_cost says of a backward pass.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>

#include "accelerator/step_check.h"
#include "data/open_loop.h"
#include "parallel/data_parallel.h"
#include "parallel/known_parameters.h"
#include "training/weight_probe.h"

namespace {

template <class Call>
double nanoseconds(const Call& call) {
  constexpr int kRounds = 11, kCalls = 100'000;
  std::vector<double> taken;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    taken.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kCalls);
  }
  std::sort(taken.begin(), taken.end());
  return taken[kRounds / 2];
}

}  // namespace

int main() {
  accelerate::Accelerator accelerator({.cpu = true});
  for (const int layers : {2, 37, 75, 150}) {  // 75 have as many parameters as GPT-2 small
    torch::nn::Sequential net;
    for (int i = 0; i < layers; ++i) net->push_back(torch::nn::Linear(8, 8));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(torch::ones({2, 8})).sum());
    accelerate::DataLoader data(accelerate::TensorDataset(torch::ones({8, 8}), torch::ones({8, 1})), {.batch_size = 2});
    auto loader = accelerator.prepare(data);
    const auto batch = loader.begin();
    accelerate::detail::KnownParameters known(*net);
    bool alarm = false;
    using Models = std::vector<std::weak_ptr<accelerate::detail::ModelCore>>;
    const auto core = model.core();
    accelerate::detail::StepCheck check_step(std::make_shared<Models>(Models{core}));
    const double step = nanoseconds([&, &optimizer = optimizer] {
      alarm |= core->lacks_forward();
      if (const auto& parallel = core->data_parallel()) {
        alarm |= known.are_outdated(/*find_unused_parameters=*/false) || accelerate::detail::OpenLoop::innermost_unprepared();
        parallel->check_backward({});
      }
      check_step(optimizer);
    });
    accelerate::detail::WeightProbe probe(*net);
    const double accumulation = nanoseconds([&] {
      probe.remember();
      alarm |= probe.has_changed();
    });
    if (accelerator.is_main_process())
      std::printf("guards: %.0f ns a step with %zu parameters on %d processes%s; with accumulation %.0f ns more; limit 1000 ns\n",
                  step, net->parameters().size(), accelerator.num_processes(), alarm ? " (an alarm: this must not be)" : "",
                  accumulation / 2);
  }
}
