// How long a training step takes. One model and one way of running it a run, figures as "name value" lines, so that a peer can
// take turns:
//   step_speed gpt2|mlp|resnet|bert eager|captured STEPS [--device cpu] [--small] [--kernels] [--clip-in-step]
#include <ATen/DeviceAccelerator.h>
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device_activity.h"
#include "models/bert.h"
#include "models/gpt2.h"
#include "small_resnet.h"

namespace {

namespace F = torch::nn::functional;
using Batch = accelerate::Example;
using Step = std::function<torch::Tensor(Batch&)>;

constexpr int kBatches = 8, kWindows = 5, kAlone = 10, kProfiled = 10, kShownKernels = 40;

struct Wishes {
  std::string model, mode;
  int64_t steps = 0;
  bool cpu = false;
  /// Sizes with which a program can be tried, not measured.
  bool small = false;
  bool kernels = false;
  bool clip_in_step = false;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void print(const char* name, double value) {
  std::printf("%s %.9g\n", name, value);
  std::fflush(stdout);
}

/// Takes steps, batch after batch, and prints how long they took.
class Measurement {
 public:
  Measurement(const Wishes& wishes, Step step, std::vector<Batch> batches)
      : wishes_(wishes), step_(std::move(step)), batches_(std::move(batches)) {}

  void run() {
    warm_up();
    for (int window = 0; window < kWindows; ++window) measure_window(std::max<int64_t>(wishes_.steps / kWindows, 1));
    for (int i = 0; i < kAlone; ++i) {  // the device has nothing to do: the host never waits for room in its queue
      const double start = now();
      take(1);
      print("issue_ms", 1e3 * (now() - start));
      wait();
    }
    next_ = 0;
    take(1);
    print("loss_last", loss_.item<double>());
    if (!wishes_.cpu) {
      // Of the whole run: a step that was captured allocates only while it is being captured.
      const auto memory = at::accelerator::getDeviceStats(0);
      print("peak_allocated_MB", static_cast<double>(memory.allocated_bytes[0].peak) / 1e6);
      print("peak_reserved_MB", static_cast<double>(memory.reserved_bytes[0].peak) / 1e6);
    }
    profile();
  }

 private:
  void wait() const {
    if (!wishes_.cpu) at::accelerator::synchronizeDevice(0);
  }

  void take(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) loss_ = step_(batches_[next_++ % batches_.size()]);
  }

  /// The first step, then rounds until one takes as long as the one before it, within a twentieth.
  void warm_up() {
    wait();
    const double start = now();
    take(1);
    wait();
    print("first_s", now() - start);
    print("loss_first", loss_.item<double>());
    double before = 0;
    for (int round = 0; round < 10; ++round) {
      const double begin = now();
      take(kBatches);
      wait();
      const double took = now() - begin;
      const bool steady = std::abs(took - before) < before / 20;
      before = took;
      if (steady) break;
    }
    print("warm_s", now() - start);
  }

  void measure_window(int64_t steps) {
    const double start = now();
    take(steps);
    const double issued = now();
    wait();
    print("host_ms", 1e3 * (issued - start) / static_cast<double>(steps));
    print("step_ms", 1e3 * (now() - start) / static_cast<double>(steps));
  }

  void profile() {
    const auto activity = bench::device_activity(!wishes_.cpu, [this] {
      take(kProfiled);
      wait();
    });
    print("busy_ms", activity.busy_us / 1e3 / kProfiled);
    print("kernels", static_cast<double>(activity.kernels) / kProfiled);
    if (!wishes_.kernels) return;
    for (size_t i = 0; i < activity.totals.size() && i < kShownKernels; ++i) {
      const auto& [name, microseconds, calls] = activity.totals[i];
      std::printf("kernel %.2f %.1f %s\n", microseconds / kProfiled, static_cast<double>(calls) / kProfiled, name.c_str());
    }
  }

  Wishes wishes_;
  Step step_;
  std::vector<Batch> batches_;
  size_t next_ = 0;
  torch::Tensor loss_;
};

/// The step as it was written, or captured.
template <class Written>
Step in_mode(accelerate::Accelerator& accelerator, const std::string& mode, Written step) {
  if (mode == "eager") return step;
  return accelerator.capture(std::move(step));
}

/// What is trained, and how. Parameters are on the host until it is prepared.
template <class M>
struct Training {
  std::shared_ptr<M> net;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::vector<Batch> batches;
  /// The norm that gradients are clipped to; 0: they are not.
  double max_norm = 0;
};

/// The loop as users write it, the loader left out. `loss_of` takes the prepared model and a batch.
template <class M, class Loss>
void train(const Wishes& wishes, accelerate::Accelerator& accelerator, const Training<M>& training, Loss loss_of) {
  const double start = now();
  accelerate::LinearWithWarmup schedule(*training.optimizer, {.warmup_steps = 0, .total_steps = 100000});
  auto prepared = accelerator.prepare(training.net, *training.optimizer, schedule);
  auto& model = std::get<0>(prepared);
  auto& optimizer = std::get<1>(prepared);
  auto& scheduler = std::get<2>(prepared);
  const auto step = [&](Batch& batch) -> torch::Tensor {
    auto scope = accelerator.accumulate(model);
    optimizer.zero_grad();
    auto loss = loss_of(model, batch);
    accelerator.backward(loss);
    if (training.max_norm > 0 && accelerator.sync_gradients()) {
      accelerator.clip_grad_norm_(model.parameters(), training.max_norm, {.in_step = wishes.clip_in_step});
    }
    optimizer.step();
    scheduler.step();
    return loss.detach();
  };
  const auto chosen = in_mode(accelerator, wishes.mode, step);
  print("prepare_s", now() - start);
  int64_t parameters = 0;
  for (const auto& each : model.parameters()) parameters += each.numel();
  print("parameters", static_cast<double>(parameters));
  Measurement(wishes, chosen, training.batches).run();
}

template <class Make>
std::vector<Batch> batches_of(Make make) {
  std::vector<Batch> batches;
  for (int i = 0; i < kBatches; ++i) batches.push_back(make());
  return batches;
}

template <class M>
std::shared_ptr<torch::optim::Optimizer> adamw_of(const std::shared_ptr<M>& net, double lr, double weight_decay) {
  return std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(lr).weight_decay(weight_decay));
}

/// As transformers begins: matrices of small random numbers.
void initialise(torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  for (auto& each : net.parameters()) {
    if (each.dim() > 1) each.normal_(0, 0.02);
  }
}

torch::Tensor random_tokens(const models::ModelConfig& config, int64_t rows, int64_t length, torch::Device device) {
  return torch::randint(0, config.vocab_size, {rows, length}, torch::TensorOptions(device).dtype(torch::kLong));
}

/// The sizes that GPT-2 small and BERT base share, or those to try a program with.
models::ModelConfig language_config(const Wishes& wishes, int64_t vocabulary, int64_t positions) {
  models::ModelConfig config;
  config.model_type = wishes.model;
  config.vocab_size = wishes.small ? 211 : vocabulary;
  config.hidden_size = wishes.small ? 64 : 768;
  config.intermediate_size = 4 * config.hidden_size;
  config.layers = wishes.small ? 2 : 12;
  config.heads = config.kv_heads = wishes.small ? 2 : 12;
  config.head_dim = config.hidden_size / config.heads;
  config.max_positions = wishes.small ? 64 : positions;
  config.tied = true;
  return config;
}

void train_gpt2(const Wishes& wishes, accelerate::Accelerator& accelerator) {
  auto config = language_config(wishes, 50257, 1024);
  config.activation = "gelu_new";
  const int64_t rows = wishes.small ? 2 : 8, length = wishes.small ? 16 : 512;
  const auto net = std::make_shared<models::GPT2LMHeadModel>(config);
  initialise(*net);
  const auto batches = batches_of([&]() -> Batch {
    const auto ids = random_tokens(config, rows, length, accelerator.device());
    return {ids, ids};
  });
  train(wishes, accelerator, Training<models::GPT2LMHeadModel>{net, adamw_of(net, 3e-4, 0.1), batches, 1.0},
        [](auto& model, Batch& batch) { return model(batch.data, models::ForwardOptions{.labels = batch.target}); });
}

void train_bert(const Wishes& wishes, accelerate::Accelerator& accelerator) {
  auto config = language_config(wishes, 30522, 512);
  config.activation = "gelu";
  config.norm_eps = 1e-12;
  const int64_t rows = wishes.small ? 2 : 16, length = wishes.small ? 16 : 128, vocabulary = config.vocab_size;
  const auto net = std::make_shared<models::BertForMaskedLM>(config);
  initialise(*net);
  const auto batches = batches_of([&]() -> Batch {
    return {random_tokens(config, rows, length, accelerator.device()), random_tokens(config, rows, length, accelerator.device())};
  });
  train(wishes, accelerator, Training<models::BertForMaskedLM>{net, adamw_of(net, 1e-4, 0.01), batches},
        [vocabulary](auto& model, Batch& batch) {
          const auto logits = model(models::BertInputs{.ids = batch.data});
          return F::cross_entropy(logits.reshape({-1, vocabulary}), batch.target.view({-1}));
        });
}

const auto class_loss = [](auto& model, Batch& batch) { return F::cross_entropy(model(batch.data), batch.target); };

/// Random images, or rows, of ten random classes.
std::vector<Batch> class_batches(int64_t rows, std::vector<int64_t> shape, torch::Device device) {
  shape.insert(shape.begin(), rows);
  return batches_of([&]() -> Batch {
    const auto inputs = torch::randn(shape, torch::TensorOptions(device));
    return {shape.size() == 4 ? inputs.contiguous(torch::MemoryFormat::ChannelsLast) : inputs,
            torch::randint(0, 10, {rows}, torch::TensorOptions(device).dtype(torch::kLong))};
  });
}

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t width) : fc1(784, width), fc2(width, width), fc3(width, 10) {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    register_module("fc3", fc3);
  }
  torch::Tensor forward(const torch::Tensor& x) { return fc3(torch::relu(fc2(torch::relu(fc1(x))))); }
  torch::nn::Linear fc1, fc2, fc3;
};

void train_mlp(const Wishes& wishes, accelerate::Accelerator& accelerator) {
  const auto net = std::make_shared<MlpImpl>(wishes.small ? 32 : 512);
  const auto batches = class_batches(wishes.small ? 8 : 32, {784}, accelerator.device());
  train(wishes, accelerator, Training<MlpImpl>{net, adamw_of(net, 1e-3, 0.01), batches}, class_loss);
}

void train_resnet(const Wishes& wishes, accelerate::Accelerator& accelerator) {
  const std::array<int64_t, 4> tried = {8, 16, 32, 64}, measured = {64, 128, 256, 512};
  const auto net = std::make_shared<bench::SmallResNet>(wishes.small ? tried : measured);
  bench::to_channels_last(*net);
  const int64_t side = wishes.small ? 16 : 32;
  const auto batches = class_batches(wishes.small ? 4 : 256, {3, side, side}, accelerator.device());
  const auto sgd =
      std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(5e-4));
  train(wishes, accelerator, Training<bench::SmallResNet>{net, sgd, batches}, class_loss);
}

void run(const Wishes& wishes) {
  if (wishes.mode != "eager" && wishes.mode != "captured") throw accelerate::UsageError("The mode is eager or captured.");
  accelerate::set_seed(0);
  accelerate::AcceleratorOptions options;
  options.cpu = wishes.cpu;
  options.mixed_precision = wishes.model == "mlp" ? accelerate::Precision::no : accelerate::Precision::bf16;
  accelerate::Accelerator accelerator(options);
  if (!wishes.cpu && accelerator.device().is_cpu()) throw accelerate::UsageError("There is no GPU: give --device cpu.");
  if (wishes.model == "gpt2") return train_gpt2(wishes, accelerator);
  if (wishes.model == "mlp") return train_mlp(wishes, accelerator);
  if (wishes.model == "resnet") return train_resnet(wishes, accelerator);
  if (wishes.model == "bert") return train_bert(wishes, accelerator);
  throw accelerate::UsageError("The model '" + wishes.model + "' is none of gpt2, mlp, resnet, bert.");
}

}  // namespace

int main(int count, char** argv) {
  if (count < 4) {
    return std::fprintf(stderr,
                        "usage: step_speed MODEL eager|captured STEPS [--device cpu] [--small] [--kernels] [--clip-in-step]\n"),
           1;
  }
  Wishes wishes{.model = argv[1], .mode = argv[2], .steps = std::stoll(argv[3])};
  for (int i = 4; i < count; ++i) {
    const std::string word = argv[i];
    wishes.small |= word == "--small";
    wishes.kernels |= word == "--kernels";
    wishes.clip_in_step |= word == "--clip-in-step";
    wishes.cpu |= word == "--device" && i + 1 < count && std::string(argv[i + 1]) == "cpu";
  }
  try {
    run(wishes);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "error: %s\n", error.what()), 1;
  }
}
