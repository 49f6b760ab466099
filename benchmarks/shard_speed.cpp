// A training step of a sharded or replicated model on the ranks of one group. Reads commands from standard input and answers each
// with a line: "run STEPS" with microseconds a step, of the clock and of all its threads, "forward STEPS" with microseconds a
// forward pass and what the link to the GPU carries, "figures STEPS" with what this rank holds and sends, "save TIMES" with
// microseconds a save_state, those that an asynchronous one blocks and those until it is durable, a load_state, and the bytes
// that this rank writes. shard_speed (Python) asks this program and the peer's, interleaved.
#include <accelerate/accelerate.h>
#include <malloc.h>
#include <torch/torch.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>

#include "sharding/sharded_model.h"
#include "support/written_bytes.h"

namespace {

struct Wishes {
  /// sharded, offload (sharded, with shards and optimizer state in host memory), ddp, or plain: fsdp is asked for nowhere.
  std::string mode = "sharded";
  std::string model = "gpt";
  int64_t layers = 12, width = 384, rows = 2, length = 128, vocabulary = 1000;
  bool on_gpu = false;
  /// Of the GPU's memory; the rest is taken by a tensor. 0: all of it.
  int64_t budget_mb = 0;
  /// Where checkpoints are saved.
  std::string folder = {};
};

constexpr int64_t kHeads = 6, kClasses = 10;

struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(int64_t width) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto rows = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = qkv(norm1(x)).view({rows, length, 3, kHeads, width / kHeads}).permute({2, 0, 3, 1, 4});
    const auto attended = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + out(attended.transpose(1, 2).reshape({rows, length, width}));
    return x + down(torch::gelu(up(norm2(x))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(GptBlock);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(const Wishes& wishes) {
    tokens = register_module("tokens", torch::nn::Embedding(wishes.vocabulary, wishes.width));
    places = register_module("places", torch::nn::Embedding(wishes.length, wishes.width));
    blocks = register_module("blocks", torch::nn::Sequential());
    for (int64_t i = 0; i < wishes.layers; ++i) blocks->push_back(GptBlock(wishes.width));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({wishes.width})));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(wishes.width, wishes.vocabulary).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head(norm(blocks->forward(tokens(x) + places(torch::arange(x.size(1), x.options())))));
  }
  torch::nn::Embedding tokens{nullptr}, places{nullptr};
  torch::nn::Sequential blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

/// Layers of very uneven sizes, each a unit.
const std::vector<int64_t> kUneven = {64, 4096, 32, 2048, 2048, 16, 3000, 1500, kClasses};

struct UnevenMlpImpl : torch::nn::Module {
  UnevenMlpImpl() {
    layers = register_module("layers", torch::nn::Sequential());
    for (size_t i = 0; i + 1 < kUneven.size(); ++i) {
      if (i > 0) layers->push_back(torch::nn::ReLU());
      layers->push_back(torch::nn::Linear(kUneven[i], kUneven[i + 1]));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(UnevenMlp);

using Clock = std::chrono::steady_clock;

/// Anonymous memory of this process, in bytes, without what its heap keeps although it was freed.
int64_t anonymous_bytes() {
  malloc_trim(0);
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

/// What all threads of this process have computed so far.
double busy_microseconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

struct Batch {
  torch::Tensor inputs, targets;
};

template <class Net>
class Training {
 public:
  Training(accelerate::Accelerator& accelerator, Net net, Batch batch, int64_t before, std::string folder)
      : accelerator_(accelerator),
        folder_(std::move(folder)),
        adamw_(net->parameters(), torch::optim::AdamWOptions(1e-4)),
        batch_(std::move(batch)),
        prepared_(accelerator.prepare(net, adamw_)),
        before_(before),
        after_(anonymous_bytes()) {}

  void answer(std::istream& commands) {
    std::string command;
    for (int64_t steps = 0; commands >> command >> steps;) {
      if (command == "run") {
        const auto [wall, busy] = run(steps, [this] { step(); });
        std::cout << wall << ' ' << busy << std::endl;
      } else if (command == "forward") {
        const torch::NoGradGuard no_grad;
        const auto taken = run(steps, [this] { std::get<0>(prepared_)(batch_.inputs); });
        std::cout << taken.wall << ' ' << link_bytes_per_microsecond() << std::endl;
      } else if (command == "save") {
        tell_saves(steps);
      } else {
        tell_figures(steps);
      }
    }
  }

 private:
  struct Taken {
    double wall, busy;  // microseconds a step
  };

  void synchronize() const {
    if (!accelerator_.device().is_cpu()) at::accelerator::synchronizeDevice(0);
  }

  template <class Work>
  Taken run(int64_t steps, Work&& work) {
    synchronize();
    accelerator_.wait_for_everyone();
    const auto start = Clock::now();
    const double busy = busy_microseconds();
    for (int64_t i = 0; i < steps; ++i) work();
    synchronize();
    const double wall = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    return {wall / static_cast<double>(steps), (busy_microseconds() - busy) / static_cast<double>(steps)};
  }

  void step() {
    auto& [model, optimizer] = prepared_;
    optimizer.zero_grad();
    // The logits in float32 are not kept for the backward pass.
    const auto loss = [&] {
      const auto output = model(batch_.inputs);
      return torch::cross_entropy_loss(output.reshape({-1, output.size(-1)}).to(torch::kFloat), batch_.targets);
    }();
    accelerator_.backward(loss);
    optimizer.step();
  }

  /// Of plain copies from page-locked memory.
  double link_bytes_per_microsecond() const {
    if (accelerator_.device().is_cpu()) return 0;
    const int64_t bytes = int64_t{256} << 20;
    const auto host = torch::empty({bytes}, torch::TensorOptions().dtype(torch::kByte).pinned_memory(true));
    auto device = torch::empty({bytes}, torch::TensorOptions(accelerator_.device()).dtype(torch::kByte));
    device.copy_(host, true);
    synchronize();
    const auto start = Clock::now();
    for (int i = 0; i < 8; ++i) device.copy_(host, true);
    synchronize();
    return 8.0 * static_cast<double>(bytes) / std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }

  void tell_saves(int64_t times) {
    step();  // the optimizer has a state
    const auto save = [this](bool async) { accelerator_.save_state(folder_, {.async = async}); };
    save(false);
    save(true);                   // memory for its copies
    accelerator_.end_training();  // waits for it
    double saved = 0, blocked = 0, durable = 0, loaded = 0;
    int64_t bytes = 0;
    for (int64_t i = 0; i < times; ++i) {
      const int64_t written = accelerate::testing::written_bytes();
      saved += run(1, [&] { save(false); }).wall;
      bytes += accelerate::testing::written_bytes() - written;
      const auto start = Clock::now();
      blocked += run(1, [&] { save(true); }).wall;
      accelerator_.end_training();  // waits for it
      durable += std::chrono::duration<double, std::micro>(Clock::now() - start).count();
      loaded += run(1, [&] { accelerator_.load_state(folder_); }).wall;
    }
    for (const double total : {saved, blocked, durable, loaded}) std::cout << total / static_cast<double>(times) << ' ';
    std::cout << bytes / times << std::endl;
  }

  void tell_figures(int64_t steps) {
    run(2, [this] { step(); });  // gradients and optimizer state are there from now on
    auto& [model, optimizer] = prepared_;
    const auto* sharded = model.core()->sharded();
    const int64_t gathers = sharded ? sharded->gatherer().gathers() : 0;
    const int64_t written = accelerate::testing::written_bytes();
    run(steps, [this] { step(); });
    const auto per_step = [steps](int64_t now, int64_t then) {
      return static_cast<double>(now - then) / static_cast<double>(steps);
    };
    const double sent = per_step(accelerate::testing::written_bytes(), written);
    optimizer.zero_grad();
    std::cout << "parameters " << model.total_parameter_bytes() << " held " << model.local_parameter_bytes() << " before "
              << before_ << " prepared " << after_ << " between " << anonymous_bytes() << " sent " << sent;
    if (sharded) {
      int64_t largest = 0;
      for (const auto& unit : sharded->units()) largest = std::max(largest, unit->full_bytes());
      std::cout << " units " << sharded->units().size() << " largest " << largest << " peak " << sharded->gatherer().peak_bytes()
                << " gathers " << per_step(sharded->gatherer().gathers(), gathers);
    }
    if (!accelerator_.device().is_cpu()) {
      const auto memory = at::accelerator::getDeviceStats(0);
      std::cout << " allocated " << memory.allocated_bytes[0].peak << " reserved " << memory.reserved_bytes[0].peak;
    }
    std::cout << std::endl;
  }

  accelerate::Accelerator& accelerator_;
  const std::string folder_;
  torch::optim::AdamW adamw_;
  Batch batch_;
  std::tuple<accelerate::Model<typename Net::Impl>, accelerate::AcceleratedOptimizer> prepared_;
  int64_t before_, after_;
};

/// Leaves so much of the GPU's memory, as if it were smaller.
torch::Tensor ballast(const Wishes& wishes, at::Device device) {
  if (wishes.budget_mb == 0) return {};
  const auto [free, total] = at::accelerator::getMemoryInfo(device.index());
  return torch::empty({static_cast<int64_t>(free) - (wishes.budget_mb << 20)}, torch::TensorOptions(device).dtype(torch::kByte));
}

void serve(const Wishes& wishes) {
  accelerate::AcceleratorOptions options{.cpu = !wishes.on_gpu};
  const bool is_sharded = wishes.mode == "sharded" || wishes.mode == "offload";
  if (is_sharded) {
    options.fsdp =
        accelerate::FsdpOptions{.cpu_offload = wishes.mode == "offload", .state_dict_type = accelerate::StateDictType::sharded};
    options.fsdp->transformer_layer_classes = {wishes.model == "gpt" ? "GptBlock" : "Linear"};
    // As the peer's policy has it.
    if (wishes.on_gpu) options.fsdp->mixed_precision = {torch::kBFloat16, torch::kFloat};
  } else if (wishes.on_gpu) {
    options.mixed_precision = accelerate::Precision::bf16;
  }
  accelerate::Accelerator accelerator(options);
  const auto kept = ballast(wishes, accelerator.device());
  accelerate::set_seed(0);
  const int64_t before = anonymous_bytes();
  const auto on_device = [&](const torch::Tensor& tensor) { return tensor.contiguous().to(accelerator.device()); };
  if (wishes.model == "gpt") {
    const auto text = torch::randint(0, wishes.vocabulary, {wishes.rows, wishes.length + 1}, torch::kLong);
    const Batch batch = {on_device(text.narrow(1, 0, wishes.length)), on_device(text.narrow(1, 1, wishes.length).reshape({-1}))};
    // Under a budget a model is made without weights, and prepare makes them unit by unit.
    std::optional<accelerate::InitEmptyWeights> empty;
    if (wishes.budget_mb > 0 && is_sharded) empty.emplace();
    Gpt net(wishes);
    empty.reset();
    Training<Gpt>(accelerator, net, batch, before, wishes.folder).answer(std::cin);
  } else if (wishes.model == "uneven") {
    const Batch batch = {on_device(torch::randn({wishes.rows, kUneven.front()})),
                         on_device(torch::randint(0, kClasses, {wishes.rows}, torch::kLong))};
    Training<UnevenMlp>(accelerator, UnevenMlp(), batch, before, wishes.folder).answer(std::cin);
  } else {
    throw accelerate::UsageError("The model '" + wishes.model + "' is none of gpt, uneven.");
  }
}

}  // namespace

int main(int count, char** argv) {
  if (count != 11) {
    return std::fprintf(stderr,
                        "usage: shard_speed sharded|offload|ddp|plain gpt|uneven LAYERS WIDTH ROWS LENGTH VOCABULARY cpu|cuda "
                        "BUDGET_MB FOLDER\n"),
           1;
  }
  try {
    serve({.mode = argv[1],
           .model = argv[2],
           .layers = std::stoll(argv[3]),
           .width = std::stoll(argv[4]),
           .rows = std::stoll(argv[5]),
           .length = std::stoll(argv[6]),
           .vocabulary = std::stoll(argv[7]),
           .on_gpu = std::string(argv[8]) == "cuda",
           .budget_mb = std::stoll(argv[9]),
           .folder = argv[10]});
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "error: %s\n", error.what()), 1;
  }
}
