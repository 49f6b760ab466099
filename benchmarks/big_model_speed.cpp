// How fast is a model whose weights are not in memory? One measurement a run, in seconds, so that a peer can take turns:
//   big_model_speed CHECKPOINT WIDTH DEPTH resident|mapped|disk|mmap PASSES   prints "load <s>" and one "forward <s>" a pass
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    up = register_module("up", torch::nn::Linear(torch::nn::LinearOptions(width, 4 * width).bias(false)));
    down = register_module("down", torch::nn::Linear(torch::nn::LinearOptions(4 * width, width).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::relu(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};

struct TowerImpl : torch::nn::Module {
  TowerImpl(int64_t width, int64_t depth) {
    for (int64_t i = 0; i < depth; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<BlockImpl>(width)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks) x = block->forward(x);
    return x;
  }
  std::vector<std::shared_ptr<BlockImpl>> blocks;
};
TORCH_MODULE(Tower);

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

int main(int, char** argv) {
  const int64_t width = std::stoll(argv[2]), depth = std::stoll(argv[3]);
  const std::string mode = argv[4];
  const c10::InferenceMode inference;
  const auto input = torch::full({1, width}, 0.01, torch::kBFloat16);
  const auto tower = [&] {
    const accelerate::InitEmptyWeights empty;
    return Tower(width, depth);
  }();
  const double begin = now();
  const auto model =
      accelerate::load_checkpoint_and_dispatch(tower, argv[1],
                                               {.device_map = mode == "resident" || mode == "mapped" ? "cpu" : "disk",
                                                .dtype = torch::kBFloat16,
                                                .mmap = mode == "mapped" || mode == "mmap"});
  if (mode == "mapped") {  // what is mapped is read
    for (const auto& parameter : tower->parameters()) parameter.detach().view(torch::kByte).flatten().slice(0, 0, {}, 4096).sum();
  }
  std::printf("load %.6f\n", now() - begin);
  for (int pass = 0; pass < std::stoi(argv[5]); ++pass) {
    const double start = now();
    const double sum = model(input).sum().item<double>();
    std::printf("forward %.6f\n", now() - start);
    if (pass == 0) std::printf("sum %.9g\n", sum);
  }
  std::printf("peak %.1f MB\n", static_cast<double>(model.offload_counts().peak_bytes) / 1e6);
}
