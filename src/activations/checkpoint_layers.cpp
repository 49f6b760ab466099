#include "activations/checkpoint_layers.h"

#include <accelerate/core/error.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "core/class_name.h"
#include "rendezvous/torch_private_access.h"

namespace accelerate::detail {
namespace {

using torch::nn::AnyModulePlaceholder;
using torch::nn::AnyValue;

/// The tensors in a value whose type is known at run time alone. Those in values of other types stay where they are.
void find_tensors_in(AnyValue& value, Leaves& leaves) {
  using at::Tensor;
  const auto find = [&]<class T>(std::type_identity<T>) {
    if (T* found = value.try_get<T>()) collect(*found, leaves);
  };
  find(std::type_identity<Tensor>());
  find(std::type_identity<std::vector<Tensor>>());
  find(std::type_identity<std::tuple<Tensor, Tensor>>());
  find(std::type_identity<std::tuple<Tensor, Tensor, Tensor>>());
  find(std::type_identity<std::tuple<Tensor, std::tuple<Tensor, Tensor>>>());  // what an LSTM returns
}

class LayerCall final : public RepeatableCall {
 public:
  LayerCall(std::shared_ptr<AnyModulePlaceholder> layer, std::vector<AnyValue> inputs)
      : layer_(std::move(layer)), inputs_(std::move(inputs)) {}

  std::vector<at::Tensor> take_tensors() override {
    std::vector<at::Tensor> tensors;
    for (at::Tensor* tensor : tensors_of(inputs_)) tensors.push_back(std::exchange(*tensor, at::Tensor()));
    return tensors;
  }

  void repeat(const std::vector<at::Tensor>& tensors) override {
    auto inputs = inputs_;
    const auto places = tensors_of(inputs);
    for (size_t i = 0; i < places.size(); ++i) *places[i] = tensors[i];
    layer_->forward(std::move(inputs));
  }

  std::string name() const override { return "A checkpointed layer, " + layer_->ptr()->name() + ","; }

 private:
  static std::vector<at::Tensor*> tensors_of(std::vector<AnyValue>& inputs) {
    Leaves leaves;
    for (auto& input : inputs) find_tensors_in(input, leaves);
    return std::move(leaves.tensors);
  }

  std::shared_ptr<AnyModulePlaceholder> layer_;
  std::vector<AnyValue> inputs_;
};

/// Stands in a Sequential for a layer. Its type is its own: who casts it to that of the layer must be told that it is none.
class CheckpointedLayer final : public AnyModulePlaceholder {
 public:
  CheckpointedLayer(std::shared_ptr<AnyModulePlaceholder> layer, const CheckpointOptions& options)
      : AnyModulePlaceholder(typeid(CheckpointedLayer)), layer_(std::move(layer)), options_(options) {}

  AnyValue forward(std::vector<AnyValue>&& arguments) override {
    if (!records_graph()) return layer_->forward(std::move(arguments));
    CheckpointedForward forward(std::make_unique<LayerCall>(layer_, arguments), options_);
    AnyValue result = layer_->forward(std::move(arguments));
    forward.finish();
    return result;
  }

  std::shared_ptr<torch::nn::Module> ptr() override { return layer_->ptr(); }

  std::unique_ptr<AnyModulePlaceholder> copy() const override {
    return std::make_unique<CheckpointedLayer>(layer_->copy(), options_);
  }

  std::unique_ptr<AnyModulePlaceholder> clone_module(std::optional<c10::Device> device) const override {
    return std::make_unique<CheckpointedLayer>(layer_->clone_module(device), options_);
  }

 private:
  std::shared_ptr<AnyModulePlaceholder> layer_;
  CheckpointOptions options_;
};

/// All modules, and which of them are children of a Sequential.
struct Layers {
  explicit Layers(torch::nn::Module& root) {
    root.apply([this](const std::string& name, torch::nn::Module& module) {
      named.emplace_back(name, &module);
      auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
      if (sequential == nullptr) return;
      for (auto& child : *sequential) in_sequentials.push_back(&child);
    });
  }

  std::vector<std::pair<std::string, torch::nn::Module*>> named;
  std::vector<torch::nn::AnyModule*> in_sequentials;
};

[[noreturn]] void refuse_unknown_class(const std::string& name, const Layers& layers) {
  std::set<std::string> known;
  for (const auto& [path, module] : layers.named) known.insert(module->name());
  std::string list;
  for (const auto& each : known) list += (list.empty() ? "" : ", ") + each;
  throw UsageError("Activation checkpointing was asked for layers of class " + name +
                   ", and the model has none. Its classes: " + list + ".");
}

[[noreturn]] void refuse_own_call(const std::string& name, const std::string& path, const std::string& owner) {
  const auto member = path.substr(path.rfind('.') + 1);
  const bool is_number = std::all_of(member.begin(), member.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::string variable = member.empty() || is_number ? "block" : member;
  throw UsageError("Activation checkpointing was asked for layers of class " + name + ". The model has one at '" + path +
                   "', which no torch::nn::Sequential calls but the forward of " + owner +
                   ". Write there\n    x = accelerate::checkpoint(" + variable + ", x);\nor make it a child of a Sequential.");
}

/// Every class that was asked for is that of some child of a Sequential.
void expect_reachable(const std::string& written, const Layers& layers) {
  const auto& children = layers.in_sequentials;
  const auto is_meant = [&](torch::nn::AnyModule* child) { return names_class(written, child->ptr()->name()); };
  if (std::any_of(children.begin(), children.end(), is_meant)) return;
  const auto own = std::find_if(layers.named.begin(), layers.named.end(),
                                [&](const auto& each) { return names_class(written, each.second->name()); });
  if (own == layers.named.end()) refuse_unknown_class(written, layers);
  const auto& path = own->first;
  const auto dot = path.rfind('.');
  const auto parent = dot == std::string::npos ? "" : path.substr(0, dot);
  const auto owner =
      std::find_if(layers.named.begin(), layers.named.end(), [&](const auto& each) { return each.first == parent; });
  refuse_own_call(written, path, owner->second->name());
}

}  // namespace

void checkpoint_layers(torch::nn::Module& module, const std::vector<std::string>& classes, const CheckpointOptions& options) {
  const Layers layers(module);
  for (const auto& written : classes) expect_reachable(written, layers);
  for (torch::nn::AnyModule* child : layers.in_sequentials) {
    auto& content = torch_private::content_of(*child);
    if (!any_names_class(classes, content->ptr()->name())) continue;
    if (dynamic_cast<CheckpointedLayer*>(content.get()) != nullptr) continue;
    content = std::make_unique<CheckpointedLayer>(std::shared_ptr<AnyModulePlaceholder>(std::move(content)), options);
  }
}

}  // namespace accelerate::detail
