#include "residency/init_log.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <utility>

#include "residency/interception.h"

namespace accelerate::detail {
namespace {

/// What a storage without bytes has for an allocator: it is never replaced, and leads back to the log.
class LogRecord final : public c10::Allocator {
 public:
  explicit LogRecord(std::shared_ptr<InitLog> owner) : log(std::move(owner)) {}
  const std::shared_ptr<InitLog> log;

  c10::DataPtr allocate(size_t) override { return {nullptr, c10::Device(c10::kMeta)}; }
  void copy_data(void*, const void*, size_t) const override {}
};

void drop_log_record(void* record) { delete static_cast<LogRecord*>(record); }

LogRecord* log_record_of(const at::TensorBase& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return nullptr;
  return dynamic_cast<LogRecord*>(tensor.storage().unsafeGetStorageImpl()->allocator());
}

void attach(const at::Tensor& tensor, std::shared_ptr<InitLog> log) {
  if (log_record_of(tensor) || !tensor.is_meta() || !tensor.has_storage()) return;
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  auto* record = new LogRecord(std::move(log));
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, record, &drop_log_record, c10::Device(c10::kMeta)));
  storage->set_allocator(record);
}

}  // namespace

InitLog::InitLog() {
  const c10::impl::ExcludeDispatchKeyGuard seen(kKey);
  stand_in_ = at::empty({0});
}

std::shared_ptr<InitLog> InitLog::of(const at::TensorBase& tensor) {
  const LogRecord* record = log_record_of(tensor);
  return record ? record->log : nullptr;
}

int InitLog::id_of(const at::Tensor& tensor) {
  const auto [found, fresh] = ids_.try_emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(tensors_.size()));
  if (!fresh) return found->second;
  tensors_.emplace_back(tensor.getIntrusivePtr());
  attach(tensor, shared_from_this());
  const auto storage = tensor.storage().getWeakStorageImpl();
  const auto [place, unseen] =
      storage_ids_.try_emplace(tensor.storage().unsafeGetStorageImpl(), static_cast<int>(storages_.size()));
  if (unseen) storages_.push_back(storage);
  storage_of_.push_back(place->second);
  return found->second;
}

void InitLog::add(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments, std::span<const c10::IValue> results) {
  Entry entry{op, {}, {}, {}, {}};
  const auto& schema = op.schema();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    entry.arguments.push_back(map_tensors(arguments[i], [&](const at::Tensor& tensor) {
      const bool known = knows(tensor);
      entry.inputs.push_back(known ? id_of(tensor) : -1);
      if (known && alias && alias->isWrite()) entry.changes.push_back(storage_of_[static_cast<size_t>(entry.inputs.back())]);
      // Somebody may change it before it is needed.
      return known ? stand_in_ : at::clone(tensor);
    }));
  }
  for (const auto& result : results) {
    visit_tensors(result, [&](const at::Tensor& tensor) {
      entry.outputs.push_back(id_of(tensor));
      entry.changes.push_back(storage_of_[static_cast<size_t>(entry.outputs.back())]);
    });
  }
  entries_.push_back(std::move(entry));
}

std::vector<const InitLog::Entry*> InitLog::entries_behind(const std::vector<int>& ids) const {
  std::unordered_set<int> storages;
  for (const int id : ids) storages.insert(storage_of_[static_cast<size_t>(id)]);
  std::vector<const Entry*> entries;
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (std::none_of(entry->changes.begin(), entry->changes.end(), [&](int id) { return storages.contains(id); })) continue;
    entries.push_back(&*entry);
    for (const int input : entry->inputs) {
      if (input >= 0) storages.insert(storage_of_[static_cast<size_t>(input)]);
    }
  }
  std::reverse(entries.begin(), entries.end());
  return entries;
}

void InitLog::run_again(const Entry& entry, std::unordered_map<int, at::Tensor>& made) const {
  torch::jit::Stack stack;
  size_t input = 0, output = 0;
  for (const auto& argument : entry.arguments) {
    stack.push_back(map_tensors(argument, [&](const at::Tensor& tensor) {
      const int id = entry.inputs.at(input++);
      return id < 0 ? tensor : made.at(id);
    }));
  }
  entry.op.callBoxed(&stack);
  for (const auto& result : stack) {
    visit_tensors(result, [&](const at::Tensor& tensor) { made[entry.outputs.at(output++)] = tensor; });
  }
}

std::vector<at::Tensor> InitLog::replay(std::span<const at::Tensor> tensors) const {
  const c10::impl::ExcludeDispatchKeyGuard seen(kKey);
  const at::NoGradGuard without_graph;
  std::vector<int> ids;
  for (const auto& tensor : tensors) ids.push_back(ids_.at(tensor.unsafeGetTensorImpl()));
  std::unordered_map<int, at::Tensor> made;
  for (const Entry* entry : entries_behind(ids)) run_again(*entry, made);
  std::vector<at::Tensor> results;
  for (const int id : ids) results.push_back(made.at(id));
  return results;
}

std::vector<at::Tensor> InitLog::alive() const {
  std::vector<at::Tensor> tensors;
  for (const auto& weak : tensors_) {
    if (auto tensor = weak.lock()) tensors.emplace_back(std::move(tensor));
  }
  return tensors;
}

void make_real(const at::Tensor& tensor, const at::Tensor& real) {
  tensor.unsafeGetTensorImpl()->_change_backend_component_keys(real.device());
  tensor.set_data(real);
}

}  // namespace accelerate::detail
