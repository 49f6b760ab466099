#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accelerate {

/// Tensors by name, in order: the weights of a model, the content of a file.
class TensorDict {
 public:
  using Item = std::pair<std::string, at::Tensor>;
  using mapped_type = at::Tensor;
  using key_type = std::string;
  using value_type = Item;

  TensorDict() = default;
  TensorDict(std::initializer_list<Item> items);

  /// The tensor `name`; UsageError when there is none.
  const at::Tensor& at(std::string_view name) const;
  /// The tensor `name`, made undefined when there is none.
  at::Tensor& operator[](std::string_view name);
  bool contains(std::string_view name) const;
  size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  const Item* find(std::string_view name) const;

  std::vector<Item> items_;
  std::unordered_map<std::string, size_t> positions_;  // models have thousands of tensors
};

/// The same tensors, in the same order, under other names: for weights of a model whose layers were renamed since. A name that
/// begins with the first of a pair begins with the second instead; the first pair that fits counts.
///
///   load_state_dict(*net, renamed(load_file("old.safetensors"), {{"encoder.", "body."}, {"classifier.", "head."}}));
///
/// UsageError when two tensors would have the same name.
TensorDict renamed(const TensorDict& tensors, const std::vector<std::pair<std::string, std::string>>& prefixes);
/// The same with the names that `new_name` gives.
TensorDict renamed(const TensorDict& tensors, const std::function<std::string(const std::string&)>& new_name);

}  // namespace accelerate
