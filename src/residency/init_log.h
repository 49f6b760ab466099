#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace accelerate::detail {

/// The operators that made tensors without bytes, so that those that turn out to be needed can be made after all. It belongs to
/// the storages of these tensors, and goes with the last of them.
class InitLog : public std::enable_shared_from_this<InitLog> {
 public:
  InitLog();

  /// The log that has the making of a tensor, or null.
  static std::shared_ptr<InitLog> of(const at::TensorBase& tensor);

  bool knows(const at::TensorBase& tensor) const { return ids_.contains(tensor.unsafeGetTensorImpl()); }
  /// An operator was called with `arguments` and gave `results`, all of them without bytes.
  void add(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments, std::span<const c10::IValue> results);
  /// Runs again what made these tensors, and returns them with bytes, where they would have been.
  std::vector<at::Tensor> replay(std::span<const at::Tensor> tensors) const;
  /// The tensors it knows that are still in somebody's hands.
  std::vector<at::Tensor> alive() const;

 private:
  struct Entry {
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments;  // with stand_in_ for tensors without bytes
    std::vector<int> inputs, outputs;    // ids of tensors; -1 for one with bytes, which `arguments` has
    std::vector<int> changes;            // ids of storages
  };

  int id_of(const at::Tensor& tensor);
  /// The entries that had a part in what these tensors hold.
  std::vector<const Entry*> entries_behind(const std::vector<int>& ids) const;
  void run_again(const Entry& entry, std::unordered_map<int, at::Tensor>& made) const;

  // Weak references, and yet a reference: no other object can come to have the same address.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> tensors_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
  std::unordered_map<const c10::TensorImpl*, int> ids_;
  std::unordered_map<const c10::StorageImpl*, int> storage_ids_;
  std::vector<int> storage_of_;  // by tensor
  std::vector<Entry> entries_;
  at::Tensor stand_in_;
};

/// Makes a tensor without bytes one with those of `real`, in place: every handle to it sees them.
void make_real(const at::Tensor& tensor, const at::Tensor& real);

}  // namespace accelerate::detail
