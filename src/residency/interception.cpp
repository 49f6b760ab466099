#include "residency/interception.h"

#include <ATen/autocast_mode.h>
#include <accelerate/core/error.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "rendezvous/torch_private_access.h"
#include "residency/device_alignment.h"
#include "residency/empty_scope.h"
#include "residency/pins.h"

namespace accelerate::detail {
namespace {

/// Whether an operator returns a view of an argument, or may: such a one needs no bytes, and where it copies after all, the copy
/// is an operator of its own.
bool may_alias(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& result) { return result.alias_info() && !result.alias_info()->isWrite(); });
}

/// The weights among the arguments of an operator.
void add_arguments(Pins& pins, const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool writes = alias && alias->isWrite();
    visit_tensors(arguments[i], [&](const at::Tensor& tensor) { pins.add(tensor, writes); });
  }
}

/// Autocast keeps the casts of weights until its scope ends: all of a model, in the end. Those of weights that come and go are
/// not kept.
class WithoutCastCache {
 public:
  WithoutCastCache() { at::autocast::set_autocast_cache_enabled(false); }
  ~WithoutCastCache() { at::autocast::set_autocast_cache_enabled(before_); }

 private:
  bool before_ = at::autocast::is_autocast_cache_enabled();
};

}  // namespace

void run_on_weights(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  // The key stays on: what copies inside is caught there.
  if (may_alias(schema)) return op.redispatchBoxed(after_us(keys), stack);
  if (align_devices(op, stack)) return op.callBoxed(stack);
  const c10::impl::ExcludeDispatchKeyGuard seen(kKey);
  Pins pins;
  add_arguments(pins, schema, torch::jit::last(*stack, schema.arguments().size()));
  if (pins.empty()) return op.redispatchBoxed(after_us(keys), stack);
  pins.pin();
  {
    const WithoutCastCache without;
    op.redispatchBoxed(after_us(keys), stack);
  }
  pins.finish();
}

namespace {

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (EmptyScope* scope = EmptyScope::current()) return scope->run(op, keys, stack);
  run_on_weights(op, keys, stack);
}

}  // namespace

c10::IValue map_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& map) {
  const auto mapped = [&](const at::Tensor& tensor) { return tensor.defined() ? map(tensor) : tensor; };
  if (value.isTensor()) return mapped(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(mapped(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& each : value.toOptionalTensorVector()) list.push_back(each ? std::optional(mapped(*each)) : std::nullopt);
    return list;
  }
  return value;
}

void intercept_operators() {
  static std::once_flag once;
  static std::unique_ptr<torch::Library> library;
  std::call_once(once, [] {
    if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey)) {
      throw UsageError(std::string("Offloading and empty weights use LibTorch's dispatch key ") + c10::toString(kKey) +
                       ", for which another library in this process has registered a fallback.");
    }
    library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
  });
}

void set_key(const at::TensorBase& tensor, bool on) {
  auto& keys = torch_private::key_set_of(*tensor.unsafeGetTensorImpl());
  keys = on ? keys.add(kKey) : keys.remove(kKey);
}

bool has_key(const at::TensorBase& tensor) { return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kKey); }

}  // namespace accelerate::detail
