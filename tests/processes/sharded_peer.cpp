// Saves and loads a sharded run on any number of processes, and tells its weights and the state of its optimizer in numbers that
// differ when any bit does. The model is that of sharded_peer.py.
//
//   sharded_peer KIND train FOLDER    trains two steps and saves FOLDER
//   sharded_peer KIND load FROM TO    loads FROM and saves what it has as TO
//
// KIND is shards, whole (a sharded model that is saved whole) or plain (not sharded).
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "sharding/sharded_optimizer_state.h"

namespace {

/// A layer whose weight is another's.
struct Borrower : torch::nn::Module {
  explicit Borrower(const at::Tensor& lent) : weight(register_parameter("weight", lent)) {}
  at::Tensor weight;
};

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(5, 7))), second(register_module("second", torch::nn::Linear(7, 5))) {
    third = register_module("third", std::make_shared<Borrower>(first->weight));
    scale = register_buffer("scale", torch::full({1}, 0.5));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(second(torch::tanh(first(x))), third->weight) * scale; }
  torch::nn::Linear first, second;
  std::shared_ptr<Borrower> third;
  at::Tensor scale;
};
TORCH_MODULE(Net);

void print_numbers(const std::string& name, const at::Tensor& tensor) {
  const auto bits = tensor.detach().reshape({-1}).contiguous().view(torch::kInt).to(torch::kLong);
  const auto sum = (bits * (torch::arange(bits.numel()) + 1)).sum().item<int64_t>();
  std::printf("figure %s %lld\n", name.c_str(), static_cast<long long>(sum));
}

std::optional<accelerate::FsdpOptions> options_of(const std::string& kind, int processes) {
  if (kind == "plain") return std::nullopt;
  return accelerate::FsdpOptions{
      .transformer_layer_classes = {"Linear"},
      .cpu_offload = processes == 1,  // one rank has nobody to share with
      .state_dict_type = kind == "whole" ? accelerate::StateDictType::full : accelerate::StateDictType::sharded};
}

int run(const std::string& kind, const std::string& act, const std::string& folder, const std::string& to) {
  const char* ranks = std::getenv("WORLD_SIZE");
  accelerate::Accelerator accelerator({.fsdp = options_of(kind, ranks == nullptr ? 1 : std::atoi(ranks))});
  torch::manual_seed(act == "train" ? 0 : 1);
  Net net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(act == "train" ? 0.02 : 0.5));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  if (act == "load") accelerator.load_state(folder);
  for (int step = 0; act == "train" && step < 2; ++step) {
    accelerator.backward(model(torch::arange(10.0).reshape({2, 5}) / (3 + accelerator.process_index())).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  accelerator.save_state(act == "train" ? folder : to);
  const auto weights = accelerator.get_state_dict(model);
  auto state = accelerate::state_dict(optimizer.optimizer());
  if (const auto* sharded = model.core()->sharded())
    state = gather_optimizer_state(*sharded, optimizer.optimizer(), std::move(state), accelerator.is_main_process());
  if (!accelerator.is_main_process()) return 0;
  for (const auto& [name, tensor] : weights) print_numbers(name, tensor);
  const std::vector<std::string> names = {"first.weight", "first.bias", "second.weight", "second.bias"};
  for (size_t i = 0; i < names.size(); ++i) {
    for (const auto& [field, value] : state.at("state")[std::to_string(i)].as<accelerate::StateDict>())
      print_numbers(names[i] + "." + field, value.as<at::Tensor>());
  }
  std::printf("figure lr %lld\n",
              std::llround(static_cast<torch::optim::AdamWOptions&>(adamw.param_groups()[0].options()).lr() * 1e9));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  return run(argv[1], argv[2], argv[3], argc > 4 ? argv[4] : "");
}
