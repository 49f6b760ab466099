// Mistakes with modules, loaders and structs. The compiler must answer each with the sentence before it: see mistakes.py.
#include <accelerate/accelerate.h>
#include <torch/data/dataloader/base.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

struct Net : torch::nn::Module {};
using TorchLoader = torch::data::DataLoaderBase<int, int, int>;

struct WithConstructor {
  WithConstructor() = default;
  at::Tensor inputs;
};
struct Named {
  at::Tensor inputs;
};
struct Derived : Named {
  at::Tensor targets;
};

void mistakes(accelerate::Accelerator& accelerator, torch::optim::SGD& sgd, std::unique_ptr<TorchLoader>& torch_loader) {
  Net net;
  // expect: prepare was given a module by value: pass the holder
  accelerator.prepare(net);
  // expect: prepare was given a loader of torch::data: wrap its dataset
  accelerator.prepare(sgd, torch_loader);
  // expect: prepare was given a std::unique_ptr, and shares ownership
  accelerator.prepare(std::make_unique<Net>());
  // expect: this argument is none of them
  accelerator.prepare(3);
  // expect: an optimizer or scheduler must outlive what is prepared
  accelerator.prepare(torch::optim::SGD(std::vector<at::Tensor>(), 1));
  // expect: a struct with constructors, private members or virtual
  accelerator.gather(WithConstructor());
  // expect: a struct with a base class cannot be decomposed
  accelerator.gather(Derived());
  // expect: this type cannot hold a tensor: send text and numbers
  accelerator.gather(1.0);
  // expect: gather_for_metrics takes tensors, and numbers, text or
  accelerator.gather_for_metrics(1.0);
  // expect: this type cannot be formatted: give numbers, text, paths
  accelerator.print("{}", WithConstructor());
}

void options() {
  // expect: has no non-static data member named 'mixed_precission'
  const accelerate::AcceleratorOptions misspelt{.mixed_precission = {}};
}

void batches(std::vector<Named> samples) {
  const auto collate = [](std::vector<Named>) { return std::vector<WithConstructor>(); };
  // expect: a struct with constructors, private members or virtual
  accelerate::DataLoader loader(samples, collate);
  // expect: a sample must hold only tensors (a struct)
  accelerate::DataLoader odd{std::vector<WithConstructor>()};
}

void checkpoints(const accelerate::Model<torch::nn::LinearImpl>& model, const at::Tensor& x) {
  // expect: a prepared model is not checkpointed as a whole
  accelerate::checkpoint(model, x);
  // expect: an input of a checkpointed function must be copyable
  accelerate::checkpoint([](const at::Tensor& y, const std::unique_ptr<int>&) { return y; }, x, std::make_unique<int>(1));
}

// And what is right stays right.
void right(accelerate::Accelerator& accelerator, torch::optim::SGD& sgd, const std::shared_ptr<Net>& net) {
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.prepare({.device_placement = {true, true}}, torch::nn::Linear(1, 1), sgd);
  accelerator.prepare(accelerate::PrepareOptions{}, net);
  accelerator.prepare(net, std::source_location::current());
  accelerator.gather(std::vector<Named>());
  accelerator.print("{} {:.3f}", at::Tensor(), at::Tensor());
}
