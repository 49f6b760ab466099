#include <accelerate/core/error.h>
#include <accelerate/data/gather_for_metrics.h>

namespace accelerate::detail {

std::optional<int64_t> first_seen_rows(const ActiveLoaders& loaders) {
  // 0: the last batch came out even. -1: nobody knows how many samples there are, so nobody knows which are repetitions.
  if (!loaders.end_of_dataloader() || loaders.remainder() <= 0) return std::nullopt;
  return loaders.remainder();
}

void keep_rows(const Leaves& leaves, std::optional<int64_t> rows) {
  if (!rows) return;
  for (auto* tensor : leaves.tensors) {
    if (tensor->dim() > 0 && tensor->size(0) > *rows) *tensor = tensor->narrow(0, 0, *rows);
  }
}

Value keep_items(Value list, std::optional<int64_t> rows) {
  auto& items = list.as<Value::List>();
  if (rows && static_cast<size_t>(*rows) < items.size()) items.resize(static_cast<size_t>(*rows));
  return list;
}

void not_in_a_list(const std::string& what) {
  throw UsageError("gather_for_metrics takes tensors or a vector, but was given " + what +
                   ": put objects into a std::vector, one for each sample.");
}

}  // namespace accelerate::detail
