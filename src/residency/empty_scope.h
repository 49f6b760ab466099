#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <unordered_map>

#include "residency/init_log.h"

namespace accelerate::detail {

/// While it lives, tensors that this thread makes from nothing are made on a device of its choice. On the meta device they take
/// no memory, and how they were made is kept.
class EmptyScope {
 public:
  EmptyScope(c10::Device device, bool include_buffers);
  /// What is no parameter gets its bytes after all, or goes where it would have been, unless buffers are included.
  ~EmptyScope();
  EmptyScope(const EmptyScope&) = delete;
  EmptyScope& operator=(const EmptyScope&) = delete;

  /// The innermost one of this thread, or null.
  static EmptyScope* current();
  c10::Device device() const { return device_; }

  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  void run_empty(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void run_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void give_bytes_to_buffers();
  void run_on_device(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void bring_to_their_devices();
  /// Calls an operator that makes tensors, to make them on this device.
  void make(const c10::OperatorHandle& op, size_t device_argument, torch::jit::Stack* stack) const;

  /// Where a tensor would be without this scope. The reference is weak, and keeps another from coming to the same address.
  struct Made {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    c10::Device home;
  };

  c10::Device device_;
  bool include_buffers_;
  EmptyScope* outer_;
  std::shared_ptr<InitLog> log_;                           // on the meta device
  std::unordered_map<const c10::TensorImpl*, Made> made_;  // on others
  c10::impl::IncludeDispatchKeyGuard included_;
};

/// While it lives, this thread is in no such scope: for code of ours that makes tensors which must be real.
class OutsideEmptyScopes {
 public:
  OutsideEmptyScopes();
  ~OutsideEmptyScopes();
  OutsideEmptyScopes(const OutsideEmptyScopes&) = delete;
  OutsideEmptyScopes& operator=(const OutsideEmptyScopes&) = delete;

 private:
  EmptyScope* before_;
};

}  // namespace accelerate::detail
