#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <utility>
#include <vector>

#include "residency/init_log.h"

namespace accelerate::residency {

/// While it lives, tensors that this thread makes from nothing are made on a device of its choice. On the meta device they take
/// no memory, and how they were made is kept.
class EmptyScope {
 public:
  EmptyScope(c10::Device device, bool include_buffers);
  /// What is no parameter gets its bytes after all, unless buffers are included.
  ~EmptyScope();
  EmptyScope(const EmptyScope&) = delete;
  EmptyScope& operator=(const EmptyScope&) = delete;

  /// The innermost one of this thread, or null.
  static EmptyScope* current();

  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  void make(const c10::OperatorHandle& op, size_t device_argument, torch::jit::Stack* stack);
  void run_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void give_bytes_to_buffers();

  c10::Device device_;
  bool include_buffers_;
  EmptyScope* outer_;
  std::shared_ptr<InitLog> log_;
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<std::pair<Weak, c10::Device>> moved_;  // made on another device than this one
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

}  // namespace accelerate::residency
