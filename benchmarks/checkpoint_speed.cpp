// Saving and loading a run of 1.2 GB, and training while it is saved. Reads "action folder" lines from standard input and answers
// each with seconds (of the call, until the checkpoint can be seen, of processors) and with the peak of memory above what the
// process held before, in MB.
// checkpoint_speed (Python) asks this program and the peer's, interleaved.
#include <ATen/DeviceAccelerator.h>
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <malloc.h>
#include <time.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

namespace {

constexpr int64_t kLayers = 24, kWidth = 2048;  // 100 million weights
constexpr int64_t kRows = 8;
constexpr int64_t kSteps = 5, kStepsOnGpu = 500;  // which last longer than a save

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("fc" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = x + layer(x).relu();
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Net);

/// A field of /proc/self/status, in MB.
double memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == field + ":" && status >> kilobytes) return kilobytes / 1024;
  }
  return 0;
}

/// Of all threads: independent of other load on the host.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Run {
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::AdamW adamw{net->parameters(), torch::optim::AdamWOptions(1e-4)};
  std::function<void()> step;

  Run() {
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    step = [this, model = model, optimizer = optimizer, input = torch::randn({kRows, kWidth}, accelerator.device())]() mutable {
      accelerator.backward(model(input).mean());
      optimizer.step();
      optimizer.zero_grad();
    };
  }

  /// What is measured.
  void act(const std::string& action, const std::string& folder) {
    if (action == "load") accelerator.load_state(folder);
    if (action == "load_unverified") accelerator.load_state(folder, {.verify = false});
    if (action.starts_with("save")) accelerator.save_state(folder, {.async = action.starts_with("save_async")});
    const int64_t steps = accelerator.device().is_cpu() ? kSteps : kStepsOnGpu;
    for (int64_t i = 0; action.ends_with("steps") && i < steps; ++i) step();
    synchronize();
  }

  void synchronize() {
    if (!accelerator.device().is_cpu()) at::accelerator::synchronizeDevice(0);
  }
};

}  // namespace

int main() {
  Run run;
  run.step();
  run.synchronize();
  malloc_trim(0);
  for (std::string action, folder; std::cin >> action >> folder;) {
    std::ofstream("/proc/self/clear_refs") << 5 << std::flush;  // the peak begins anew
    const double before = memory("VmRSS");
    const double cpu = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    run.act(action, folder);
    const double call = seconds_since(start);
    while (action != "steps" && !std::filesystem::exists(folder + "/accelerate_manifest.json"))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::cout << call << ' ' << seconds_since(start) << ' ' << cpu_seconds() - cpu << ' ' << memory("VmHWM") - before
              << std::endl;
  }
  run.accelerator.end_training();
}
