#include "conformance/checkpoint_cases.h"

#include <fstream>
#include <map>

#include "conformance/golden.h"

namespace golden {
namespace {

using accelerate::StateDict;
using accelerate::Value;
using nlohmann::json;

std::shared_ptr<torch::optim::Optimizer> recipe_optimizer(const json& recipe, const std::vector<at::Tensor>& parameters) {
  namespace optim = torch::optim;
  const std::string name = recipe.at("optimizer");
  const json& a = recipe.at("optimizer_args");
  const double lr = a.at("lr");
  if (name == "AdamW") {
    return std::make_shared<optim::AdamW>(parameters, optim::AdamWOptions(lr).weight_decay(a.value("weight_decay", 0.01)));
  }
  if (name == "Adam") return std::make_shared<optim::Adam>(parameters, optim::AdamOptions(lr).amsgrad(a.value("amsgrad", false)));
  if (name == "SGD") {
    return std::make_shared<optim::SGD>(
        parameters, optim::SGDOptions(lr).momentum(a.value("momentum", 0.0)).nesterov(a.value("nesterov", false)));
  }
  if (name == "RMSprop") {
    return std::make_shared<optim::RMSprop>(
        parameters, optim::RMSpropOptions(lr).momentum(a.value("momentum", 0.0)).centered(a.value("centered", false)));
  }
  throw std::runtime_error("unknown optimizer " + name);
}

std::shared_ptr<accelerate::LRScheduler> recipe_scheduler(const json& recipe, torch::optim::Optimizer& optimizer) {
  using namespace accelerate;
  if (recipe.at("scheduler").is_null()) return nullptr;
  const std::string name = recipe.at("scheduler");
  const json& a = recipe.at("scheduler_args");
  if (name == "StepLR") {
    return std::make_shared<StepLR>(optimizer, StepLROptions{.step_size = a.at("step_size"), .gamma = a.at("gamma")});
  }
  if (name == "CosineAnnealingLR") {
    return std::make_shared<CosineAnnealingLR>(optimizer, CosineAnnealingLROptions{.T_max = a.at("T_max")});
  }
  if (name == "LinearLR") {
    return std::make_shared<LinearLR>(optimizer,
                                      LinearLROptions{.start_factor = a.at("start_factor"), .total_iters = a.at("total_iters")});
  }
  if (name == "OneCycleLR") {
    return std::make_shared<OneCycleLR>(
        optimizer, OneCycleLROptions{.max_lr = {a.at("max_lr").get<double>()}, .total_steps = a.at("total_steps")});
  }
  throw std::runtime_error("unknown scheduler " + name);
}

std::string tensor_difference(const at::Tensor& ours, const at::Tensor& theirs, double tolerance) {
  if (ours.scalar_type() != theirs.scalar_type() || ours.sizes() != theirs.sizes()) return "another dtype or shape";
  if (ours.numel() == 0) return "";
  const auto a = ours.to(at::kComplexDouble), b = theirs.to(at::kComplexDouble);
  const auto same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
  if (same.all().item<bool>()) return "";
  const double off = (a - b).abs().max().item<double>(), largest = b.abs().max().item<double>();
  return off <= tolerance * std::max(1.0, largest) ? "" : "off by " + std::to_string(off);
}

std::string list_difference(const Value::List& ours, const Value::List& theirs, double tolerance) {
  if (ours.size() != theirs.size()) return "another length";
  for (size_t i = 0; i < ours.size(); ++i) {
    const auto found = difference(ours[i], theirs[i], tolerance);
    if (!found.empty()) return "/" + std::to_string(i) + ": " + found;
  }
  return "";
}

std::string dict_difference(const StateDict& ours, const StateDict& theirs, double tolerance) {
  if (ours.size() != theirs.size()) return "other keys: " + to_string(Value(ours));
  if (!ours.empty() && ours.is_numbered() != theirs.is_numbered()) return "keys that are text in one and numbers in the other";
  for (auto a = ours.begin(), b = theirs.begin(); a != ours.end(); ++a, ++b) {
    if (a->first != b->first) return a->first + " where " + b->first + " was expected";
    const auto found = difference(a->second, b->second, tolerance);
    if (!found.empty()) return "/" + a->first + ": " + found;
  }
  return "";
}

void add_layout(const Value& value, const std::string& where, std::map<const void*, size_t>& storages, json& layout) {
  switch (value.kind()) {
    case Value::Kind::tensor: {
      const auto& tensor = value.as<at::Tensor>();
      const auto number = storages.emplace(tensor.storage().unsafeGetStorageImpl(), storages.size()).first->second;
      layout.push_back({{"path", where},
                        {"stride", tensor.strides().vec()},
                        {"offset", tensor.storage_offset()},
                        {"storage", number},
                        {"storage_bytes", tensor.storage().nbytes()}});
      return;
    }
    case Value::Kind::list:
    case Value::Kind::tuple: {
      const auto& items = value.kind() == Value::Kind::list ? value.as<Value::List>() : value.as<Value::Tuple>().items;
      for (size_t i = 0; i < items.size(); ++i) add_layout(items[i], where + "/" + std::to_string(i), storages, layout);
      return;
    }
    case Value::Kind::dict:
      for (const auto& [name, item] : value.as<StateDict>()) add_layout(item, where + "/" + name, storages, layout);
      return;
    default:
      return;
  }
}

}  // namespace

at::Tensor tensor(const json& node) {
  json tagged = node;
  tagged["t"] = "tensor";
  return value_of(tagged).get<at::Tensor>();
}

std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string difference(const Value& ours, const Value& theirs, double tolerance) {
  if (ours.kind() != theirs.kind()) return to_string(ours) + " instead of " + to_string(theirs);
  switch (ours.kind()) {
    case Value::Kind::tensor:
      return tensor_difference(ours.as<at::Tensor>(), theirs.as<at::Tensor>(), tolerance);
    case Value::Kind::list:
      return list_difference(ours.as<Value::List>(), theirs.as<Value::List>(), tolerance);
    case Value::Kind::tuple:
      return list_difference(ours.as<Value::Tuple>().items, theirs.as<Value::Tuple>().items, tolerance);
    case Value::Kind::dict:
      return dict_difference(ours.as<StateDict>(), theirs.as<StateDict>(), tolerance);
    default:
      return ours == theirs ? "" : to_string(ours) + " instead of " + to_string(theirs);
  }
}

json layout_of(const Value& value) {
  std::map<const void*, size_t> storages;
  json layout = json::array();
  add_layout(value, "", storages, layout);
  return layout;
}

RecipeNet::RecipeNet(int64_t width) : Module("Net"), fc1(4, width), norm(width) {
  register_module("fc1", fc1);
  register_module("norm", norm);
  fc2 = register_module("fc2", torch::nn::Linear(torch::nn::LinearOptions(width, 2).bias(false)));
}

at::Tensor RecipeNet::forward(const at::Tensor& x) { return fc2(torch::tanh(norm(fc1(x)))); }

StateDict RecipeCounter::state_dict() const {
  return {{"count", count},
          {"name", "counter " + std::to_string(count)},
          {"values", torch::arange(static_cast<float>(count), static_cast<float>(count + 3))},
          {"nested", StateDict{{"flag", true}, {"list", Value::List{1, 2.5, nullptr}}}}};
}

RecipeRun::RecipeRun(const json& data, int64_t seed)
    : accelerator({.timeout = std::chrono::seconds(60)}), data_(data), x_(tensor(data.at("x"))), y_(tensor(data.at("y"))) {
  const json& recipe = data.at("recipe");
  accelerate::set_seed(seed);
  for (int i = 0; i < recipe.value("models", 1); ++i)
    nets_.push_back(std::make_shared<RecipeNet>(recipe.at("width").get<int64_t>()));
  torch::rand({accelerator.process_index() + 1});  // so that processes have other random numbers
  for (const auto& net : nets_) {
    models_.push_back(accelerator.prepare(net));
    inner_optimizers_.push_back(recipe_optimizer(recipe, net->parameters()));
    optimizers_.push_back(accelerator.prepare(inner_optimizers_.back()));
  }
  inner_scheduler_ = recipe_scheduler(recipe, *inner_optimizers_.front());
  if (inner_scheduler_) accelerator.prepare(inner_scheduler_);
  for (int64_t i = 0; i < recipe.at("custom").get<int64_t>(); ++i) {
    counters_.push_back(std::make_unique<RecipeCounter>(RecipeCounter{i}));
    accelerator.register_for_checkpointing(*counters_.back());
  }
}

double RecipeRun::step(int64_t number) {
  const int64_t rows = data_.at("rows_per_step");
  const int64_t begin = (number * accelerator.num_processes() + accelerator.process_index()) * rows;
  double sum = 0;
  for (size_t i = 0; i < models_.size(); ++i) {
    optimizers_[i].zero_grad();
    const auto loss = torch::mse_loss(models_[i](x_.slice(0, begin, begin + rows)), y_.slice(0, begin, begin + rows));
    accelerator.backward(loss);
    optimizers_[i].step();
    sum += loss.item<double>();
  }
  if (inner_scheduler_) inner_scheduler_->step();
  for (const auto& counter : counters_) ++counter->count;
  return sum;
}

std::vector<double> RecipeRun::learning_rates() const {
  std::vector<double> rates;
  for (const auto& optimizer : inner_optimizers_) rates.push_back(optimizer->param_groups().front().options().get_lr());
  return rates;
}

}  // namespace golden
