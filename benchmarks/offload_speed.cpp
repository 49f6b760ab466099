// A Llama whose weights are not where they are computed with: on an accelerator, from host memory and from disk. One mode a run,
// figures as "name value" lines, so that a peer can take turns:
//   offload_speed CHECKPOINT link|reads|resident|host|disk PASSES [cold]
#include <ATen/DeviceAccelerator.h>
#include <accelerate/accelerate.h>
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "models/generation.h"
#include "models/loading.h"

namespace {

namespace fs = std::filesystem;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// The seconds of a call, until the device has done its part.
template <class F>
double seconds_of(const F& call) {
  at::accelerator::synchronizeDevice(0);
  const double start = now();
  call();
  at::accelerator::synchronizeDevice(0);
  return now() - start;
}

void print(const char* name, double value) {
  std::printf("%s %.6g\n", name, value);
  std::fflush(stdout);
}

std::vector<fs::path> files_of(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  return files;
}

/// Makes the system forget what it has read of the files.
void forget(const std::string& folder) {
  for (const auto& file : files_of(folder)) {
    const int descriptor = open(file.c_str(), O_RDONLY);
    fdatasync(descriptor);
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    close(descriptor);
  }
}

/// How fast pinned memory is copied to the device: what no offloading can be faster than.
void measure_link(int passes) {
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  const auto from = torch::zeros({int64_t{1} << 30}, bytes.pinned_memory(true));
  const auto to = torch::empty({int64_t{1} << 30}, bytes.device(at::kCUDA, 0));
  for (int pass = 0; pass < passes; ++pass) {
    const double seconds = seconds_of([&] {
      for (int i = 0; i < 4; ++i) to.copy_(from, true);
    });
    print("link_GBps", 4 * static_cast<double>(from.nbytes()) / 1e9 / seconds);
  }
}

/// How fast threads read the files into pinned memory, doing nothing else.
void measure_reads(const std::string& folder, int passes, bool cold) {
  constexpr int64_t kPart = int64_t{4} << 20;
  const int readers = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2U, 16U));
  const auto memory = torch::zeros({2 * readers * kPart}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  const auto files = files_of(folder);
  for (int pass = 0; pass < passes; ++pass) {
    if (cold) forget(folder);
    std::vector<std::pair<int, int64_t>> parts;
    std::vector<int> descriptors;
    double bytes = 0;
    for (const auto& file : files) {
      descriptors.push_back(open(file.c_str(), O_RDONLY));
      const auto size = static_cast<int64_t>(fs::file_size(file));
      for (int64_t offset = 0; offset < size; offset += kPart) parts.emplace_back(descriptors.back(), offset);
      bytes += static_cast<double>(size);
    }
    std::atomic<size_t> next = 0;
    const double start = now();
    std::vector<std::thread> threads;
    for (int i = 0; i < readers; ++i) {
      threads.emplace_back([&, i] {
        int turn = 0;
        for (size_t mine = next++; mine < parts.size(); mine = next++) {
          uint8_t* to = memory.data_ptr<uint8_t>() + (2 * i + (turn++ & 1)) * kPart;
          if (pread(parts[mine].first, to, kPart, parts[mine].second) <= 0) std::abort();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    print("reads_GBps", bytes / 1e9 / (now() - start));
    for (const int each : descriptors) close(each);
  }
}

void measure_model(const std::string& folder, const std::string& mode, int passes, bool cold) {
  const c10::Device gpu(at::kCUDA, 0);
  torch::zeros({1}, gpu);  // the device wakes up
  const auto ids = torch::arange(16, gpu).reshape({1, 16});
  const auto net = [&] {
    const accelerate::InitEmptyWeights empty;
    return models::make_causal_lm(models::read_config(folder));
  }();
  net->eval();
  if (cold) forget(folder);
  const accelerate::DeviceMap map = {
      {"", mode == "resident" ? accelerate::Place(0) : accelerate::Place(mode == "host" ? "cpu" : "disk")}};
  std::optional<accelerate::DispatchedModel<models::CausalLM>> model;
  print("load_s", seconds_of([&] {
          model.emplace(accelerate::load_checkpoint_and_dispatch(
              net, folder, {.device_map = map, .dtype = torch::kBFloat16, .main_device = gpu}));
        }));
  at::accelerator::resetPeakStats(0);
  const auto sum_of = [&] {
    const torch::NoGradGuard no_grad;
    return net->forward(ids).to(torch::kFloat).sum();
  };
  for (int pass = 0; pass < passes; ++pass) {
    if (cold) forget(folder);
    const auto before = model->offload_counts().bytes_read;
    torch::Tensor sum;
    const double seconds = seconds_of([&] { sum = sum_of(); });
    print("forward_s", seconds);
    if (pass > 0) print("forward_GBps", static_cast<double>(model->offload_counts().bytes_read - before) / 1e9 / seconds);
    if (pass == 0) print("sum", sum.item<double>());
  }
  if (cold) return;
  if (mode == "resident") {  // the cost of a call that loads nothing, beside the module's own
    const torch::NoGradGuard no_grad;
    const auto direct = [&] { print("direct_s", seconds_of([&] { net->forward(ids); })); };
    const auto called = [&] { print("called_s", seconds_of([&] { (*model)(ids); })); };
    for (int pass = 0; pass < 100; ++pass) {  // whoever comes second has no advantage
      direct(), called();
      called(), direct();
    }
  }
  const auto peak = [&] { return static_cast<double>(at::accelerator::getDeviceStats(0).allocated_bytes[0].peak) / 1e6; };
  print("forward_device_MB", peak());
  print("offload_peak_MB", static_cast<double>(model->offload_counts().peak_bytes) / 1e6);
  const auto generate = [&] { return models::generate(*net, ids, {.max_new_tokens = 32}); };
  generate();  // once to warm up
  print("generate_s", seconds_of(generate));
  print("generate_device_MB", peak());
  // All the way back to the embedding, through every weight.
  for (auto& parameter : net->parameters()) parameter.set_requires_grad(false);
  net->parameters()[0].set_requires_grad(true);
  for (int pass = 0; pass < passes; ++pass) {
    torch::Tensor loss;
    const auto start = model->offload_counts().bytes_read;
    const double forward = seconds_of([&] { loss = net->forward(ids).to(torch::kFloat).pow(2).mean(); });
    const auto half = model->offload_counts().bytes_read;
    const double backward = seconds_of([&] { loss.backward(); });
    net->zero_grad();
    if (pass < 2) continue;  // the order is being learned
    print("train_forward_GBps", static_cast<double>(half - start) / 1e9 / forward);
    print("backward_GBps", static_cast<double>(model->offload_counts().bytes_read - half) / 1e9 / backward);
    print("train_pass_s", forward + backward);
  }
  print("prefetch_misses", static_cast<double>(model->offload_counts().prefetch_misses));
}

}  // namespace

int main(int count, char** argv) {
  if (count < 4) return std::fprintf(stderr, "usage: offload_speed CHECKPOINT link|reads|resident|host|disk PASSES [cold]\n"), 1;
  const std::string folder = argv[1], mode = argv[2];
  const int passes = std::stoi(argv[3]);
  const bool cold = count > 4;
  if (mode == "link") {
    measure_link(passes);
  } else if (mode == "reads") {
    measure_reads(folder, passes, cold);
  } else {
    measure_model(folder, mode, passes, cold);
  }
}
