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
  throw UsageError("There is no tensor " + std::string(name) + " among the " + std::to_string(items_.size()) +
                   " of this dictionary.");
}

at::Tensor& TensorDict::operator[](std::string_view name) {
  const auto [found, added] = positions_.try_emplace(std::string(name), items_.size());
  if (added) items_.emplace_back(found->first, at::Tensor());
  return items_[found->second].second;
}

bool TensorDict::contains(std::string_view name) const { return find(name) != nullptr; }

}  // namespace accelerate
