// The training loop, ours and by hand. Reads "scenario steps" lines from standard input, runs that many steps, and answers with
// microseconds a step; training_speed (Python) asks this program and the peer's, interleaved.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <map>

namespace {

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    fc1 = register_module("fc1", torch::nn::Linear(784, 512));
    fc2 = register_module("fc2", torch::nn::Linear(512, 512));
    fc3 = register_module("fc3", torch::nn::Linear(512, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) { return fc3(torch::relu(fc2(torch::relu(fc1(x))))); }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, fc3{nullptr};
};
TORCH_MODULE(Mlp);

constexpr int64_t kWidth = 256, kHeads = 4, kLength = 128, kVocabulary = 1000;

struct GptBlockImpl : torch::nn::Module {
  GptBlockImpl() {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0), length = x.size(1);
    const auto parts = qkv(norm1(x)).view({batch, length, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto attended = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + out(attended.transpose(1, 2).reshape({batch, length, kWidth}));
    return x + down(torch::gelu(up(norm2(x))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(GptBlock);

struct GptImpl : torch::nn::Module {
  GptImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    places = register_module("places", torch::nn::Embedding(kLength, kWidth));
    blocks = register_module("blocks", torch::nn::Sequential(GptBlock(), GptBlock(), GptBlock(), GptBlock()));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kVocabulary).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head(norm(blocks->forward(tokens(x) + places(torch::arange(x.size(1), torch::kLong)))));
  }
  torch::nn::Embedding tokens{nullptr}, places{nullptr};
  torch::nn::Sequential blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

torch::Tensor mlp_loss(const torch::Tensor& output, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(output, targets);
}
torch::Tensor gpt_loss(const torch::Tensor& output, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(output.reshape({-1, kVocabulary}), targets.reshape({-1}));
}

accelerate::Example mlp_data() { return {torch::randn({8192, 784}), torch::randint(0, 10, {8192}, torch::kLong)}; }
accelerate::Example gpt_data() {
  const auto text = torch::randint(0, kVocabulary, {512, kLength + 1}, torch::kLong);
  return {text.narrow(1, 0, kLength).contiguous(), text.narrow(1, 1, kLength).contiguous()};
}

using Clock = std::chrono::steady_clock;
double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// The loop as this library's users write it.
template <class Net>
struct Prepared {
  Prepared(accelerate::Accelerator& a, Net module, const accelerate::Example& all, int64_t batch_size)
      : accelerator(a),
        net(module),
        adamw(net->parameters(), torch::optim::AdamWOptions(1e-4)),
        data(accelerate::TensorDataset(all.data, all.target), {.batch_size = batch_size, .shuffle = true}),
        prepared(accelerator.prepare(net, adamw, data)) {}

  template <class Loss>
  double run(int64_t steps, Loss loss) {
    auto& [model, optimizer, loader] = prepared;
    int64_t done = 0;
    const auto start = Clock::now();
    while (true) {
      for (auto& [inputs, targets] : loader) {
        optimizer.zero_grad();
        accelerator.backward(loss(model(inputs), targets));
        optimizer.step();
        if (++done == steps) return microseconds_since(start) / static_cast<double>(steps);
      }
    }
  }

  accelerate::Accelerator& accelerator;
  Net net;
  torch::optim::AdamW adamw;
  accelerate::DataLoader<accelerate::Example> data;
  std::tuple<accelerate::Model<typename Net::Impl>, accelerate::AcceleratedOptimizer, accelerate::DataLoader<accelerate::Example>>
      prepared;
};

/// The same by hand: LibTorch, the fused kernel, batches by indexing. One process.
template <class Net>
struct ByHand {
  ByHand(Net module, const accelerate::Example& all, int64_t size)
      : net(module), batch_size(size), data(all.data), target(all.target) {
    for (auto& p : net->parameters()) {
      parameters.push_back(p);
      averages.push_back(torch::zeros_like(p));
      squares.push_back(torch::zeros_like(p));
      counts.push_back(torch::zeros({}));
    }
  }

  template <class Loss>
  double run(int64_t steps, Loss loss) {
    int64_t done = 0;
    const auto start = Clock::now();
    while (true) {
      const auto order = torch::randperm(data.size(0));
      for (int64_t at = 0; at + batch_size <= data.size(0); at += batch_size) {
        const auto indices = order.narrow(0, at, batch_size);
        const auto inputs = data.index_select(0, indices), targets = target.index_select(0, indices);
        for (auto& p : parameters) p.mutable_grad() = torch::Tensor();
        loss(net(inputs), targets).backward();
        step();
        if (++done == steps) return microseconds_since(start) / static_cast<double>(steps);
      }
    }
  }

  void step() {
    torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> gradients;
    for (auto& p : parameters) gradients.push_back(p.grad());
    torch::_foreach_add_(counts, 1);
    torch::_fused_adamw_(parameters, gradients, averages, squares, {}, counts, 1e-4, 0.9, 0.999, 1e-2, 1e-8, false, false);
  }

  Net net;
  int64_t batch_size;
  torch::Tensor data, target;
  std::vector<torch::Tensor> parameters, averages, squares, counts;
};

/// Samples that are only read. `steps` batches of 64.
double read_batches(accelerate::Accelerator& accelerator, int64_t steps, int64_t workers) {
  static std::map<int64_t, accelerate::DataLoader<accelerate::Example>> loaders;
  if (!loaders.contains(workers)) {
    accelerate::DataLoader data(
        accelerate::TensorDataset(torch::randn({100000, 32}), torch::randint(0, 10, {100000}, torch::kLong)),
        {.batch_size = 64, .shuffle = true, .num_workers = static_cast<int>(workers)});
    loaders.emplace(workers, accelerator.prepare(data));
  }
  auto& loader = loaders.at(workers);
  int64_t done = 0;
  const auto start = Clock::now();
  while (true) {
    for ([[maybe_unused]] auto& batch : loader) {
      if (++done == steps) return microseconds_since(start) / static_cast<double>(steps);
    }
  }
}

/// A model so small that what surrounds it is what is measured.
template <bool kPrepared>
double tiny(accelerate::Accelerator& accelerator, int64_t steps) {
  static torch::nn::Linear net(4, 1), wrapped_net(4, 1);
  static torch::optim::SGD sgd(net->parameters(), 0.01), wrapped_sgd(wrapped_net->parameters(), 0.01);
  static auto prepared = accelerator.prepare(wrapped_net, wrapped_sgd);
  static const auto x = torch::randn({4, 4}), y = torch::randn({4, 1});
  auto& [model, optimizer] = prepared;
  const auto start = Clock::now();
  for (int64_t i = 0; i < steps; ++i) {
    if constexpr (kPrepared) {
      optimizer.zero_grad();
      accelerator.backward(torch::mse_loss(model(x), y));
      optimizer.step();
    } else {
      sgd.zero_grad();
      torch::mse_loss(net(x), y).backward();
      sgd.step();
    }
  }
  return microseconds_since(start) / static_cast<double>(steps);
}

double peak_megabytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

}  // namespace

int main() {
  accelerate::set_seed(0);
  accelerate::Accelerator accelerator;
  std::unique_ptr<Prepared<Mlp>> mlp4, mlp64;
  std::unique_ptr<Prepared<Gpt>> gpt;
  std::unique_ptr<ByHand<Mlp>> mlp4_by_hand, mlp64_by_hand;
  std::unique_ptr<ByHand<Gpt>> gpt_by_hand;
  const auto made = [](auto& place, auto make) -> auto& {
    if (!place) place = make();
    return *place;
  };
  const std::map<std::string, std::function<double(int64_t)>> scenarios = {
      {"mlp4",
       [&](int64_t n) {
         return made(mlp4, [&] { return std::make_unique<Prepared<Mlp>>(accelerator, Mlp(), mlp_data(), 4); }).run(n, mlp_loss);
       }},
      {"mlp64",
       [&](int64_t n) {
         return made(mlp64, [&] { return std::make_unique<Prepared<Mlp>>(accelerator, Mlp(), mlp_data(), 64); }).run(n, mlp_loss);
       }},
      {"gpt",
       [&](int64_t n) {
         return made(gpt, [&] { return std::make_unique<Prepared<Gpt>>(accelerator, Gpt(), gpt_data(), 8); }).run(n, gpt_loss);
       }},
      {"mlp4_by_hand",
       [&](int64_t n) {
         return made(mlp4_by_hand, [&] { return std::make_unique<ByHand<Mlp>>(Mlp(), mlp_data(), 4); }).run(n, mlp_loss);
       }},
      {"mlp64_by_hand",
       [&](int64_t n) {
         return made(mlp64_by_hand, [&] { return std::make_unique<ByHand<Mlp>>(Mlp(), mlp_data(), 64); }).run(n, mlp_loss);
       }},
      {"gpt_by_hand",
       [&](int64_t n) {
         return made(gpt_by_hand, [&] { return std::make_unique<ByHand<Gpt>>(Gpt(), gpt_data(), 8); }).run(n, gpt_loss);
       }},
      {"tiny", [&](int64_t n) { return tiny<true>(accelerator, n); }},
      {"tiny_bare", [&](int64_t n) { return tiny<false>(accelerator, n); }},
      {"loader", [&](int64_t n) { return read_batches(accelerator, n, 0); }},
      {"loader_2_workers", [&](int64_t n) { return read_batches(accelerator, n, 2); }},
      {"peak_memory", [](int64_t) { return peak_megabytes(); }},
  };
  std::string scenario;
  for (int64_t steps = 0; std::cin >> scenario >> steps;) std::cout << scenarios.at(scenario)(steps) << std::endl;
}
