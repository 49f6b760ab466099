#include "residency/empty_scope.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "residency/interception.h"

namespace accelerate::detail {
namespace {

// Scopes belong to a thread, as the dispatcher's own do.
thread_local EmptyScope* innermost = nullptr;

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    const std::string kind = argument.type()->str();
    return kind.find("Tensor") != std::string::npos;
  });
}

bool gives_tensors(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& result) { return result.type()->str().find("Tensor") != std::string::npos; });
}

/// `torch::tensor({1, 2, 3})` fills what it makes by its pointer, so that must be real. It calls `at::empty`; modules call
/// `torch::empty` and its like, which tell themselves by running below autograd.
bool filled_by_pointer(const c10::OperatorHandle& op) {
  return op.schema().name() == "aten::empty" &&
         !c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::ADInplaceOrView);
}

/// The argument that says where an operator that makes tensors from nothing makes them, or nothing for any other.
std::optional<size_t> device_argument_of(const c10::OperatorHandle& op) {
  const auto device = op.schema().argumentIndexWithName("device");
  if (!device || takes_tensors(op.schema()) || !gives_tensors(op.schema()) || filled_by_pointer(op)) return std::nullopt;
  return static_cast<size_t>(*device);
}

}  // namespace

EmptyScope::EmptyScope(c10::Device device, bool include_buffers)
    : device_(device),
      include_buffers_(include_buffers),
      outer_(innermost),
      log_(std::make_shared<InitLog>()),
      included_((intercept_operators(), kKey)) {
  innermost = this;
}

EmptyScope::~EmptyScope() {
  innermost = outer_;
  try {
    const c10::impl::ExcludeDispatchKeyGuard seen(kKey);
    if (!device_.is_meta()) {
      bring_to_their_devices();
    } else if (!include_buffers_) {
      give_bytes_to_buffers();
    }
  } catch (...) {  // without memory for them they stay as they are, and using them is an error
  }
}

OutsideEmptyScopes::OutsideEmptyScopes() : before_(std::exchange(innermost, nullptr)) {}

OutsideEmptyScopes::~OutsideEmptyScopes() { innermost = before_; }

EmptyScope* EmptyScope::current() { return innermost; }

void EmptyScope::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  device_.is_meta() ? run_empty(op, keys, stack) : run_on_device(op, keys, stack);
}

void EmptyScope::run_empty(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  bool known = false, any = false;
  for (const auto& argument : torch::jit::last(*stack, count)) {
    visit_tensors(argument, [&](const at::Tensor& tensor) {
      any = true;
      known |= tensor.defined() && log_->knows(tensor);
    });
  }
  if (known) {
    const c10::impl::ExcludeDispatchKeyGuard seen(kKey);
    return run_on_meta(op, stack);
  }
  const auto device = any ? std::nullopt : device_argument_of(op);
  if (!device) return run_on_weights(op, keys, stack);
  const auto arguments = torch::jit::last(*stack, count).vec();
  make(op, *device, stack);
  log_->add(op, arguments, torch::jit::last(*stack, op.schema().returns().size()));
}

void EmptyScope::run_on_device(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size()).vec();
  std::optional<c10::Device> home;
  std::unordered_set<const c10::TensorImpl*> inputs;
  for (const auto& argument : arguments) {
    visit_tensors(argument, [&](const at::Tensor& tensor) {
      inputs.insert(tensor.unsafeGetTensorImpl());
      const auto found = made_.find(tensor.unsafeGetTensorImpl());
      if (!home && found != made_.end()) home = found->second.home;
    });
  }
  if (const auto device = device_argument_of(op)) {
    home = arguments[*device].isNone() ? c10::Device(c10::kCPU) : arguments[*device].toDevice();
    make(op, *device, stack);
  } else {
    run_on_weights(op, keys, stack);
  }
  for (const auto& result : torch::jit::last(*stack, op.schema().returns().size())) {
    visit_tensors(result, [&](const at::Tensor& tensor) {
      auto* const made = tensor.unsafeGetTensorImpl();
      if (!tensor.defined() || inputs.contains(made)) return;  // which was there before
      // An operator inside of this one may have noted it already, by the device of a copy that brought tensors together.
      made_.insert_or_assign(made, Made{decltype(Made::tensor)(tensor.getIntrusivePtr()), home.value_or(tensor.device())});
    });
  }
}

void EmptyScope::bring_to_their_devices() {
  const at::NoGradGuard without_graph;
  for (const auto& [address, made] : made_) {
    const at::Tensor tensor(made.tensor.lock());
    if (!tensor.defined() || !tensor.is_leaf()) continue;
    // Nothing but this tells parameters from buffers.
    const c10::Device device = tensor.requires_grad() || include_buffers_ ? device_ : made.home;
    if (tensor.device() != device) make_real(tensor, tensor.to(device));
  }
}

void EmptyScope::make(const c10::OperatorHandle& op, size_t device_argument, torch::jit::Stack* stack) const {
  const c10::impl::ExcludeDispatchKeyGuard seen(kKey);
  const size_t first = stack->size() - op.schema().arguments().size();
  (*stack)[first + device_argument] = device_;
  if (const auto pinned = op.schema().argumentIndexWithName("pin_memory")) {
    (*stack)[first + static_cast<size_t>(*pinned)] = c10::IValue();
  }
  op.callBoxed(stack);
}

void EmptyScope::run_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const auto arguments = torch::jit::last(*stack, count).vec();
  const bool values = !gives_tensors(schema);  // a number is wanted, which only bytes can tell
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    (*stack)[i] = map_tensors((*stack)[i], [&](const at::Tensor& tensor) {
      if (log_->knows(tensor)) return values ? log_->replay(std::vector{tensor})[0] : tensor;
      return values || tensor.dim() == 0 ? tensor : tensor.to(c10::Device(c10::kMeta));
    });
  }
  op.callBoxed(stack);
  if (!values) log_->add(op, arguments, torch::jit::last(*stack, schema.returns().size()));
}

void EmptyScope::give_bytes_to_buffers() {
  std::vector<at::Tensor> buffers;
  for (auto& tensor : log_->alive()) {
    // Nothing but this tells parameters from buffers.
    if (tensor.is_meta() && !tensor.requires_grad()) buffers.push_back(std::move(tensor));
  }
  const auto real = log_->replay(buffers);
  for (size_t i = 0; i < buffers.size(); ++i) make_real(buffers[i], real[i]);
}

}  // namespace accelerate::detail
