#include <accelerate/checkpoint/module_state.h>
#include <accelerate/core/error.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "checkpoint/module_fit.h"
#include "checkpoint/tensor_file.h"
#include "core/escaped.h"
#include "distributed/tensor_text.h"

namespace accelerate {

using namespace detail;
namespace {

/// Python's order: a module's own parameters, its buffers, then its children.
void add_module(const torch::nn::Module& module, const std::string& prefix, TensorDict& state) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.value().defined()) state[prefix + item.key()] = item.value().detach();
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    if (item.value().defined()) state[prefix + item.key()] = item.value().detach();
  }
  for (const auto& child : module.named_children()) add_module(*child.value(), prefix + child.key() + ".", state);
}

std::string listed(const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string text = std::string("\n  ") + title + ":";
  for (const auto& name : names) text += " " + escaped(name);
  return text;
}

}  // namespace

TensorDict state_dict(const torch::nn::Module& module) {
  TensorDict state;
  add_module(module, "", state);
  return state;
}

LoadReport detail::check_fit(const torch::nn::Module& module, const TensorDict& state, const LoadOptions& options) {
  const TensorDict own = state_dict(module);
  LoadReport report;
  std::vector<std::string> misshapen;
  std::vector<std::pair<std::string, std::string>> tied;
  without_tied(own, &tied);
  const auto comes_with_another = [&](const std::string& name) {
    return std::any_of(tied.begin(), tied.end(),
                       [&](const auto& pair) { return pair.first == name && state.contains(pair.second); });
  };
  for (const auto& [name, tensor] : own) {
    if (!state.contains(name)) {
      // Files hold a weight once that modules share.
      if (!comes_with_another(name)) report.missing.push_back(name);
    } else if (state.at(name).sizes() != tensor.sizes()) {
      misshapen.push_back(name + " (" + describe(state.at(name)) + " given, " + describe(tensor) + " in the module)");
    }
  }
  for (const auto& item : state) {
    if (!own.contains(item.first)) report.unexpected.push_back(item.first);
  }
  const bool differs = options.strict && !(report.missing.empty() && report.unexpected.empty());
  if (differs || !misshapen.empty()) {
    throw CheckpointError("The tensors do not fit the module " + module.name() + "." +
                          (options.strict ? listed("missing", report.missing) : "") +
                          (options.strict ? listed("unexpected", report.unexpected) : "") + listed("shape mismatch", misshapen));
  }
  return report;
}

LoadReport load_state_dict(torch::nn::Module& module, const TensorDict& state, const LoadOptions& options) {
  LoadReport report = check_fit(module, state, options);
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : state_dict(module)) {
    // They share the module's memory, so copying into them loads it.
    if (state.contains(name)) at::Tensor(tensor).copy_(state.at(name));
  }
  return report;
}

}  // namespace accelerate
