#pragma once

#include <sys/mount.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <fstream>

#include "support/together.h"

/// A run that has one of everything, and places where it may fail to save.
namespace run_safety {

namespace fs = std::filesystem;
using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::CheckpointError;

struct Counter {
  int64_t count = 0;
  bool refuses = false, fails_to_save = false;
  accelerate::StateDict state_dict() const {
    if (fails_to_save) throw std::runtime_error("the counter is stuck");
    return {{"count", count}};
  }
  void load_state_dict(const accelerate::StateDict& state) {
    count = state.at("count").get<int64_t>();
    if (refuses) throw std::runtime_error("the counter refuses");
  }
};

/// Everything that a checkpoint holds.
struct SmallRun {
  explicit SmallRun(const fs::path& project, int64_t width = 3)
      : accelerator(AcceleratorOptions{.project = {.project_dir = project, .automatic_checkpoint_naming = true}}),
        net(width, 2),
        adamw(net->parameters(), torch::optim::AdamWOptions(0.1)),
        rate(adamw, 1, 0.5),
        data(accelerate::TensorDataset(torch::randn({24, width}), torch::randn({24, 2})), {.batch_size = 2}) {
    auto made = accelerator.prepare(net, adamw, data, rate);
    std::apply([this](auto&... prepared) { step = [this, prepared...]() mutable { take_step(prepared...); }; }, made);
    accelerator.register_for_checkpointing(counter);
  }

  void take_step(auto& model, auto& optimizer, auto& loader, auto& scheduler) {
    auto batch = *loader.begin();
    accelerator.backward(torch::mse_loss(model(batch.data), batch.target));
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    ++counter.count;
  }
  double learning_rate() const { return adamw.param_groups()[0].options().get_lr(); }
  /// The weights, what AdamW remembers, the rate, the count and the next random number, as text that is equal when all are.
  std::string everything() {
    std::ostringstream text;
    text.precision(17);
    for (const auto& parameter : net->parameters()) text << parameter.sum().item<double>() << " ";
    const auto remembered = accelerate::state_dict(adamw);
    for (const auto& [number, state] : remembered.at("state").as<accelerate::StateDict>()) {
      text << number << ": " << state["exp_avg"].as<torch::Tensor>().sum().item<double>() << " ";
    }
    const auto random = at::globalContext().defaultGenerator(at::kCPU).get_state();
    const std::string_view bytes(static_cast<const char*>(random.const_data_ptr()), random.nbytes());
    text << learning_rate() << " " << counter.count << " " << std::hash<std::string_view>()(bytes);
    return text.str();
  }

  Accelerator accelerator;
  torch::nn::Linear net;
  torch::optim::AdamW adamw;
  torch::optim::StepLR rate;
  accelerate::DataLoader<accelerate::Example> data;
  std::function<void()> step;
  Counter counter;
};

inline void expect_in(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void replace_content(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// A file system of 2 MB of its own.
class SmallDisk {
 public:
  explicit SmallDisk(fs::path place) : place_(std::move(place)) {
    fs::create_directories(place_);
    if (::mount("none", place_.c_str(), "tmpfs", 0, "size=2m") != 0) throw std::runtime_error("mounting a tmpfs needs root");
  }
  ~SmallDisk() { ::umount2(place_.c_str(), MNT_DETACH); }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  void close() const { ::mount("none", place_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=2m"); }
  /// Leaves a few pages.
  void fill() const {
    std::ofstream file(place_ / "filler", std::ios::binary);
    const std::string page(4096, 'x');
    while (file.write(page.data(), 4096) && file.flush()) {
    }
    file.close();
    fs::resize_file(place_ / "filler", fs::file_size(place_ / "filler") - 6 * 4096);
  }

 private:
  fs::path place_;
};

}  // namespace run_safety
