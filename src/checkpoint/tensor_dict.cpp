#include <accelerate/checkpoint/tensor_dict.h>
#include <accelerate/core/error.h>

namespace accelerate {

TensorDict::TensorDict(std::initializer_list<Item> items) {
  for (const auto& [name, tensor] : items) (*this)[name] = tensor;
}

const TensorDict::Item* TensorDict::find(std::string_view name) const {
  const auto found = positions_.find(std::string(name));
  return found == positions_.end() ? nullptr : &items_[found->second];
}

const at::Tensor& TensorDict::at(std::string_view name) const {
  if (const Item* item = find(name)) return item->second;
  throw UsageError("No tensor is named " + std::string(name) + "; the dictionary has " + std::to_string(items_.size()) +
                   " tensors.");
}

at::Tensor& TensorDict::operator[](std::string_view name) {
  const auto [found, added] = positions_.try_emplace(std::string(name), items_.size());
  if (added) items_.emplace_back(found->first, at::Tensor());
  return items_[found->second].second;
}

bool TensorDict::contains(std::string_view name) const { return find(name) != nullptr; }

TensorDict renamed(const TensorDict& tensors, const std::function<std::string(const std::string&)>& new_name) {
  TensorDict result;
  std::unordered_map<std::string, std::string> before;
  for (const auto& [name, tensor] : tensors) {
    const std::string given = new_name(name);
    const auto [other, is_new] = before.emplace(given, name);
    if (!is_new) throw UsageError("renamed: " + other->second + " and " + name + " would both be called " + given + ".");
    result[given] = tensor;
  }
  return result;
}

TensorDict renamed(const TensorDict& tensors, const std::vector<std::pair<std::string, std::string>>& prefixes) {
  return renamed(tensors, [&](const std::string& name) {
    for (const auto& [old_prefix, new_prefix] : prefixes) {
      if (name.starts_with(old_prefix)) return new_prefix + name.substr(old_prefix.size());
    }
    return name;
  });
}

}  // namespace accelerate
