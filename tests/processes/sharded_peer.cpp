// Saves and loads a sharded run on any number of processes, and tells its weights and the state of its optimizer in numbers that
// differ when any bit does. The model is that of sharded_peer.py.
//
//   sharded_peer KIND train FOLDER    trains two steps and saves FOLDER
//   sharded_peer KIND load FROM TO    loads FROM and saves what it has as TO
//   sharded_peer KIND stop PROJECT    takes four steps, with a checkpoint after every second one
//   sharded_peer KIND kill PROJECT    the same, and its last rank is killed in the backward pass of the sixth
//   sharded_peer KIND resume PROJECT  loads the newest checkpoint and takes what is left of eight steps
//
// KIND is shards, whole (a sharded model that is saved whole) or plain (not sharded).
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

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

/// What the main process has, in numbers.
int tell(accelerate::Accelerator& accelerator, const accelerate::Model<NetImpl>& model,
         const accelerate::AcceleratedOptimizer& optimizer, const torch::optim::AdamW& adamw) {
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
              std::llround(static_cast<const torch::optim::AdamWOptions&>(adamw.param_groups()[0].options()).lr() * 1e9));
  return 0;
}

/// Takes the steps from `begin` to `end`; `saves`, after every second one. `dies`: this rank is killed in the last backward pass.
void train(accelerate::Accelerator& accelerator, accelerate::Model<NetImpl>& model, accelerate::AcceleratedOptimizer& optimizer,
           int begin, int end, bool saves, bool dies = false) {
  for (int step = begin; step < end; ++step) {
    auto predicted = model(torch::arange(10.0).reshape({2, 5}) / (3 + step % 3 + accelerator.process_index()));
    if (dies && step + 1 == end) predicted.register_hook([](const at::Tensor&) { std::raise(SIGKILL); });
    accelerator.backward(predicted.square().mean());
    optimizer.step();
    optimizer.zero_grad();
    if (step % 2 == 1 && saves) accelerator.save_state();
  }
}

/// How many steps were taken before the newest checkpoint, which is loaded.
int resume(accelerate::Accelerator& accelerator) {
  const auto loaded = accelerator.load_state();
  if (!loaded) return 0;
  const std::string name = std::filesystem::path(*loaded).filename();
  return 2 * (std::stoi(name.substr(name.find('_') + 1)) + 1);
}

int run(const std::string& kind, const std::string& act, const std::string& folder, const std::string& to) {
  const char* ranks = std::getenv("WORLD_SIZE");
  const bool is_project = act == "stop" || act == "kill" || act == "resume";
  accelerate::Accelerator accelerator(
      {.project = {.project_dir = is_project ? folder : "", .automatic_checkpoint_naming = is_project},
       .fsdp = options_of(kind, ranks == nullptr ? 1 : std::atoi(ranks))});
  const bool begins = act == "train" || act == "stop" || act == "kill";
  torch::manual_seed(begins ? 0 : 1);
  Net net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(begins ? 0.02 : 0.5));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  if (act == "load") accelerator.load_state(folder);
  if (act == "train") train(accelerator, model, optimizer, 0, 2, false);
  if (act == "stop") train(accelerator, model, optimizer, 0, 4, true);
  if (act == "kill") train(accelerator, model, optimizer, 0, 6, true, accelerator.is_last_process());
  if (act == "resume") {
    const int taken = resume(accelerator);
    if (accelerator.is_main_process()) std::printf("figure taken %d\n", taken);
    train(accelerator, model, optimizer, taken, 8, true);
  }
  if (!is_project) accelerator.save_state(act == "train" ? folder : to);
  return tell(accelerator, model, optimizer, adamw);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  return run(argv[1], argv[2], argv[3], argc > 4 ? argv[4] : "");
}
